// A job to be timed on synthetic batches: its spec, what a sample is, and a batch of them.
#ifndef AMPD_TESTS_BENCH_BENCH_JOB_H_
#define AMPD_TESTS_BENCH_BENCH_JOB_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/loader.h"
#include "engine/models/model.h"
#include "proto/spec/resolve.h"

namespace ampd::bench {

// The job file at `path`, in the precision mode `mode`, after `settings` ("train.batch_size=64").
absl::StatusOr<ResolvedJobSpec> ReadSpec(const std::string& path, const std::string& mode,
                                         const std::vector<std::string>& settings);

struct Sample {
  models::SampleInfo info;
  int64_t ids = 0;  // > 0: inputs are whole numbers below it
};

// INPUT: extents of a sample, "64,64,3"; "ids=1000:128": 128 whole numbers below 1000; "time=512:80": sequences of up
// to 512 steps of 80 features, each with a length. TARGET: "classes=10"; "classes=1000:128", a label for each of 128
// positions; "spelled=29:40", up to 40 labels to be spelled, of 29 classes the first of which is blank; "features=1".
// INVALID_ARGUMENT with the text that is none of these.
absl::StatusOr<Sample> ParseSample(absl::string_view input, absl::string_view target);

// `size` samples, the same in every run: floats in [-1, 1), labels and ids uniform, lengths at least half of the
// longest, the first of them the longest.
data::Batch DrawBatch(const Sample& sample, int64_t size);

}  // namespace ampd::bench

#endif  // AMPD_TESTS_BENCH_BENCH_JOB_H_
