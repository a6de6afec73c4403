#include "engine/train/turns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "engine/train/available_memory.h"
#include "engine/train/bench_cell.h"
#include "engine/train/failure.h"

namespace ampd::train {
namespace {

// What all together may take of what is left; the rest is for what looks at gradients, and for others.
constexpr double kShareForAll = 0.7;

class Turns {
 public:
  Turns(const std::vector<std::unique_ptr<Contender>>& contenders, const TurnOptions& options,
        std::vector<v1::BenchCell>* cells)
      : contenders_(contenders), options_(options), cells_(*cells) {}

  absl::Status Run() {
    const size_t count = contenders_.size();
    double bytes = 0, available = 0;
    for (size_t i = 0; i < count; ++i) {
      AMPD_RETURN_IF_ERROR(Note(i, contenders_[i]->Plan()));
      if (failed(i)) continue;
      bytes += static_cast<double>(contenders_[i]->bytes());
      available = static_cast<double>(AvailableBytes(contenders_[i]->memory()));
    }
    if (!options_.one_at_a_time && bytes <= kShareForAll * available) return InTurn(0, count);
    const std::string why = options_.one_at_a_time
                                ? "the job shares its device, and was planned for one mode at a time"
                                : absl::StrCat("all modes together take ", static_cast<int64_t>(bytes),
                                               " bytes of memory, of ", static_cast<int64_t>(available), " available");
    AMPD_RETURN_IF_ERROR(options_.warn(absl::StrCat(options_.what, ": ", why,
                                                    ": they are measured one after the other, and what else the ",
                                                    "machine does need not hit them alike")));
    for (size_t i = 0; i < count; ++i) AMPD_RETURN_IF_ERROR(InTurn(i, i + 1));
    return absl::OkStatus();
  }

 private:
  bool failed(size_t i) const { return cells_[i].has_failure(); }
  bool running(size_t i) const { return !failed(i) && !contenders_[i]->done(); }

  // Keeps what the cell came to; the job's errors are returned.
  absl::Status Note(size_t i, const absl::Status& status) {
    if (status.ok() || !IsOfTheCell(status)) return status;
    *cells_[i].mutable_failure() = FailureOf(status);
    contenders_[i]->Unload();
    return absl::OkStatus();
  }

  absl::Status InTurn(size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      if (!failed(i)) AMPD_RETURN_IF_ERROR(Note(i, contenders_[i]->Load()));
    }
    // Each round begins with another, so that none always follows the same one.
    bool any = true;
    for (size_t round = 0; any; ++round) {
      any = false;
      for (size_t k = 0; k < end - first; ++k) {
        const size_t i = first + (round + k) % (end - first);
        if (!running(i)) continue;
        any = true;
        if (options_.stop()) return absl::CancelledError("stopped");
        AMPD_RETURN_IF_ERROR(Note(i, contenders_[i]->Advance()));
        options_.on_step();
      }
    }
    for (size_t i = first; i < end; ++i) {
      if (failed(i)) continue;
      AMPD_RETURN_IF_ERROR(contenders_[i]->Finish(&cells_[i]));
      contenders_[i]->Unload();
    }
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<Contender>>& contenders_;
  const TurnOptions& options_;
  std::vector<v1::BenchCell>& cells_;
};

}  // namespace

absl::Status MeasureInTurn(const std::vector<std::unique_ptr<Contender>>& contenders, const TurnOptions& options,
                           std::vector<v1::BenchCell>* cells) {
  AMPD_RETURN_IF_ERROR(Turns(contenders, options, cells).Run());
  FillRelations(cells);
  return absl::OkStatus();
}

}  // namespace ampd::train
