// Splits loops over OpenMP threads in a fixed way, so that equal thread counts give equal bits.
#ifndef AMPD_ENGINE_BACKEND_CPU_PARALLEL_H_
#define AMPD_ENGINE_BACKEND_CPU_PARALLEL_H_

#include <algorithm>
#include <cstdint>

// Compiles a function once per instruction set and picks at load time. Results do not depend on the choice: nothing is
// contracted or reassociated. Sanitizers do not run in the resolvers that this needs.
#if defined(__x86_64__) && !defined(AMPD_SANITIZED)
#define AMPD_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define AMPD_CPU_CLONES
#endif

namespace ampd::cpu {

// Elements below which waking another thread costs more than it saves, for one cheap operation an element.
inline constexpr int64_t kMinElementsPerThread = 32768;

// How many of `threads` to use for `work` units when each must get at least `min_work`.
inline int PartsFor(int threads, int64_t work, int64_t min_work) {
  return static_cast<int>(std::clamp<int64_t>(work / std::max<int64_t>(min_work, 1), 1, std::max(threads, 1)));
}

// body(part) for part = 0..parts-1, each on its own thread; serial for one.
template <typename Body>
void ParallelParts(int parts, const Body& body) {
  if (parts <= 1) {
    body(0);
    return;
  }
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) body(part);
}

// Begin of part `part` when 0..n-1 is cut into `parts` ranges of whole multiples of `unit`.
inline int64_t PartBegin(int64_t n, int64_t unit, int part, int parts) {
  const int64_t units = (n + unit - 1) / unit;
  return std::min(n, units * part / parts * unit);
}

// body(part, begin, end) over 0..n-1 in `parts` ranges that begin at multiples of `unit`.
template <typename Body>
void ParallelRange(int parts, int64_t n, int64_t unit, const Body& body) {
  ParallelParts(parts, [&](int part) {
    const int64_t begin = PartBegin(n, unit, part, parts);
    const int64_t end = PartBegin(n, unit, part + 1, parts);
    if (begin < end) body(part, begin, end);
  });
}

}  // namespace ampd::cpu

#endif  // AMPD_ENGINE_BACKEND_CPU_PARALLEL_H_
