// What the daemon keeps of memory that it needs no more.
#ifndef AMPD_SERVER_MAIN_MEMORY_H_
#define AMPD_SERVER_MAIN_MEMORY_H_

namespace ampd {

// The allocator has an arena for every few threads, each of which keeps what was freed in it: a few will do. Before
// other threads start.
void LimitArenas();

// Gives back to the system what was freed since the last call, where that is much: the allocator by itself keeps it for
// good. Some milliseconds. For one thread, now and then.
void GiveBackMemory();

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_MEMORY_H_
