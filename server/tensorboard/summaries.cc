#include "server/tensorboard/summaries.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ampd {
namespace {

using tensorboard::Event;

absl::Time TimeOf(const v1::JobEvent& event) {
  return absl::FromUnixSeconds(event.time().seconds()) + absl::Nanoseconds(event.time().nanos());
}

Event At(const v1::JobEvent& event, int64_t step) {
  Event result;
  result.set_wall_time(absl::ToDoubleSeconds(TimeOf(event) - absl::UnixEpoch()));
  result.set_step(step);
  return result;
}

void AddScalar(const std::string& tag, double value, Event* event) {
  tensorboard::Summary::Value* scalar = event->mutable_summary()->add_value();
  scalar->set_tag(tag);
  scalar->set_simple_value(static_cast<float>(value));
}

void AddText(const std::string& tag, const std::string& text, Event* event) {
  tensorboard::Summary::Value* value = event->mutable_summary()->add_value();
  value->set_tag(tag);
  value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  tensorboard::TensorProto* tensor = value->mutable_tensor();
  tensor->set_dtype(tensorboard::DT_STRING);
  tensor->mutable_tensor_shape()->add_dim()->set_size(1);
  tensor->add_string_val(text);
}

// A block of Markdown, which TensorBoard renders, that shows `text` as it is: fenced by more backticks than it holds.
std::string Verbatim(const std::string& text) {
  size_t longest = 2, run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return absl::StrCat(fence, "\n", text, "\n", fence);
}

Event OfSpec(const v1::JobEvent& event, const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(spec, &json, options).ok()) json = "(no text)";
  Event result = At(event, 0);
  AddText("job", Verbatim(json), &result);
  return result;
}

Event OfReport(const v1::JobEvent& event) {
  const v1::StepReport& report = event.step();
  Event result = At(event, report.last_step());
  for (const v1::PhaseReport& phase : report.phases()) {
    const std::string head = report.phases_size() == 1 ? "train/" : absl::StrCat("train/", phase.name(), "/");
    AddScalar(absl::StrCat(head, "loss"), phase.loss(), &result);
    AddScalar(absl::StrCat(head, "loss_scale"), phase.loss_scale(), &result);
    AddScalar(absl::StrCat(head, "learning_rate"), phase.learning_rate(), &result);
    AddScalar(absl::StrCat(head, "gradient_norm"), phase.gradient_norm(), &result);
    AddScalar(absl::StrCat(head, "steps_skipped"), static_cast<double>(phase.steps_skipped()), &result);
  }
  AddScalar("speed/samples_per_second", report.samples_per_second(), &result);
  AddScalar("speed/input_wait_seconds", report.input_wait_seconds(), &result);
  if (report.has_step_seconds()) AddScalar("speed/step_seconds", report.step_seconds(), &result);
  if (report.has_model_flops_utilization()) {
    AddScalar("speed/model_flops_utilization", report.model_flops_utilization(), &result);
  }
  return result;
}

Event OfEvaluation(const v1::JobEvent& event) {
  Event result = At(event, event.evaluation().step());
  for (const auto& [name, value] : event.evaluation().metrics()) {
    AddScalar(absl::StrCat("eval/", name), value, &result);
  }
  return result;
}

void AddHistogram(const v1::TensorDiagnostics& tensor, Event* event) {
  if (tensor.exponent_counts().empty()) return;
  tensorboard::Summary::Value* value = event->mutable_summary()->add_value();
  value->set_tag(absl::StrCat("gradient_exponents/", tensor.tensor()));
  tensorboard::HistogramProto* histogram = value->mutable_histo();
  double sum = 0, squares = 0, count = 0;
  // A reader takes the first bucket to begin at the first limit, hence an empty one before the values.
  histogram->add_bucket_limit(tensor.first_exponent());
  histogram->add_bucket(0);
  for (int i = 0; i < tensor.exponent_counts_size(); ++i) {
    const double exponent = tensor.first_exponent() + i;
    const double here = static_cast<double>(tensor.exponent_counts(i));
    histogram->add_bucket_limit(exponent + 1);
    histogram->add_bucket(here);
    count += here;
    sum += exponent * here;
    squares += exponent * exponent * here;
  }
  histogram->set_min(tensor.first_exponent());
  histogram->set_max(tensor.first_exponent() + tensor.exponent_counts_size());
  histogram->set_num(count);
  histogram->set_sum(sum);
  histogram->set_sum_squares(squares);
}

