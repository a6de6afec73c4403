// What the daemon keeps of memory that it needs no more.
#ifndef AMPD_SERVER_MAIN_MEMORY_H_
#define AMPD_SERVER_MAIN_MEMORY_H_

namespace ampd {

// The allocator has an arena for every few threads, each of which keeps what was freed in it: a few will do. Before
// other threads start.
void LimitArenas();

// To be called every kMemoryPeriodMs by one thread. Gives back to the system what was freed, where that is much or the
// process has grown: the allocator by itself keeps it for good. Some milliseconds then, some microseconds else.
inline constexpr int kMemoryPeriodMs = 100;
void GiveBackMemory();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_MEMORY_H_
