// What the CPU backend's products and convolutions come from; their bits depend on it.
#ifndef AMPD_ENGINE_BACKEND_CPU_LIBRARY_H_
#define AMPD_ENGINE_BACKEND_CPU_LIBRARY_H_

#include <string>

namespace ampd {

struct CpuLibrary {
  // Of the library that is loaded, e.g. "3.1.1".
  std::string onednn_version;
  // The instructions that it uses at most on this processor, by its name for them, e.g. "AVX2" or "AVX512_CORE_BF16".
  std::string instruction_set;
};

CpuLibrary ThisCpuLibrary();

}  // namespace ampd

#endif  // AMPD_ENGINE_BACKEND_CPU_LIBRARY_H_
