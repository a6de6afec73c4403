// The mode of what is made for others to read, as the user wants it.
#ifndef AMPD_CLIENT_UMASK_H_
#define AMPD_CLIENT_UMASK_H_

#include <sys/stat.h>

namespace ampd::client {

// `mode` without what the process's umask takes away. For names that were made with mode 0600 or 0700 and get it later.
inline mode_t WithoutUmask(mode_t mode) {
  // It cannot be asked for, only set: what another thread makes meanwhile is its owner's alone.
  const mode_t mask = umask(077);
  umask(mask);
  return mode & ~mask;
}

}  // namespace ampd::client

#endif  // AMPD_CLIENT_UMASK_H_
