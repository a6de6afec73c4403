// Of the descriptors that the process may have, what its parts may take.
#ifndef AMPD_SERVER_FILES_DESCRIPTORS_H_
#define AMPD_SERVER_FILES_DESCRIPTORS_H_

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace ampd {

// One in `divisor`, at least 16 and at most `most`; 256 where the limit is not known.
inline size_t ShareOfDescriptors(rlim_t divisor, rlim_t most) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / divisor, 16, most));
}

}  // namespace ampd

#endif  // AMPD_SERVER_FILES_DESCRIPTORS_H_
