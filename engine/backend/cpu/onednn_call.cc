#include "engine/backend/cpu/onednn_call.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/core/status.h"

namespace ampd::cpu {
namespace {

using dnnl::memory;

absl::Status DnnlStatus(dnnl_status_t status, absl::string_view action) {
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(action, ": ", dnnl_status2str(status)));
}

// Sets a memory's address only where it changes: oneDNN clears the padding of blocked layouts every time.
absl::Status Bind(const memory& mem, void* data) {
  void* current = nullptr;
  AMPD_RETURN_IF_ERROR(DnnlStatus(dnnl_memory_get_data_handle(mem.get(), &current), "oneDNN memory"));
  if (current == data) return absl::OkStatus();
  return DnnlStatus(dnnl_memory_set_data_handle(mem.get(), data), "oneDNN memory");
}

}  // namespace

OneDnnCall::OneDnnCall(const OneDnn& onednn, dnnl::primitive primitive,
                       const std::vector<std::pair<int, memory::desc>>& args)
    : primitive_(std::move(primitive)) {
  memories_.reserve(args.size());
  for (const auto& [arg, desc] : args) {
    memories_.emplace_back(desc, onednn.engine, static_cast<void*>(nullptr));
    args_.push_back({arg, memories_.back().get()});
  }
}

absl::Status OneDnnCall::Run(const OneDnn& onednn, std::initializer_list<void*> data) const {
  size_t i = 0;
  for (void* pointer : data) AMPD_RETURN_IF_ERROR(Bind(memories_[i++], pointer));
  return DnnlStatus(
      dnnl_primitive_execute(primitive_.get(), onednn.stream.get(), static_cast<int>(args_.size()), args_.data()),
      "oneDNN execution");
}

}  // namespace ampd::cpu
