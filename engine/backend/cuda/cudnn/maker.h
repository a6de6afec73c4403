// Internal: how cuDNN's descriptors are made.
#ifndef AMPD_ENGINE_BACKEND_CUDA_CUDNN_MAKER_H_
#define AMPD_ENGINE_BACKEND_CUDA_CUDNN_MAKER_H_

#include <string>
#include <utility>

#include "engine/backend/cuda/cudnn/graph.h"
#include "engine/core/status.h"

namespace ampd::cuda::cudnn {

// Not finished.
absl::StatusOr<Descriptor> NewDescriptor(cudnnBackendDescriptorType_t type, const std::string& what);

// Makes a descriptor, collects its attributes, and finishes it; after an error the rest is skipped.
class Maker {
 public:
  Maker(cudnnBackendDescriptorType_t type, std::string what) : what_(std::move(what)) {
    absl::StatusOr<Descriptor> descriptor = NewDescriptor(type, what_);
    status_ = descriptor.status();
    if (status_.ok()) descriptor_ = *std::move(descriptor);
  }

  template <typename T>
  Maker& Set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, absl::Span<const T> values) {
    if (!status_.ok()) return *this;
    status_ = ToStatus(cudnnBackendSetAttribute(descriptor_.get(), attribute, type, static_cast<int64_t>(values.size()),
                                                values.data()),
                       what_);
    return *this;
  }
  template <typename T>
  Maker& Set(cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type, const T& value) {
    return Set(attribute, type, absl::Span<const T>(&value, 1));
  }
  Maker& Set(cudnnBackendAttributeName_t attribute, absl::Span<const int64_t> values) {
    return Set(attribute, CUDNN_TYPE_INT64, values);
  }
  Maker& Set(cudnnBackendAttributeName_t attribute, const Descriptor& part) {
    return Set(attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, part.get());
  }
  absl::StatusOr<Descriptor> Finish() {
    if (status_.ok()) status_ = ToStatus(cudnnBackendFinalize(descriptor_.get()), what_);
    AMPD_RETURN_IF_ERROR(status_);
    return descriptor_;
  }

 private:
  std::string what_;
  absl::Status status_;
  Descriptor descriptor_;
};

}  // namespace ampd::cuda::cudnn

#endif  // AMPD_ENGINE_BACKEND_CUDA_CUDNN_MAKER_H_
