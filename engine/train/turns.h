// Measurements that take their steps in turn, so that whatever else the machine does hits them alike.
#ifndef AMPD_ENGINE_TRAIN_TURNS_H_
#define AMPD_ENGINE_TRAIN_TURNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ampd/v1/event.pb.h"
#include "engine/runtime/memory.h"

namespace ampd::train {

// One mode. Called in the order of its functions; after an error of any of them Unload() alone. An error is the cell's
// (IsOfTheCell) or the job's.
class Contender {
 public:
  virtual ~Contender() = default;
  // Finds out what it takes, and takes nothing of it.
  virtual absl::Status Plan() = 0;
  // Of the memory that it computes in.
  virtual int64_t bytes() const = 0;
  virtual const runtime::Memory& memory() const = 0;
  virtual absl::Status Load() = 0;
  // The next step, or a few.
  virtual absl::Status Advance() = 0;
  virtual bool done() const = 0;
  // Writes the figures into `cell`.
  virtual absl::Status Finish(v1::BenchCell* cell) = 0;
  // Gives all memory back.
  virtual void Unload() = 0;
};

struct TurnOptions {
  // For messages, e.g. "batch 64".
  std::string what;
  // Asked before every step.
  std::function<bool()> stop;
  // Told after every step.
  std::function<void()> on_step;
  // Told what does not go as it should, in one line.
  std::function<absl::Status(const std::string&)> warn;
  // Whether memory is for one at a time, however much of it is free: the job shares its device, and was planned so.
  bool one_at_a_time = false;
};

// Measures `contenders`, the first of which is FP32's, and completes `cells`, of which each says already what it is of.
// All are loaded at once and take steps in turn where there is memory for that; else, and where they have to, one is
// measured after the other. A cell without figures has a failure. CANCELLED after a stop; other errors are the job's.
absl::Status MeasureInTurn(const std::vector<std::unique_ptr<Contender>>& contenders, const TurnOptions& options,
                           std::vector<v1::BenchCell>* cells);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_TURNS_H_
