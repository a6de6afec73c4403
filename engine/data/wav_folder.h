// Datasets of spoken text: a folder of wav files with transcripts.
#ifndef AMPD_ENGINE_DATA_WAV_FOLDER_H_
#define AMPD_ENGINE_DATA_WAV_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"
#include "engine/data/sample_cache.h"

namespace ampd::data {

// Samples are the files that the spec takes, in the order of their names' bytes, with a `limit` the first ones of each
// transcript (class_shares.h): [frames, mels] of
// engine/data/log_mel.h, with lengths; labels are those of the transcripts (engine/data/transcripts.h), label_count as
// many as the longest has, with label_lengths. All sounds are of one sample rate. Headers are read here, which tell the
// lengths; a spectrogram is computed when it is read, and kept, without padding, in `cache`, which may be nullptr.
//
// A file that cannot be read as sound is damaged: it counts as a sample (as long as the longest whole one, where its
// header tells no length), and reading it is DATA_LOSS naming the file, for `max_corrupt_ratio` of the samples to be
// left out by who reads them. Errors as OpenDataset, also INVALID_ARGUMENT for transcripts with characters that are not
// in the alphabet and files of another sample rate than the first; NOT_FOUND for a file without a transcript; `limit` 0
// is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenWavFolder(const v1::WavFolderDataset& spec,
                                                       absl::Span<const std::string> roots, int64_t limit,
                                                       double max_corrupt_ratio, std::shared_ptr<SampleCache> cache);

// What OpenWavFolder(...)->info() would be; its errors.
absl::StatusOr<DatasetInfo> DescribeWavFolder(const v1::WavFolderDataset& spec, absl::Span<const std::string> roots,
                                              int64_t limit, double max_corrupt_ratio);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_WAV_FOLDER_H_
