// Preloaded by the chaos test into daemon and workers. What the control file says, the C library does: the wall clock
// is off by so much, the disk that holds a folder is full. The file is mapped, so a change acts at once.
//
//   AMPD_CHAOS_CONTROL  the file: an int64, nanoseconds added to the wall clock; an int64, not 0 when the disk is full
//   AMPD_CHAOS_FOLDER   absolute path; only files beneath it have no room
//
// A full disk still takes what overwrites a file's own bytes. A longer write is cut short first, as by a file system
// that has some room left, and fails then.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

struct Control {
  volatile int64_t clock_ns;
  volatile int64_t full;
};

constexpr int64_t kSecond = 1'000'000'000;
constexpr ssize_t kLastBlock = 512;

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

const Control* MapControl() {
  static const Control kQuiet = {0, 0};
  const char* path = getenv("AMPD_CHAOS_CONTROL");
  const int fd = path == nullptr ? -1 : Next<decltype(open)>("open")(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return &kQuiet;
  void* memory = mmap(nullptr, sizeof(Control), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? &kQuiet : static_cast<const Control*>(memory);
}

const Control& TheControl() {
  static const Control* const control = MapControl();
  return *control;
}

int64_t Offset() { return TheControl().clock_ns; }
bool Full() { return TheControl().full != 0; }

bool Beneath(const char* path) {
  static const char* const folder = getenv("AMPD_CHAOS_FOLDER");
  return folder != nullptr && strncmp(path, folder, strlen(folder)) == 0;
}

bool BeneathDescriptor(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  char link[64];
  char path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  if (size < 0) return false;
  path[size] = '\0';
  return Beneath(path);
}

// How many bytes of a write at `offset` (-1: where the file stands) have room; -1: none.
ssize_t Room(int fd, size_t size, off_t offset) {
  if (!Full() || size == 0 || !BeneathDescriptor(fd)) return static_cast<ssize_t>(size);
  struct stat info;
  fstat(fd, &info);
  if (offset < 0) offset = (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? info.st_size : lseek(fd, 0, SEEK_CUR);
  const off_t own = info.st_size > offset ? info.st_size - offset : 0;
  if (static_cast<off_t>(size) <= own) return static_cast<ssize_t>(size);
  if (own > 0) return own;
  if (size > static_cast<size_t>(kLastBlock)) return static_cast<ssize_t>(size / 2);
  errno = ENOSPC;
  return -1;
}

void Add(timespec* time, int64_t nanos) {
  const int64_t total = time->tv_sec * kSecond + time->tv_nsec + nanos;
  time->tv_sec = total / kSecond;
  time->tv_nsec = total % kSecond;
}

int64_t Nanos(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

bool RefusesNew(const char* path, int flags) {
  if ((flags & O_CREAT) == 0 || !Full() || !Beneath(path) || access(path, F_OK) == 0) return false;
  errno = ENOSPC;
  return true;
}

mode_t ModeOf(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) Add(time, Offset());
  return result;
}

int gettimeofday(timeval* time, void*) {
  timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(timespec* out, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, out) == 0 ? base : 0;
}

// The kernel waits by the true clock. Which clock the condition goes by it does not tell: the one whose time is nearer.
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static auto* const next = Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  timespec monotonic;
  timespec wall;
  clock_gettime(CLOCK_MONOTONIC, &monotonic);
  clock_gettime(CLOCK_REALTIME, &wall);
  timespec wanted = *until;
  if (llabs(Nanos(wanted) - Nanos(wall)) < llabs(Nanos(wanted) - Nanos(monotonic))) Add(&wanted, -Offset());
  return next(condition, mutex, &wanted);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>("pthread_cond_clockwait");
  timespec wanted = *until;
  if (clock == CLOCK_REALTIME) Add(&wanted, -Offset());
  return next(condition, mutex, clock, &wanted);
}

// So wait Abseil's condition variables, and gRPC by them: uncorrected, with a clock that is an hour ahead the half
// second that calls have at the daemon's end, and whatever else has a time there, takes an hour more.
long syscall(long number, ...) {
  static auto* const next = Next<long(long, ...)>("syscall");
  long values[6];
  va_list arguments;
  va_start(arguments, number);
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  timespec wanted;
  if (number == SYS_futex && (values[1] & FUTEX_CLOCK_REALTIME) != 0 && values[3] != 0) {
    memcpy(&wanted, reinterpret_cast<const void*>(values[3]), sizeof(wanted));
    Add(&wanted, -Offset());
    values[3] = reinterpret_cast<long>(&wanted);
  }
  return next(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  const ssize_t room = Room(fd, size, -1);
  return room < 0 ? -1 : next(fd, bytes, static_cast<size_t>(room));
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  const ssize_t room = Room(fd, size, offset);
  return room < 0 ? -1 : next(fd, bytes, static_cast<size_t>(room), offset);
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return RefusesNew(path, flags) ? -1 : next(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open64");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return RefusesNew(path, flags) ? -1 : next(path, flags, mode);
}

int statvfs(const char* path, struct statvfs* info) {
  static auto* const next = Next<int(const char*, struct statvfs*)>("statvfs");
  const int result = next(path, info);
  if (result == 0 && Full() && Beneath(path)) info->f_bfree = info->f_bavail = 0;
  return result;
}

int mkdir(const char* path, mode_t mode) {
  static auto* const next = Next<int(const char*, mode_t)>("mkdir");
  return RefusesNew(path, O_CREAT) ? -1 : next(path, mode);
}

}  // extern "C"
