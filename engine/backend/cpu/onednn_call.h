// Internal to the CPU backend: a oneDNN primitive with its arguments.
#ifndef AMPD_ENGINE_BACKEND_CPU_ONEDNN_CALL_H_
#define AMPD_ENGINE_BACKEND_CPU_ONEDNN_CALL_H_

#include <initializer_list>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace ampd::cpu {

// Shared by the kernels of one table.
struct OneDnn {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

// Running it allocates nothing here. One thread uses it at a time.
class OneDnnCall {
 public:
  OneDnnCall() = default;
  // `args`: DNNL_ARG_... and what lies there.
  OneDnnCall(const OneDnn& onednn, dnnl::primitive primitive,
             const std::vector<std::pair<int, dnnl::memory::desc>>& args);

  // Whether there is something to run: not so of one made by default.
  bool needed() const { return !args_.empty(); }

  // `data` in the order of the constructor's args. A failure of oneDNN is INTERNAL.
  absl::Status Run(const OneDnn& onednn, std::initializer_list<void*> data) const;

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> args_;
};

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_ONEDNN_CALL_H_
