#include "proto/onnx/external_data.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <onnx/onnx_pb.h>

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

// Whether a location stays in the model's folder, as far as its text tells.
bool IsWithin(absl::string_view location) {
  if (location.empty() || location[0] == '/' || location.find('\0') != absl::string_view::npos) return false;
  for (const absl::string_view part : absl::StrSplit(location, '/')) {
    if (part == "..") return false;
  }
  return true;
}

class Taker {
 public:
  Taker(int64_t most_bytes, const ReadPart& read) : left_(most_bytes), read_(read) {}

  bool found() const { return found_; }

  absl::Status Model(::onnx::ModelProto* model) {
    if (model->has_graph()) {
      if (absl::Status status = Graph(model->mutable_graph()); !status.ok()) return status;
    }
    for (::onnx::FunctionProto& function : *model->mutable_functions()) {
      if (absl::Status status = Nodes(function.mutable_node()); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  // As deep as the parser takes messages within messages.
  absl::Status Graph(::onnx::GraphProto* graph) {  // NOLINT(misc-no-recursion)
    for (::onnx::TensorProto& tensor : *graph->mutable_initializer()) {
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
      if (absl::Status status = Graph(attribute->mutable_g()); !status.ok()) return status;
    }
    for (::onnx::GraphProto& graph : *attribute->mutable_graphs()) {
      if (absl::Status status = Graph(&graph); !status.ok()) return status;
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
      if (!absl::SimpleAtoi(entry.value(), &number) || number < 0) {
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
    return absl::DataLossError(absl::StrCat(location, ": ends at byte ", size, ", before ", bytes < 0 ? 0 : bytes,
                                            " bytes from byte ", offset));
  }
  if (bytes <= most_bytes) return bytes;
  return absl::OutOfRangeError(absl::StrCat(location, ": ", bytes, " bytes, where the model may have ", most_bytes,
                                            " more: at most ", kMostOnnxBytes, " in all"));
}

absl::StatusOr<bool> TakeExternalData(int64_t model_bytes, const ReadPart& read, ::onnx::ModelProto* model) {
  Taker taker(kMostOnnxBytes - model_bytes, read);
  if (absl::Status status = taker.Model(model); !status.ok()) return status;
  return taker.found();
}

absl::StatusOr<std::optional<std::string>> JoinExternalData(const std::string& bytes, const ReadPart& read) {
  ::onnx::ModelProto model;
  if (!Parse(bytes, &model)) return std::nullopt;
  const absl::StatusOr<bool> found = TakeExternalData(static_cast<int64_t>(bytes.size()), read, &model);
  if (!found.ok()) return found.status();
  if (!*found) return std::nullopt;
  if (model.ByteSizeLong() > static_cast<size_t>(kMostOnnxBytes)) {
    return absl::OutOfRangeError(absl::StrCat("[onnx] ", model.ByteSizeLong(),
                                              " bytes with what lies in other files, at ", "most ", kMostOnnxBytes,
                                              " can be read"));
  }
  std::string joined;
  {
    google::protobuf::io::StringOutputStream stream(&joined);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!model.SerializeToCodedStream(&coded)) return absl::InternalError("[onnx] the model cannot be written");
  }
  return joined;
}

}  // namespace ampd
