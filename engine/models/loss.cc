#include "engine/models/loss.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/tensor.h"
#include "engine/models/prior_boxes.h"
#include "engine/ops/multibox_elements.h"
#include "engine/ops/op_def.h"

namespace ampd::models {
namespace {

using ir::OpKind;
using ir::ValueId;

constexpr int64_t kTopClasses = 5;

// The op that a loss other than softmax cross-entropy is, and its numbers.
std::pair<OpKind, ir::Attributes> ElementLoss(const v1::LossSpec& spec) {
  switch (spec.kind_case()) {
    case v1::LossSpec::kSigmoidCrossEntropy:
      return {OpKind::kSigmoidCrossEntropy, {}};
    case v1::LossSpec::kL1:
      return {OpKind::kL1Loss, {}};
    case v1::LossSpec::kSmoothL1:
      return {OpKind::kSmoothL1Loss, {{"beta", spec.smooth_l1().beta()}}};
    case v1::LossSpec::kHinge:
      return {OpKind::kHingeLoss, {{"margin", spec.hinge().margin()}}};
    default:
      return {OpKind::kSquaredError, {}};
  }
}

// Those that the last layer needs an output for.
int64_t CountedClasses(const v1::LossSpec& spec, const SampleInfo& sample) {
  const v1::SoftmaxCrossEntropyLoss& loss = spec.softmax_cross_entropy();
  const bool highest_ignored = loss.has_ignore_index() && loss.ignore_index() == sample.classes - 1;
  return highest_ignored ? sample.other_classes : sample.classes;
}

class LossBuilder {
 public:
  LossBuilder(const v1::LossSpec& spec, const SampleInfo& sample, bool training, const LayerOutput& prediction,
              ir::Graph* graph)
      : spec_(spec),
        sample_(sample),
        training_(training),
        prediction_(prediction.value),
        lengths_(prediction.lengths),
        graph_(graph) {}

  absl::Status Build() {
    if (soft_max()) AMPD_RETURN_IF_ERROR(PixelsAsPositions());
    AMPD_RETURN_IF_ERROR(spec_.has_ctc()        ? CheckCtcShapes()
                         : spec_.has_multibox() ? CheckMultiboxShapes()
                                                : CheckShapes());
    if (sample_.classes > 0) labels_ = graph_->AddInput("labels", {DType::kI32, LabelShape()});
    AMPD_RETURN_IF_ERROR(spec_.has_ctc()        ? AddCtc()
                         : spec_.has_multibox() ? AddMultibox()
                         : !soft_max()          ? AddElementLoss()
                         : labels_ >= 0         ? AddSoftmaxCrossEntropy()
                                                : AddSoftCrossEntropy());
    if (training_) return absl::OkStatus();
    graph_->outputs["logits"] = prediction_;
    if (spec_.has_ctc() && padded() && lengths_ != graph_->FindInput("lengths")) graph_->outputs["times"] = lengths_;
    return labels_ >= 0 && !spec_.has_ctc() ? AddMetrics() : absl::OkStatus();
  }

 private:
  bool padded() const { return lengths_ >= 0; }
  bool soft_max() const { return spec_.has_softmax_cross_entropy(); }
  const Shape& shape() const { return graph_->type(prediction_).shape; }
  std::string op_name() const {
    const OpKind op = spec_.has_ctc()        ? OpKind::kCtcLoss
                      : spec_.has_multibox() ? OpKind::kMultiboxLoss
                      : soft_max()           ? OpKind::kSoftmaxCrossEntropy
                                             : ElementLoss(spec_).first;
    return std::string(ir::OpName(op));
  }
  Shape LabelShape() const {
    Shape labels = {shape()[0]};
    labels.insert(labels.end(), sample_.label_shape.begin(), sample_.label_shape.end());
    return labels;
  }

  absl::Status Wrong(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("[", op_name(), "] ", what, ", node loss"));
  }

