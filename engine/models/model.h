// From a model spec to graphs: the one that trains and the one that evaluates.
#ifndef AMPD_ENGINE_MODELS_MODEL_H_
#define AMPD_ENGINE_MODELS_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/worker_link.pb.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"
#include "engine/ir/graph.h"
#include "engine/passes/pad_for_tensor_cores.h"
#include "proto/spec/resolve.h"

namespace ampd::models {

// What the data says of a sample.
struct SampleInfo {
  Shape input_shape;  // without the batch: [features] or [h, w, c]
  // > 0: integer class labels 0..classes-1. 0: float targets.
  int64_t classes = 0;
  // With classes: the highest label but classes-1, + 1, for losses that ignore classes-1. 0: there is none.
  int64_t other_classes = 0;
  int64_t target_features = 0;  // float targets per sample
  // With classes: extents of a sample's labels, [positions] where each position of a sequence has one (or, row by row,
  // each pixel of the last layer's image), [labels] for ctc. Empty: one label a sample.
  Shape label_shape;
  // Steps past a sample's length do not count: the input's first axis is time.
  bool lengths = false;
  // With lengths: the extents of time for which there shall be training plans, ascending. The last is input_shape's.
  std::vector<int64_t> buckets;
  // Of a sample's labels, for ctc, the first few count.
  bool label_lengths = false;
  // How data.image.normalize changes the stored numbers before the network has them, "UNIT"; empty: it does not. Ids
  // are read as stored.
  std::string normalized;
};

// Inputs: "x" f32 [batch, ...]; "lengths" and "label_lengths" i32 [batch] as the data has them; then "labels" i32
// [batch, ...] for softmax cross-entropy and ctc, or "targets" f32 [batch, features] for the other losses and for
// softmax cross-entropy against distributions (one-hot where the data has classes; then "labels" too, for the
// accuracy); of multibox [batch, boxes * 5]. A label below 0 counts in no loss and no metric, which is how labels past
// a sample's length are marked. Outputs: "loss" (f32 scalar, mean) and "losses" (f32, labels' shape or [batch]). The
// evaluation graph also has "logits", the last layer's output in f32 (an image with labels as [batch, pixels,
// classes]); of softmax cross-entropy "loss_weights", by which its mean divides, and "surprises", -log of the labels'
// probabilities; of ctc "times" (i32 [batch]), the last layer's steps that count, where layers made them fewer than the
// data's; and where the data has classes "correct", "top5" (above 5 outputs) and "counted", each 0 or 1 a label.
struct PhaseGraph {
  // Of a job with micro-batches, an f32 scalar that the graph of a phase reads besides: how much of the batch's loss of
  // this kind is the micro-batch's, times the number of micro-batches.
  struct LabelShare {
    std::string input;
    v1::LossSpec loss;    // softmax cross-entropy against the labels
    int64_t outputs = 0;  // classes of its prediction
  };

  // Forward, loss, backward and gradient accumulation of one micro-batch, all passes run.
  ir::Graph train;
  // By parameter: whether the phase updates it.
  std::vector<bool> trains;
  // One for each loss of a phase of networks whose mean divides by the labels that count, where there are
  // micro-batches.
  std::vector<LabelShare> label_shares;
};

struct Model {
  // By phase of the job. Every graph has the same parameters and states in the same order.
  std::vector<PhaseGraph> phases;
  // Forward and loss, with running statistics and no dropout; empty for a job with networks.
  ir::Graph eval;
  // What report.samples runs, in the mode of the first phase that calls the network (of FP8 in BF16), with running
  // statistics: see engine/models/sample_forward.h. Empty without it.
  ir::Graph sample;
  std::vector<v1::LayerPlan> layers;
  // Of the training graphs: which extents of which products are padded. Layers are described without it.
  std::vector<passes::PaddedExtent> padding;
};

// Builds and verifies the graphs. `eval_batch` is the evaluation graph's batch, `padding` what the backend pads
// products to. `precisions`: what each phase computes in; empty: all as the job. INVALID_ARGUMENT with field violations
// ("model.layers[3]": `"[dense] ..., node head"`) when shapes do not fit.
absl::StatusOr<Model> BuildModel(const ResolvedJobSpec& spec, const SampleInfo& sample, int64_t train_batch,
                                 int64_t eval_batch, const passes::PaddingPolicy& padding = {},
                                 const std::vector<v1::PrecisionSpec>& precisions = {});

}  // namespace ampd::models

#endif  // AMPD_ENGINE_MODELS_MODEL_H_
