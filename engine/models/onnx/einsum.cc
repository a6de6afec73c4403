// Einsum: each operand gets one axis a label, then operands are multiplied two by two, left to right, as a matrix
// product over the labels that nothing needs any more, or elementwise where there are none.
#include <algorithm>
#include <map>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"
#include "engine/models/onnx/node.h"

namespace ampd::models::onnx {
namespace {

using Ints = std::vector<int64_t>;

// A letter, or an axis of an ellipsis: kEllipsis for the last one, one less for each before it.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = -1;
// What each product needs of the operands behind it is looked up by each.
constexpr int kMostOperands = 64;
constexpr int kMaxAxes = 32;

bool Has(const Labels& labels, Label label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

// A value with a label for each of its axes, none of them twice.
struct Operand {
  V x = nullptr;
  Labels labels;
};

// An operand's or the result's part of the equation; `axes` are those that the ellipsis stands for.
absl::StatusOr<Labels> ParseTerm(const Node& n, absl::string_view term, int axes) {
  Labels labels;
  bool ellipsis = false;
  for (size_t i = 0; i < term.size(); ++i) {
    const char c = term[i];
    if (term.substr(i, 3) == "..." && !ellipsis) {
      for (int a = axes; a-- > 0;) labels.push_back(kEllipsis - a);
      ellipsis = true;
      i += 2;
      continue;
    }
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
      return n.Bad(absl::StrCat("equation is \"", n.String("equation", ""), "\""));
    }
    labels.push_back(c);
  }
  return labels;
}

// Takes the diagonal of axes that have the same label.
absl::Status TakeDiagonals(Node& n, Operand* operand) {
  for (size_t b = 1; b < operand->labels.size(); ++b) {
    const auto first = std::find(operand->labels.begin(), operand->labels.end(), operand->labels[b]);
    const size_t a = static_cast<size_t>(first - operand->labels.begin());
    if (a == b) continue;
    const Shape shape = operand->x->type.shape;
    if (shape[a] != shape[b]) return n.Bad(absl::StrCat("a diagonal of ", ShapeString(shape)));
    Ints order = {static_cast<int64_t>(a), static_cast<int64_t>(b)};
    Shape rest;
    Labels labels = {operand->labels[b]};
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (axis == a || axis == b) continue;
      order.push_back(static_cast<int64_t>(axis));
      rest.push_back(shape[axis]);
      labels.push_back(operand->labels[axis]);
    }
    Shape flat = rest;
    flat.insert(flat.begin(), shape[a] * shape[a]);
    Ints starts(flat.size(), 0), ends(flat.begin(), flat.end()), steps(flat.size(), 1);
    steps[0] = shape[a] + 1;
    operand->x = n.e.Slice(n.e.Reshape(n.e.Transpose(operand->x, order), flat), starts, ends, steps);
    operand->labels = std::move(labels);
    if (!n.e.ok()) return absl::OkStatus();
    b = 0;
  }
  return absl::OkStatus();
}

// Sums over what is in none of `needed`.
void SumOut(Emitter& e, const Labels& needed, Operand* operand) {
  Ints axes;
  Labels kept;
  for (size_t a = 0; a < operand->labels.size(); ++a) {
    if (Has(needed, operand->labels[a])) {
      kept.push_back(operand->labels[a]);
    } else {
      axes.push_back(static_cast<int64_t>(a));
    }
  }
  operand->x = e.Reduce("reduce_sum", operand->x, axes, false);
  operand->labels = std::move(kept);
}

// The operand's axes in the order of `labels`, all of which it has.
V InOrder(Emitter& e, const Operand& operand, const Labels& labels) {
  Ints order;
  for (Label label : labels) {
    order.push_back(std::find(operand.labels.begin(), operand.labels.end(), label) - operand.labels.begin());
  }
  return operand.labels == labels ? operand.x : e.Transpose(operand.x, order);
}

int64_t ExtentOf(const Operand& operand, Label label) {
  return Emitter::Extent(operand.x,
                         std::find(operand.labels.begin(), operand.labels.end(), label) - operand.labels.begin());
}

Labels Joined(const std::vector<Labels>& parts) {
  Labels all;
  for (const Labels& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Two operands, as long as they are multiplied.
class Product {
 public:
  Product(Emitter& e, const Operand& a, const Operand& b, const Labels& needed) : e_(e), a_(a), b_(b) {
    for (Label label : a.labels)
      (!Has(b.labels, label) ? free_a_ : Has(needed, label) ? batch_ : inner_).push_back(label);
    for (Label label : b.labels) {
      if (!Has(a.labels, label)) free_b_.push_back(label);
    }
  }

  Operand Run() { return inner_.empty() ? Elementwise() : Matrices(); }

 private:
  Operand Elementwise() {
    const Labels labels = Joined({batch_, free_a_, free_b_});
    V y = e_.Mul(Spread(a_, labels), Spread(b_, labels));
    return {y, labels};
  }

  // With an axis of 1 for each label that the operand does not have.
  V Spread(const Operand& operand, const Labels& labels) {
    Labels own;
    Shape shape;
    for (Label label : labels) {
      if (Has(operand.labels, label)) own.push_back(label);
      shape.push_back(Has(operand.labels, label) ? ExtentOf(operand, label) : 1);
    }
    return e_.Reshape(InOrder(e_, operand, own), shape);
  }

  Operand Matrices() {
    // Where one operand has 1 for the other's extent it is repeated.
    for (Label label : inner_) {
      const int64_t extent = std::max(ExtentOf(a_, label), ExtentOf(b_, label));
      Repeat(label, extent, &a_);
      Repeat(label, extent, &b_);
    }
    // Transposed where no axis has to move for that.
    const bool ta = a_.labels == Joined({batch_, inner_, free_a_}), tb = b_.labels == Joined({batch_, free_b_, inner_});
    const V a = Matrix(a_, ta ? inner_ : free_a_, ta ? free_a_ : inner_);
    const V b = Matrix(b_, tb ? free_b_ : inner_, tb ? inner_ : free_b_);
    if (!e_.ok()) return a_;
    V y = e_.Matmul(a, b, ta, tb);
    const Labels labels = Joined({batch_, free_a_, free_b_});
    Shape shape;
    for (Label label : labels) {
      const bool both = Has(batch_, label);
      shape.push_back(both                  ? std::max(ExtentOf(a_, label), ExtentOf(b_, label))
                      : Has(free_a_, label) ? ExtentOf(a_, label)
                                            : ExtentOf(b_, label));
    }
    return {e_.Reshape(y, shape), labels};
  }

  void Repeat(Label label, int64_t extent, Operand* operand) {
    Shape shape = operand->x->type.shape;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (operand->labels[axis] == label) shape[axis] = extent;
    }
    operand->x = e_.Expand(operand->x, shape);
  }

  // The batch's axes, then `rows` as one and `columns` as one.
  V Matrix(const Operand& operand, const Labels& rows, const Labels& columns) {
    Shape shape;
    for (Label label : batch_) shape.push_back(ExtentOf(operand, label));
    for (const Labels* part : {&rows, &columns}) {
      int64_t extent = 1;
      for (Label label : *part) extent *= ExtentOf(operand, label);
      shape.push_back(extent);
    }
    return e_.Reshape(InOrder(e_, operand, Joined({batch_, rows, columns})), shape);
  }

  Emitter& e_;
  Operand a_, b_;
  Labels batch_, inner_, free_a_, free_b_;
};

// What the result has where the equation does not say: the ellipsis, then what is there once, by the alphabet.
Labels ImpliedResult(const std::vector<Operand>& operands, int ellipsis) {
  std::map<Label, int> counts;
  for (const Operand& operand : operands) {
    for (Label label : operand.labels) ++counts[label];
  }
  Labels result;
  for (int a = ellipsis; a-- > 0;) result.push_back(kEllipsis - a);
  for (const auto& [label, count] : counts) {
    if (label > 0 && count == 1) result.push_back(label);
  }
  return result;
}

absl::Status CheckExtents(const Node& n, const std::vector<Operand>& operands) {
  std::map<Label, int64_t> extents;
  for (const Operand& operand : operands) {
    for (Label label : operand.labels) {
      int64_t& extent = extents.insert({label, 1}).first->second;
      const int64_t own = ExtentOf(operand, label);
      if (extent != 1 && own != 1 && extent != own) {
        return n.Bad(
            absl::StrCat("one label has extents ", extent, " and ", own, " in \"", n.String("equation", ""), "\""));
      }
      extent = std::max(extent, own);
    }
  }
  return absl::OkStatus();
}

absl::Status Einsum(Node& n) {
  if (n.inputs() > kMostOperands) {
    return n.Unsupported(absl::StrCat(n.inputs(), " operands, at most ", kMostOperands));
  }
  std::string equation = n.String("equation", "");
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  const std::vector<std::string> sides = absl::StrSplit(equation, "->");
  const std::vector<std::string> terms = absl::StrSplit(sides[0], ',');
  if (sides.size() > 2 || static_cast<int>(terms.size()) != n.inputs()) {
    return n.Bad(absl::StrCat("equation is \"", n.String("equation", ""), "\" for ", n.inputs(), " operands"));
  }
  std::vector<Operand> operands;
  int ellipsis = 0;
  for (int i = 0; i < n.inputs(); ++i) {
    if (!n.Has(i)) return n.Bad(absl::StrCat("input ", i, " is missing"));
    if (!IsFloat(n.dtype(i))) return n.Unsupported(absl::StrCat("operands of ", DTypeName(n.dtype(i))));
    const std::string& term = terms[static_cast<size_t>(i)];
    const int letters = static_cast<int>(std::count_if(term.begin(), term.end(), [](char c) { return c != '.'; }));
    const bool open = static_cast<int>(term.size()) > letters;
    const int axes = open ? n.rank(i) - letters : 0;
    if (axes < 0 || letters > kMaxAxes || axes + letters != n.rank(i)) {
      return n.Bad(absl::StrCat("\"", term, "\" for an operand of ", ShapeString(n.shape(i))));
    }
    ellipsis = std::max(ellipsis, axes);
    Operand operand{n[i], {}};
    AMPD_ASSIGN_OR_RETURN(operand.labels, ParseTerm(n, term, axes));
    operands.push_back(std::move(operand));
  }
  Labels result;
  if (sides.size() > 1) {
    AMPD_ASSIGN_OR_RETURN(result, ParseTerm(n, sides[1], ellipsis));
  } else {
    result = ImpliedResult(operands, ellipsis);
  }
  for (Operand& operand : operands) AMPD_RETURN_IF_ERROR(TakeDiagonals(n, &operand));
  if (!n.e.ok()) return absl::OkStatus();
  AMPD_RETURN_IF_ERROR(CheckExtents(n, operands));
  for (size_t i = 0; i < result.size(); ++i) {
    const bool known =
        std::any_of(operands.begin(), operands.end(), [&](const Operand& o) { return Has(o.labels, result[i]); });
    if (!known || std::count(result.begin(), result.end(), result[i]) > 1) {
      return n.Bad(absl::StrCat("equation is \"", n.String("equation", ""), "\""));
    }
  }
  Operand product = operands[0];
  for (size_t i = 1; i < operands.size() && n.e.ok(); ++i) {
    Labels later = result;
    for (size_t j = i + 1; j < operands.size(); ++j) later = Joined({later, operands[j].labels});
    SumOut(n.e, Joined({later, operands[i].labels}), &product);
    SumOut(n.e, Joined({later, product.labels}), &operands[i]);
    if (n.e.ok()) product = Product(n.e, product, operands[i], later).Run();
  }
  if (!n.e.ok()) return absl::OkStatus();
  SumOut(n.e, result, &product);
  return n.Out(n.e.ok() ? InOrder(n.e, product, result) : product.x);
}

}  // namespace

std::vector<Rule> EinsumRules() { return NeverEmpty({{"Einsum", Einsum, 1}}); }

}  // namespace ampd::models::onnx
