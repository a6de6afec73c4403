#include "proto/onnx/external_data.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/spec/names.h"

namespace ampd {
namespace {

absl::Status Bad(const ::onnx::TensorProto& tensor, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("[onnx] tensor ", Quoted(tensor.name()), " ", what));
}

// No file system takes a longer path.
constexpr size_t kLongestLocation = 4096;
// FunctionProto.attribute_proto, of ONNX 1.13: default values of attributes.
constexpr int kDefaultsOfFunction = 11;

// Whether a location stays in the model's folder, as far as its text tells.
bool IsWithin(absl::string_view location) {
  if (location.empty() || location.size() > kLongestLocation || location[0] == '/') return false;
  if (location.find('\0') != absl::string_view::npos) return false;
  for (const absl::string_view part : absl::StrSplit(location, '/')) {
    if (part == "..") return false;
  }
  return true;
}

// Digits alone; SimpleAtoi would take a sign and spaces.
bool ParseNumber(absl::string_view text, int64_t* number) {
  const bool digits =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits && absl::SimpleAtoi(text, number);
}

class Taker {
 public:
  Taker(int64_t most_bytes, const IsNeeded& needed, const ReadPart& read)
      : left_(most_bytes), needed_(needed), read_(read) {}

  bool found() const { return found_; }