  // Labels of an image's pixels come row by row, as pixels lie in memory.
  absl::Status PixelsAsPositions() {
    const Shape image = shape();
    if (image.size() != 4 || sample_.label_shape.size() != 1) return absl::OkStatus();
    if (image[1] * image[2] != sample_.label_shape[0]) {
      return Wrong(absl::StrCat("needs a label for each of ", image[1], " x ", image[2], " pixels of the last layer, ",
                                "the data has ", sample_.label_shape[0], " a sample"));
    }
    const std::vector<int64_t> rows = {image[0], image[1] * image[2], image[3]};
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> pixels, Emit(OpKind::kReshape, {prediction_}, {{"shape", rows}}));
    prediction_ = pixels[0];
    return absl::OkStatus();
  }

  absl::Status CheckShapes() const {
    if (sample_.label_shape.empty() && shape().size() != 2) {
      return Wrong(absl::StrCat("needs [batch, outputs] from the last layer, has ", ShapeString(shape())));
    }
    if (sample_.label_lengths) return Wrong("takes no label lengths, which are for ctc");
    if (sample_.label_shape.empty() && padded()) {
      return Wrong(
          "needs one output a sample, the last layer gives one for each step of samples that differ in length");
    }
    if (soft_max() && sample_.classes == 0 && spec_.softmax_cross_entropy().has_ignore_index()) {
      return Wrong("has an ignore_index, but the data has float targets");
    }
    if (!sample_.label_shape.empty()) {
      if (!soft_max()) return Wrong("needs one target a sample, the data has a label at each position");
      Shape wanted = LabelShape();
      if (shape().size() != wanted.size() + 1 || !std::equal(wanted.begin(), wanted.end(), shape().begin())) {
        return Wrong(absl::StrCat("needs [batch, positions, classes] from the last layer for labels ",
                                  ShapeString(wanted), ", has ", ShapeString(shape())));
      }
    }
    return CheckOutputs();
  }

  absl::Status CheckCtcShapes() const {
    if (sample_.classes == 0 || sample_.label_shape.size() != 1) {
      return Wrong("needs label sequences, integers [samples, labels], as targets");
    }
    if (shape().size() != 3) {
      return Wrong(absl::StrCat("needs [batch, time, classes] from the last layer, has ", ShapeString(shape())));
    }
    if (sample_.lengths && !padded())
      return Wrong("needs the data's steps from the last layer, which ended the sequence");
    return CheckOutputs();
  }

  absl::Status CheckMultiboxShapes() const {
    if (sample_.classes > 0 || sample_.target_features % ops::kBoxNumbers != 0) {
      const std::string has = sample_.classes > 0 ? "class labels" : absl::StrCat(sample_.target_features);
      return Wrong(absl::StrCat("needs five float targets for each box, the data has ", has, " a sample"));
    }
    if (padded()) return Wrong("needs images, the data has samples that differ in length");
    const int64_t priors = CountPriors(spec_.multibox());
    if (shape().size() == 3 && shape()[1] == priors && shape()[2] > ops::kOffsets + 1) return absl::OkStatus();
    return Wrong(absl::StrCat("needs [batch, ", priors, " priors, 5 + classes] from the last layer, has ",
                              ShapeString(shape())));
  }

  absl::Status CheckOutputs() const {
    const int64_t outputs = shape().back();
    const int64_t wanted = sample_.classes > 0 ? CountedClasses(spec_, sample_) : sample_.target_features;
    if (sample_.classes > 0 ? outputs >= wanted : outputs == wanted) return absl::OkStatus();
    return Wrong(absl::StrCat("the last layer has ", outputs, " outputs, the data has ", wanted,
                              sample_.classes > 0 ? " classes" : " target features"));
  }

  // Appends the constant of weights that a loss may have.
  absl::Status AppendWeights(const google::protobuf::RepeatedField<float>& weights, const char* name,
                             std::vector<ValueId>* inputs) {
    if (weights.empty()) return absl::OkStatus();
    if (weights.size() != shape().back()) {
      return Wrong(
          absl::StrCat(name, " has ", weights.size(), " numbers, the last layer ", shape().back(), " outputs"));
    }
    auto tensor = std::make_shared<Tensor>(DType::kF32, Shape{weights.size()});
    std::copy(weights.begin(), weights.end(), tensor->as<float>().begin());
    inputs->push_back(graph_->AddConstant(absl::StrCat("loss.", name), std::move(tensor)));
    return absl::OkStatus();
  }

