// LSTM and GRU.
#include <algorithm>
#include <string>

#include "absl/strings/str_replace.h"
#include "engine/core/status.h"
#include "engine/models/onnx/exporter.h"

namespace ampd::models::onnx {
namespace {

using ir::OpKind;
using ir::ValueKind;
using Ints = std::vector<int64_t>;

// Where a sequence's tensor has time first, as ONNX's recurrences do.
Arrangement TimeFirst() { return {{1, 0, 2}, {}}; }

class RecurrentWriter {
 public:
  explicit RecurrentWriter(ExportNode& n)
      : n_(n), e_(n.e), lstm_(n.node().op == OpKind::kLstm), hidden_(n.type(2).shape[1]) {}

  absl::Status Write() {
    AMPD_RETURN_IF_ERROR(n_.OnlyOutputs(lstm_ ? 3 : 2));
    if (n_.type(0).dtype != DType::kF32) return n_.Refuse("has 16-bit operands");
    std::vector<T> inputs = {e_.Get(n_.in(0), TimeFirst()), Gates(1), Gates(2), Bias()};
    const size_t lengths = 5, peepholes = lstm_ ? 8 : 7;
    inputs.push_back(n_.Has(lengths) ? e_.Get(n_.in(lengths)) : nullptr);
    inputs.push_back(n_.Has(6) ? WithDirection(e_.Get(n_.in(6))) : nullptr);
    if (lstm_) {
      inputs.push_back(n_.Has(7) ? WithDirection(e_.Get(n_.in(7))) : nullptr);
      inputs.push_back(n_.Has(peepholes) ? Peepholes(peepholes) : nullptr);
    }
    while (inputs.back() == nullptr) inputs.pop_back();
    ir::Attributes attributes{{"hidden_size", hidden_}};
    if (n_.a.String("direction") == "reverse") attributes.Set("direction", std::string("reverse"));
    if (!lstm_) attributes.Set("linear_before_reset", n_.a.Int("linear_before_reset", 1));
    Bind(inputs, attributes);
    return absl::OkStatus();
  }

 private:
  // Blocks of ONNX's order among ours: i, o, f, g among i, f, g, o; z, r, n among r, z, n.
  Ints Order() const { return lstm_ ? Ints{0, 3, 1, 2} : Ints{1, 0, 2}; }

  // Whether the node is all that reads a parameter, so that it need not be there as on disk.
  bool IsOwn(size_t i) const {
    const ir::Value& value = e_.graph().values[static_cast<size_t>(n_.in(i))];
    return value.kind == ValueKind::kParameter && e_.Uses(n_.in(i)) == 1;
  }

  bool IsZero(size_t i) const {
    const ir::Value& value = e_.graph().values[static_cast<size_t>(n_.in(i))];
    if (value.kind != ValueKind::kConstant) return false;
    const absl::Span<const float> numbers = value.data->as<float>();
    return std::all_of(numbers.begin(), numbers.end(), [](float f) { return f == 0; });
  }

  std::string NameOf(size_t i) const { return e_.graph().values[static_cast<size_t>(n_.in(i))].name; }

  // The bytes of `i`'s blocks in ONNX's order.
  std::string Reordered(size_t i) const {
    const absl::string_view bytes = e_.PersistentBytes(n_.in(i));
    const Ints order = Order();
    const size_t block = bytes.size() / order.size();
    std::string result;
    for (int64_t gate : order) absl::StrAppend(&result, bytes.substr(static_cast<size_t>(gate) * block, block));
    return result;
  }

  // A weight [gates H, features] as [1, gates H, features].
  T Gates(size_t i) {
    const Shape& shape = n_.type(i).shape;
    if (IsOwn(i)) return e_.Initializer(NameOf(i), DType::kF32, {1, shape[0], shape[1]}, Reordered(i));
    return WithDirection(ReorderedValue(e_.Get(n_.in(i)), Order()));
  }

  T Bias() {
    if (!n_.Has(3) || (IsZero(3) && IsZero(4))) return nullptr;
    const int64_t rows = n_.type(3).shape[0];
    const std::string name = absl::StrReplaceAll(NameOf(3), {{"bias_ih", "bias"}});
    if (IsOwn(3) && IsOwn(4) && name != NameOf(3)) {
      return e_.Initializer(e_.UniqueName(name), DType::kF32, {1, 2 * rows}, Reordered(3) + Reordered(4));
    }
    const T both =
        e_.Op("Concat", {ReorderedValue(e_.Get(n_.in(3)), Order()), ReorderedValue(e_.Get(n_.in(4)), Order())},
              FixedDims({2 * rows}), {{"axis", int64_t{0}}});
    return WithDirection(both);
  }

  T Peepholes(size_t i) {
    const T rows = ReorderedValue(e_.Get(n_.in(i)), {0, 2, 1});
    return e_.Reshape(rows, FixedDims({1, 3 * hidden_}));
  }

  // The blocks of the first axis in another order.
  T ReorderedValue(T x, const Ints& order) {
    if (!e_.status().ok()) return x;
    const int64_t block = x->dims[0].count / static_cast<int64_t>(order.size());
    Dims dims = x->dims;
    dims[0].count = block;
    std::vector<T> parts;
    for (int64_t part : order) {
      const std::vector<T> inputs = {x, e_.Ints({part * block}, "starts"), e_.Ints({(part + 1) * block}, "ends"),
                                     e_.Ints({0}, "axes")};
      parts.push_back(e_.Op("Slice", inputs, dims));
    }
    return e_.Op("Concat", parts, x->dims, {{"axis", int64_t{0}}});
  }

  // x under a first axis of one direction.
  T WithDirection(T x) {
    Dims dims = x->dims;
    dims.insert(dims.begin(), Dim{});
    return e_.Reshape(x, dims);
  }

  void Bind(const std::vector<T>& inputs, const ir::Attributes& attributes) {
    const Dims &y = n_.out_dims(0), &h = n_.out_dims(1);
    const Dims state = {{}, h[0], h[1]};
    std::vector<Dims> dims = {{y[1], {}, y[0], y[2]}, state};
    std::vector<bool> wanted = {e_.Uses(n_.out(0)) > 0, e_.Uses(n_.out(1)) > 0};
    if (lstm_) {
      dims.push_back(state);
      wanted.push_back(e_.Uses(n_.out(2)) > 0);
    }
    bool any = false;
    for (const bool one : wanted) any = any || one;
    if (!any) return;
    const std::vector<T> outputs = e_.Ops(lstm_ ? "LSTM" : "GRU", inputs, dims, wanted, attributes);
    if (wanted[0]) e_.Bind(n_.out(0), TimeFirst(), e_.Reshape(outputs[0], {y[1], y[0], y[2]}));
    for (size_t i = 1; i < outputs.size(); ++i) {
      if (wanted[i]) e_.Bind(n_.out(i), InOrder(2), e_.Reshape(outputs[i], h));
    }
  }

  ExportNode& n_;
  Exporter& e_;
  const bool lstm_;
  const int64_t hidden_;
};

absl::Status Recurrent(ExportNode& n) { return RecurrentWriter(n).Write(); }

}  // namespace

std::vector<Writer> RecurrentWriters() { return {{OpKind::kLstm, Recurrent}, {OpKind::kGru, Recurrent}}; }

}  // namespace ampd::models::onnx