  absl::Status Model(::onnx::ModelProto* model) {
    if (model->has_graph()) {
      if (absl::Status status = Graph(needed_, model->mutable_graph()); !status.ok()) return status;
    }
    for (::onnx::FunctionProto& function : *model->mutable_functions()) {
      if (absl::Status status = Nodes(function.mutable_node()); !status.ok()) return status;
      if (absl::Status status = Defaults(&function); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  // Not known to older messages, which keep them as bytes.
  absl::Status Defaults(::onnx::FunctionProto* function) {
    google::protobuf::UnknownFieldSet* fields = function->mutable_unknown_fields();
    for (int i = 0; i < fields->field_count(); ++i) {
      google::protobuf::UnknownField* field = fields->mutable_field(i);
      if (field->number() != kDefaultsOfFunction) continue;
      if (field->type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
      ::onnx::AttributeProto attribute;
      if (!attribute.ParseFromString(field->length_delimited())) continue;  // Who reads it refuses it.
      const bool before = std::exchange(found_, false);
      const absl::Status status = Attribute(&attribute);
      if (found_) *field->mutable_length_delimited() = attribute.SerializeAsString();
      found_ = found_ || before;
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // As deep as the parser takes messages within messages.
  absl::Status Graph(const IsNeeded& needed, ::onnx::GraphProto* graph) {  // NOLINT(misc-no-recursion)
    for (::onnx::TensorProto& tensor : *graph->mutable_initializer()) {
      if (needed != nullptr && !needed(tensor.name())) continue;
      if (absl::Status status = Tensor(&tensor); !status.ok()) return status;
    }
    return Nodes(graph->mutable_node());
  }

  absl::Status Nodes(google::protobuf::RepeatedPtrField<::onnx::NodeProto>* nodes) {  // NOLINT(misc-no-recursion)
    for (::onnx::NodeProto& node : *nodes) {
      for (::onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (absl::Status status = Attribute(&attribute); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Attribute(::onnx::AttributeProto* attribute) {  // NOLINT(misc-no-recursion)
    if (attribute->has_t()) {
      if (absl::Status status = Tensor(attribute->mutable_t()); !status.ok()) return status;
    }
    for (::onnx::TensorProto& tensor : *attribute->mutable_tensors()) {
      if (absl::Status status = Tensor(&tensor); !status.ok()) return status;
    }
    if (attribute->has_g()) {
      if (absl::Status status = Graph(nullptr, attribute->mutable_g()); !status.ok()) return status;
    }
    for (::onnx::GraphProto& graph : *attribute->mutable_graphs()) {
      if (absl::Status status = Graph(nullptr, &graph); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Tensor(::onnx::TensorProto* tensor) {
    if (tensor->data_location() != ::onnx::TensorProto::EXTERNAL) return absl::OkStatus();
    absl::StatusOr<ExternalPart> part = PartOf(*tensor);
    if (!part.ok()) return part.status();
    absl::StatusOr<std::string> bytes = read_(*part);
    if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(),
                          absl::StrCat("[onnx] tensor ", Quoted(tensor->name()), ": ", bytes.status().message()));
    }
    left_ -= static_cast<int64_t>(bytes->size());
    found_ = true;
    tensor->set_raw_data(*std::move(bytes));
    tensor->clear_external_data();
    tensor->clear_data_location();
    return absl::OkStatus();
  }

  absl::StatusOr<ExternalPart> PartOf(const ::onnx::TensorProto& tensor) const {
    ExternalPart part;
    part.most_bytes = left_;
    for (const ::onnx::StringStringEntryProto& entry : tensor.external_data()) {
      int64_t number = 0;
      if (entry.key() == "location") part.location = entry.value();
      if (entry.key() != "offset" && entry.key() != "length") continue;
      if (!ParseNumber(entry.value(), &number)) {
        return Bad(tensor, absl::StrCat("lies elsewhere, with ", entry.key(), " ", Quoted(entry.value())));
      }
      if (entry.key() == "offset") {
        part.offset = number;
      } else {
        part.length = number;
      }
    }
    if (IsWithin(part.location)) return part;
    return Bad(tensor, absl::StrCat("lies in ", Quoted(part.location), ", which is no path within the model's folder"));
  }

  int64_t left_;
  const IsNeeded& needed_;
  const ReadPart& read_;
  bool found_ = false;
};

bool Parse(const std::string& bytes, ::onnx::ModelProto* model) {
  if (bytes.size() > static_cast<size_t>(kMostOnnxBytes)) return false;
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  return model->ParseFromCodedStream(&stream) && stream.ConsumedEntireMessage();
}

}  // namespace

absl::StatusOr<int64_t> ExternalPart::LengthWithin(int64_t size) const {
  const int64_t rest = size - offset;
  const int64_t bytes = length.value_or(rest);
  if (rest < 0 || bytes > rest) {
    return absl::DataLossError(absl::StrCat(Quoted(location), " ends at byte ", size, ", before ", length.value_or(0),
                                            " bytes from byte ", offset));
  }
  if (bytes <= most_bytes) return bytes;
  return absl::OutOfRangeError(absl::StrCat(Quoted(location), ": ", bytes, " bytes, where the model may have ",
                                            most_bytes, " more: at most ", kMostOnnxBytes, " in all"));
}

absl::StatusOr<bool> TakeExternalData(int64_t model_bytes, const IsNeeded& needed, const ReadPart& read,
                                      ::onnx::ModelProto* model) {
  Taker taker(kMostOnnxBytes - model_bytes, needed, read);
  if (absl::Status status = taker.Model(model); !status.ok()) return status;
  return taker.found();
}

absl::StatusOr<std::optional<std::string>> JoinExternalData(std::string bytes, const ReadPart& read) {
  ::onnx::ModelProto model;
  if (!Parse(bytes, &model)) return std::nullopt;
  const auto model_bytes = static_cast<int64_t>(bytes.size());
  std::string().swap(bytes);
  const absl::StatusOr<bool> found = TakeExternalData(model_bytes, nullptr, read, &model);
  if (!found.ok()) return found.status();
  if (!*found) return std::nullopt;
  const size_t size = model.ByteSizeLong();
  if (size > static_cast<size_t>(kMostOnnxBytes)) {
    return absl::OutOfRangeError(absl::StrCat("[onnx] ", size, " bytes with what lies in other files, at most ",
                                              kMostOnnxBytes, " can be read"));
  }
  std::string joined;
  joined.reserve(size);
  {
    google::protobuf::io::StringOutputStream stream(&joined);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!model.SerializeToCodedStream(&coded)) return absl::InternalError("[onnx] the model cannot be written");
  }
  return joined;
}

}  // namespace ampd
