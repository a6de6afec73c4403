// A job's training samples, as a device may keep them (runtime::StoredSamples).
#ifndef AMPD_ENGINE_TRAIN_STORED_SAMPLES_H_
#define AMPD_ENGINE_TRAIN_STORED_SAMPLES_H_

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/loader.h"
#include "engine/data/transform.h"
#include "engine/runtime/stored_samples.h"

namespace ampd::train {

// What makes of the samples that a training loader with these options chooses the batches that it reads, bit for bit,
// as the inputs that TensorOf() names. Borrows dataset and transform. UNIMPLEMENTED, with the reason, where that does
// not follow from what is stored alone: lengths, windows that a draw chooses, samples that may turn out damaged, labels
// to be spelled.
absl::StatusOr<runtime::StoredSamples> StoredSamplesOf(const data::Dataset& dataset, const data::Transform& transform,
                                                       const data::LoaderOptions& options);

}  // namespace ampd::train

#endif  // AMPD_ENGINE_TRAIN_STORED_SAMPLES_H_
