// Embeddings, recurrences and attention.
#include "tests/support/random_graph/grower.h"

namespace ampd::testing {

using ir::OpKind;
using ir::ValueId;

void Grower::Embedding() { Set(OpKind::kEmbedding, {Parameter({Between(kIndices, 9), Between(1, 7)}), current_}); }

void Grower::Recurrent(OpKind op) {
  const int64_t hidden = Between(1, 5), gates = (op == OpKind::kLstm ? 4 : 3) * hidden;
  std::vector<ValueId> inputs = {current_, Parameter({gates, shape()[2]}), Parameter({gates, hidden})};
  if (OneIn(2)) {
    inputs.push_back(Parameter({gates}));
    inputs.push_back(Parameter({gates}));
    if (OneIn(2)) {
      const ValueId lengths = graph_.FindInput("lengths");
      inputs.push_back(lengths >= 0 ? lengths : graph_.AddInput("lengths", {DType::kI32, {shape()[0]}}));
    }
  }
  const auto directed = [&](const char* direction) {
    ir::Attributes attributes{{"direction", std::string(direction)}};
    if (op == OpKind::kGru) attributes.Set("linear_before_reset", random_.Below(2));
    return attributes;
  };
  if (OneIn(4)) {  // both ways
    const ValueId there = Emit(op, inputs, directed("forward"))[0], back = Emit(op, inputs, directed("reverse"))[0];
    return Set(OpKind::kConcat, {there, back}, {{"axis", int64_t{2}}});
  }
  const std::vector<ValueId> outputs = Emit(op, inputs, directed(OneIn(2) ? "forward" : "reverse"));
  if (OneIn(4)) {  // also the last state, added to each step
    const ValueId last = outputs[1];
    current_ = Emit(OpKind::kReshape, {last}, {{"shape", Ints{shape()[0], 1, hidden}}})[0];
    return Set(OpKind::kAdd, {outputs[0], current_});
  }
  current_ = outputs[0];
}

// What scores take: to hide (of which query and key 0 is never hidden), or to be added, trained or not.
ValueId Grower::Mask(const Shape& scores) {
  if (OneIn(2)) return Parameter(OneIn(2) ? scores : Shape{scores[2], scores[3]});
  return OneIn(2) ? Constant(DType::kBool, {scores[2], scores[3]}, 0, 1) : Constant(DType::kF32, scores, -2, 2);
}

void Grower::Attention() {
  const Shape x = shape();
  const int64_t heads = Between(1, 3), kv_heads = OneIn(3) ? 1 : heads, size = Between(1, 4),
                value_size = Between(1, 4);
  const auto project = [&](int64_t features) {
    return Emit(OpKind::kMatmul, {current_, Parameter({features, x[2]})}, {{"transpose_b", int64_t{1}}})[0];
  };
  ir::Attributes attributes{{"heads", heads}, {"kv_heads", kv_heads}};
  if (OneIn(2)) attributes.Set("causal", int64_t{1});
  if (OneIn(4)) attributes.Set("softcap", 2.0);
  if (OneIn(3)) {
    std::vector<ValueId> inputs = {project((heads + 2 * kv_heads) * size)};
    if (OneIn(2)) inputs.push_back(Constant(DType::kBool, {x[1], x[1]}, 0, 1));
    return Set(OpKind::kSelfAttention, inputs, attributes);
  }
  std::vector<ValueId> inputs;
  for (const int64_t features : {heads * size, kv_heads * size, kv_heads * value_size}) {
    inputs.push_back(project(features));
  }
  if (OneIn(2)) inputs.push_back(Mask({x[0], heads, x[1], x[1]}));
  Set(OpKind::kAttention, inputs, attributes);
}

}  // namespace ampd::testing