  ir::Attributes Ignoring() const {
    ir::Attributes attributes;
    if (soft_max() && spec_.softmax_cross_entropy().has_ignore_index()) {
      attributes.Set("ignore_index", int64_t{spec_.softmax_cross_entropy().ignore_index()});
    }
    return attributes;
  }

  absl::Status AddSoftmaxCrossEntropy() {
    const v1::SoftmaxCrossEntropyLoss& loss = spec_.softmax_cross_entropy();
    std::vector<ValueId> inputs = {prediction_, labels_};
    AMPD_RETURN_IF_ERROR(AppendWeights(loss.class_weights(), "class_weights", &inputs));
    ir::Attributes attributes = Ignoring();
    if (loss.label_smoothing() > 0) attributes.Set("smoothing", loss.label_smoothing());
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> losses, Emit(OpKind::kSoftmaxCrossEntropy, inputs, attributes));
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> mean, Emit(OpKind::kNormalizedSum, losses, {}));
    graph_->outputs = {{"losses", losses[0]}, {"loss", mean[0]}};
    if (training_) return absl::OkStatus();
    graph_->outputs["loss_weights"] = losses[1];
    graph_->outputs["surprises"] = losses[0];
    if (inputs.size() == 2 && loss.label_smoothing() == 0) return absl::OkStatus();
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> plain,
                          Emit(OpKind::kSoftmaxCrossEntropy, {prediction_, labels_}, Ignoring(), "_plain"));
    graph_->outputs["surprises"] = plain[0];
    return absl::OkStatus();
  }

  // torch.nn.CrossEntropyLoss against probabilities: the mean over the samples, whatever the classes' weights.
  absl::Status AddSoftCrossEntropy() {
    const v1::SoftmaxCrossEntropyLoss& loss = spec_.softmax_cross_entropy();
    std::vector<ValueId> inputs = {prediction_, graph_->AddInput("targets", {DType::kF32, shape()})};
    AMPD_RETURN_IF_ERROR(AppendWeights(loss.class_weights(), "class_weights", &inputs));
    ir::Attributes attributes;
    if (loss.label_smoothing() > 0) attributes.Set("smoothing", loss.label_smoothing());
    return AddMean(OpKind::kSoftCrossEntropy, inputs, attributes);
  }

  // i32 [batch], all `value`.
  ValueId Everywhere(const char* name, int64_t value) {
    auto tensor = std::make_shared<Tensor>(DType::kI32, Shape{shape()[0]});
    std::fill(tensor->as<int32_t>().begin(), tensor->as<int32_t>().end(), static_cast<int32_t>(value));
    return graph_->AddConstant(absl::StrCat("loss.", name), std::move(tensor));
  }

  absl::Status AddCtc() {
    const ValueId times = padded() ? lengths_ : Everywhere("times", shape()[1]);
    const ValueId label_lengths = sample_.label_lengths ? graph_->AddInput("label_lengths", {DType::kI32, {shape()[0]}})
                                                        : Everywhere("label_lengths", sample_.label_shape[0]);
    ir::Attributes attributes{{"blank", int64_t{spec_.ctc().blank()}}, {"mean_over_labels", int64_t{1}}};
    if (spec_.ctc().zero_infinity()) attributes.Set("zero_infinity", int64_t{1});
    return AddMean(OpKind::kCtcLoss, {prediction_, labels_, times, label_lengths}, attributes);
  }

  absl::Status AddMultibox() {
    const v1::MultiboxLoss& loss = spec_.multibox();
    const ValueId priors = graph_->AddConstant("loss.priors", std::make_shared<Tensor>(PriorBoxes(loss)));
    const ValueId targets = graph_->AddInput("targets", {DType::kF32, {shape()[0], sample_.target_features}});
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> matched, Emit(OpKind::kMultiboxMatch, {priors, targets},
                                                                   {{"classes", shape()[2] - ops::kOffsets - 1},
                                                                    {"threshold", loss.threshold()},
                                                                    {"center_variance", loss.center_variance()},
                                                                    {"size_variance", loss.size_variance()}}));
    return AddMean(OpKind::kMultiboxLoss, {prediction_, matched[0], matched[1]},
                   {{"negative_ratio", loss.negative_ratio()}, {"location_weight", loss.location_weight()}});
  }

  absl::Status AddElementLoss() {
    const auto [op, attributes] = ElementLoss(spec_);
    std::vector<ValueId> inputs = {prediction_, graph_->AddInput("targets", {DType::kF32, shape()})};
    if (spec_.has_sigmoid_cross_entropy()) {
      AMPD_RETURN_IF_ERROR(AppendWeights(spec_.sigmoid_cross_entropy().pos_weight(), "pos_weight", &inputs));
    }
    return AddMean(op, inputs, attributes);
  }

  // A loss that weighs every sample alike.
  absl::Status AddMean(OpKind op, const std::vector<ValueId>& inputs, const ir::Attributes& attributes) {
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> losses, Emit(op, inputs, attributes));
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> mean, Emit(OpKind::kReduceMean, {losses[0]}, {}));
    graph_->outputs = {{"losses", losses[0]}, {"loss", mean[0]}};
    return absl::OkStatus();
  }

  absl::Status AddMetrics() {
    const auto add = [&](const char* output, OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes) {
      auto values = Emit(op, std::move(inputs), std::move(attributes));
      if (values.ok()) graph_->outputs[output] = (*values)[0];
      return values.status();
    };
    const int64_t classes = shape().back();
    AMPD_RETURN_IF_ERROR(add("correct", OpKind::kArgmaxEqual, {prediction_, labels_}, Ignoring()));
    ir::Attributes counted = Ignoring();
    counted.Set("classes", classes);
    AMPD_RETURN_IF_ERROR(add("counted", OpKind::kLabelCounts, {labels_}, counted));
    if (classes <= kTopClasses) return absl::OkStatus();
    ir::Attributes top = Ignoring();
    top.Set("k", kTopClasses);
    return add("top5", OpKind::kTopKEqual, {prediction_, labels_}, top);
  }

  absl::StatusOr<std::vector<ValueId>> Emit(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes,
                                            const std::string& suffix = "") {
    return ops::Emit(graph_, {.op = op,
                              .name = absl::StrCat("loss.", ir::OpName(op), suffix),
                              .inputs = std::move(inputs),
                              .attributes = std::move(attributes),
                              .stage = ir::Stage::kLoss});
  }

  const v1::LossSpec& spec_;
  const SampleInfo& sample_;
  const bool training_;
  ValueId prediction_;
  const ValueId lengths_;
  ir::Graph* graph_;
  ValueId labels_ = -1;
};

