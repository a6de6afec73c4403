#include "engine/backend/cpu/library.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ampd {

CpuLibrary ThisCpuLibrary() {
  const dnnl_version_t& version = *dnnl_version();
  const char* isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  return {absl::StrCat(version.major, ".", version.minor, ".", version.patch),
          absl::AsciiStrToUpper(absl::StripPrefix(isa, "cpu_isa_"))};
}

}  // namespace ampd