Event OfDiagnostics(const v1::JobEvent& event) {
  const v1::GradientDiagnostics& diagnostics = event.gradient_diagnostics();
  Event result = At(event, diagnostics.step());
  double nonzero = 0, unscaled = 0, scaled = 0;
  for (const v1::TensorDiagnostics& tensor : diagnostics.tensors()) {
    AddHistogram(tensor, &result);
    nonzero += static_cast<double>(tensor.nonzero());
    unscaled += static_cast<double>(tensor.nonzero()) * tensor.flushed_unscaled();
    scaled += static_cast<double>(tensor.nonzero()) * tensor.flushed_scaled();
  }
  if (nonzero > 0) {
    AddScalar("gradients/flushed_unscaled", unscaled / nonzero, &result);
    AddScalar("gradients/flushed_scaled", scaled / nonzero, &result);
  }
  return result;
}

// Pictures of one series stand under one tag: "samples" for "samples-000000500.png".
std::string ImageTag(absl::string_view name) {
  if (absl::EndsWith(name, ".png")) name.remove_suffix(4);
  while (!name.empty() && absl::ascii_isdigit(static_cast<unsigned char>(name.back()))) name.remove_suffix(1);
  if (absl::EndsWith(name, "-")) name.remove_suffix(1);
  return name.empty() ? "image" : std::string(name);
}

uint32_t BigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// False for what does not begin as a PNG file does.
bool AddImage(const std::string& tag, std::string png, Event* event) {
  // The signature, then the header's length and name, width, height, depth and colour type.
  static constexpr absl::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
  constexpr uint32_t kMaxSide = 1 << 20;
  if (png.size() < 33 || !absl::StartsWith(png, kSignature) || png.compare(12, 4, "IHDR") != 0) return false;
  const absl::string_view header(png);
  const uint32_t width = BigEndian(header.substr(16, 4));
  const uint32_t height = BigEndian(header.substr(20, 4));
  if (width > kMaxSide || height > kMaxSide) return false;
  tensorboard::Summary::Value* value = event->mutable_summary()->add_value();
  value->set_tag(tag);
  value->mutable_image()->set_width(static_cast<int32_t>(width));
  value->mutable_image()->set_height(static_cast<int32_t>(height));
  // Types 0 and 4 are grayscale; TensorBoard counts channels.
  static constexpr int kChannels[] = {1, 0, 3, 3, 2, 0, 4};
  const auto type = static_cast<uint8_t>(png[25]);
  value->mutable_image()->set_colorspace(type < 7 ? kChannels[type] : 3);
  value->mutable_image()->set_encoded_image_string(std::move(png));
  return true;
}

Event OfText(const v1::JobEvent& event) {
  const v1::TextSample& sample = event.text_sample();
  Event result = At(event, sample.step());
  AddText("samples", Verbatim(absl::StrCat(sample.prompt(), sample.text())), &result);
  return result;
}

Event OfRewound(const v1::JobEvent& event) {
  Event result = At(event, event.rewound().to_step() + 1);
  result.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return result;
}

}  // namespace

void Summaries::AddHeldReport(std::vector<Event>* events) {
  if (!held_.has_step()) return;
  last_report_ = TimeOf(held_);
  events->push_back(OfReport(held_));
  held_.Clear();
}

std::vector<Event> Summaries::Of(const v1::JobEvent& event) {
  std::vector<Event> events;
  if (event.first_sequence() == 1) events.push_back(OfSpec(event, spec_));
  if (event.has_step()) {
    held_ = event;
    if (TimeOf(event) - last_report_ >= report_interval_) AddHeldReport(&events);
    return events;
  }
  AddHeldReport(&events);
  switch (event.payload_case()) {
    case v1::JobEvent::kEvaluation:
      events.push_back(OfEvaluation(event));
      break;
    case v1::JobEvent::kGradientDiagnostics:
      events.push_back(OfDiagnostics(event));
      break;
    case v1::JobEvent::kTextSample:
      events.push_back(OfText(event));
      break;
    case v1::JobEvent::kRewound:
      events.push_back(OfRewound(event));
      break;
    case v1::JobEvent::kArtifact: {
      if (event.artifact().content_type() != "image/png") break;
      absl::StatusOr<std::string> png = read_artifact_(event.artifact().name());
      Event image = At(event, event.artifact().step());
      if (png.ok() && AddImage(ImageTag(event.artifact().name()), *std::move(png), &image)) events.push_back(image);
      break;
    }
    default:
      break;
  }
  return events;
}

}  // namespace ampd