// One loss of several, whose target is a value of the graph.
class TermBuilder {
 public:
  TermBuilder(const v1::LossSpec& spec, const std::string& name, const SampleInfo& sample, ValueId prediction,
              ValueId target, ir::Graph* graph)
      : spec_(spec), name_(name), sample_(sample), prediction_(prediction), target_(target), graph_(graph) {}

  absl::StatusOr<ValueId> Build() {
    if (spec_.has_ctc() || spec_.has_multibox()) return Wrong("is not supported in phases yet");
    const bool hard = graph_->type(target_).dtype == DType::kI32;
    if (hard != (spec_.has_softmax_cross_entropy() && hard)) return Wrong("takes no class labels");
    AMPD_RETURN_IF_ERROR(hard ? CheckLabels() : CheckTarget());
    AMPD_ASSIGN_OR_RETURN(const ValueId weights, Weights());
    std::vector<ValueId> inputs = {prediction_, target_};
    if (weights >= 0) inputs.push_back(weights);
    auto [op, attributes] = ElementLoss(spec_);
    if (spec_.has_softmax_cross_entropy()) {
      op = hard ? OpKind::kSoftmaxCrossEntropy : OpKind::kSoftCrossEntropy;
      const v1::SoftmaxCrossEntropyLoss& loss = spec_.softmax_cross_entropy();
      if (loss.label_smoothing() > 0) attributes.Set("smoothing", loss.label_smoothing());
      if (hard && loss.has_ignore_index()) attributes.Set("ignore_index", int64_t{loss.ignore_index()});
    }
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> losses, Emit(op, inputs, attributes));
    AMPD_ASSIGN_OR_RETURN(const std::vector<ValueId> mean,
                          hard ? Emit(OpKind::kNormalizedSum, losses, {}) : Emit(OpKind::kReduceMean, {losses[0]}, {}));
    return mean[0];
  }

 private:
  const Shape& shape() const { return graph_->type(prediction_).shape; }

  absl::Status Wrong(const std::string& what) const {
    const auto* field =
        spec_.GetReflection()->GetOneofFieldDescriptor(spec_, v1::LossSpec::descriptor()->FindOneofByName("kind"));
    return absl::InvalidArgumentError(
        absl::StrCat("[", field == nullptr ? "loss" : field->name(), "] ", what, ", node ", name_));
  }

  absl::Status CheckLabels() const {
    const Shape& labels = graph_->type(target_).shape;
    if (shape().size() != labels.size() + 1 || !std::equal(labels.begin(), labels.end(), shape().begin())) {
      return Wrong(absl::StrCat("needs classes behind ", ShapeString(labels), ", the labels' shape, has ",
                                ShapeString(shape())));
    }
    const int64_t classes = CountedClasses(spec_, sample_);
    if (shape().back() >= classes) return absl::OkStatus();
    return Wrong(absl::StrCat("has ", shape().back(), " outputs, the data has ", classes, " classes"));
  }

  absl::Status CheckTarget() const {
    const Shape& target = graph_->type(target_).shape;
    if (target == shape()) return absl::OkStatus();
    return Wrong(absl::StrCat("is of ", ShapeString(shape()), " against ", ShapeString(target)));
  }

  absl::StatusOr<ValueId> Weights() const {
    const auto& weights = spec_.has_softmax_cross_entropy() ? spec_.softmax_cross_entropy().class_weights()
                                                            : spec_.sigmoid_cross_entropy().pos_weight();
    if (weights.empty()) return -1;
    if (weights.size() != shape().back()) {
      return Wrong(absl::StrCat("has ", weights.size(), " weights for ", shape().back(), " outputs"));
    }
    auto tensor = std::make_shared<Tensor>(DType::kF32, Shape{weights.size()});
    std::copy(weights.begin(), weights.end(), tensor->as<float>().begin());
    return graph_->AddConstant(absl::StrCat(name_, ".weights"), std::move(tensor));
  }

  absl::StatusOr<std::vector<ValueId>> Emit(OpKind op, std::vector<ValueId> inputs, ir::Attributes attributes) {
    return ops::Emit(graph_, {.op = op,
                              .name = absl::StrCat(name_, ".", ir::OpName(op)),
                              .inputs = std::move(inputs),
                              .attributes = std::move(attributes),
                              .stage = ir::Stage::kLoss});
  }

  const v1::LossSpec& spec_;
  const std::string& name_;
  const SampleInfo& sample_;
  const ValueId prediction_;
  const ValueId target_;
  ir::Graph* graph_;
};

}  // namespace

absl::Status AddLoss(const v1::LossSpec& spec, const SampleInfo& sample, bool training, const LayerOutput& prediction,
                     ir::Graph* graph) {
  return LossBuilder(spec, sample, training, prediction, graph).Build();
}

absl::StatusOr<ValueId> AddLossTerm(const v1::LossSpec& spec, const std::string& name, const SampleInfo& sample,
                                    ValueId prediction, ValueId target, ir::Graph* graph) {
  return TermBuilder(spec, name, sample, prediction, target, graph).Build();
}

}  // namespace ampd::models
