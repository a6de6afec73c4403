// What grows a random graph: a current value, to which one random op after another is applied. One file a family of
// ops.
#ifndef AMPD_TESTS_SUPPORT_RANDOM_GRAPH_GROWER_H_
#define AMPD_TESTS_SUPPORT_RANDOM_GRAPH_GROWER_H_

#include <string>
#include <vector>

#include "engine/ir/graph.h"
#include "tests/support/ref_tensor.h"

namespace ampd::testing {

// i32 inputs hold 0 to this - 1.
inline constexpr int64_t kIndices = 5;

class Grower {
 public:
  using Ints = std::vector<int64_t>;

  explicit Grower(uint64_t seed);
  ir::Graph Grow(int nodes);

 private:
  // Of the current value: [batch, height, width, channels], [batch, time, features] or [batch, features].
  const Shape& shape() const { return graph_.type(current_).shape; }
  int64_t rank() const { return static_cast<int64_t>(shape().size()); }
  int64_t Between(int64_t low, int64_t high) { return low + random_.Below(high - low + 1); }
  bool OneIn(int64_t n) { return random_.Below(n) == 0; }

  // A gtest failure, and the graph as it is, when the op's rule refuses.
  std::vector<ir::ValueId> Emit(ir::OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes = {});
  void Set(ir::OpKind op, std::vector<ir::ValueId> inputs, ir::Attributes attributes = {});
  // Also one that others read already.
  ir::ValueId Parameter(const Shape& shape);
  ir::ValueId Constant(DType dtype, const Shape& shape, double low, double high);
  ir::ValueId Scalar(double value);
  // An earlier value of the current one's shape, or itself.
  ir::ValueId Earlier();
  // [..., F] to [..., units].
  void Dense(int64_t units);
  void Reshape(Ints to);
  // Keeps tensors small.
  void Shrink();

  void Step();
  void ImageStep();
  void SequenceStep();
  // One of no consequence for the loss.
  void DeadNode();

  // images.cc
  void Conv();
  void ConvTranspose();
  void MaxPool();
  void AvgPool();
  void GroupNorm();
  Ints WindowPads(const Ints& size);

  // sequences.cc
  void Embedding();
  void Recurrent(ir::OpKind op);
  void Attention();
  ir::ValueId Mask(const Shape& scores);

  // anything.cc
  void Activation();
  void Unary();
  void Binary();
  void Where();
  void Norm();
  void Softmax();
  void Reduction();
  void Broadcast();
  void Transpose();
  void Slice();
  void Concat();
  void Pad();
  void Gather();
  void Split();

  // losses.cc
  void Finish();
  void CrossEntropy();
  void SoftCrossEntropy();
  void ElementLoss();
  void Ctc();
  void Outputs(ir::ValueId losses, ir::ValueId weights);

  Random random_;
  ir::Graph graph_;
  ir::ValueId current_ = -1;
  std::vector<ir::ValueId> seen_;
  int count_ = 0;
};

}  // namespace ampd::testing

#endif  // AMPD_TESTS_SUPPORT_RANDOM_GRAPH_GROWER_H_
