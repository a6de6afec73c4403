// Which numbers of a forward graph integers are made of: ids, lengths and positions, which no mode may round.
#ifndef AMPD_ENGINE_PASSES_EXACT_NUMBERS_H_
#define AMPD_ENGINE_PASSES_EXACT_NUMBERS_H_

#include <vector>

#include "engine/ir/graph.h"

namespace ampd::passes {

// By value of an f32 forward graph, whether it is a float that has to stay f32: integers are made of it (a cast to i32,
// i64 or u8), directly or through ops of any class but ALLOW, whose products are rounded by design. So has what a
// comparison reads, or a cast to bool, where all of it follows from samples, constants and integers alone: whether
// token 257 is token 256. Comparisons of activations follow from trained numbers, and stay with their layer's dtype.
std::vector<bool> FindExactNumbers(const ir::Graph& forward);

}  // namespace ampd::passes

#endif  // AMPD_ENGINE_PASSES_EXACT_NUMBERS_H_
