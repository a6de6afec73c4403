// A sweep for people.
#ifndef AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_
#define AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_

#include <string>

#include "ampd/v1/training_service.pb.h"

namespace ampd::client {

// What jobs of a sweep are ordered by.
enum class SweepOrder { kIndex, kStep, kLoss, kEvalLoss, kAccuracy };

// The best first: the most steps, the lowest loss, the highest accuracy. Jobs without that figure, or with NaN for it,
// come last; equal ones keep their order.
void SortSweep(SweepOrder order, v1::JobSweep* sweep);

struct SweepStyle {
  bool color = false;
  // Cuts long values, as a screen wants it.
  bool cuts = true;
};

// A table of the jobs, in their order: what each sets, its state and newest figures. Columns of values are headed by
// the last name of their path where that tells them apart.
std::string SweepText(const v1::JobSweep& sweep, const SweepStyle& style);

// "6 jobs: 1 RUNNING, 5 QUEUED".
std::string SweepCounts(const v1::JobSweep& sweep);

// "1 RUNNING, 5 QUEUED".
std::string SweepStates(const v1::SweepSummary& sweep);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_SWEEP_TEXT_H_
