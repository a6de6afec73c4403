// Whether this program runs under a sanitizer, which maps terabytes, and at its end traces itself.
#ifndef AMPD_SERVER_LAUNCH_SANITIZED_H_
#define AMPD_SERVER_LAUNCH_SANITIZED_H_

namespace ampd {

// The build tells: one does without the compiler's own macro.
#if defined(AMPD_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ampd

#endif  // AMPD_SERVER_LAUNCH_SANITIZED_H_
