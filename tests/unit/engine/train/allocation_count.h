// Counts the calls of operator new in a test program that links allocation_count.cc.
#ifndef AMPD_TESTS_UNIT_ENGINE_TRAIN_ALLOCATION_COUNT_H_
#define AMPD_TESTS_UNIT_ENGINE_TRAIN_ALLOCATION_COUNT_H_

#include <cstdint>

namespace ampd::train {

// Since the program's start, on every thread, aligned ones included.
int64_t AllocationCount();

}  // namespace ampd::train

#endif  // AMPD_TESTS_UNIT_ENGINE_TRAIN_ALLOCATION_COUNT_H_
