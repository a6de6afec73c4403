// Datasets of text: windows of a file of bytes or of token numbers, to be continued by the network.
#ifndef AMPD_ENGINE_DATA_TEXT_H_
#define AMPD_ENGINE_DATA_TEXT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Sample i holds the `sequence_length` bytes from place i * stride of the part that is used, as floats of whole numbers
// [sequence_length]; its labels are the bytes one place further on, so the last sample ends one byte before the part
// does. The part is [floor(begin n), floor(end n)) of a file of n bytes: parts that meet share no byte. 256 classes.
// The part is read into memory. Errors as OpenDataset: INVALID_ARGUMENT for a part that is shorter than a sample and
// its last label, and for a file that begins as NumPy's, a zip archive or gzip's; `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenText(const v1::TextDataset& spec, absl::Span<const std::string> roots,
                                                  int64_t limit);
absl::StatusOr<DatasetInfo> DescribeText(const v1::TextDataset& spec, absl::Span<const std::string> roots);

// The same over unsigned numbers of two bytes, little-endian; `vocabulary` classes. DATA_LOSS for a file of an odd
// number of bytes and for a token of the part at or above the vocabulary, which it names with its place in the file
// (DescribeTokens reads the first ones alone). INVALID_ARGUMENT for a file of 32 tokens or more of which every other
// one among the first 4,096 is 0, the others not all: it holds wider numbers.
absl::StatusOr<std::unique_ptr<Dataset>> OpenTokens(const v1::TokensDataset& spec, absl::Span<const std::string> roots,
                                                    int64_t limit);
absl::StatusOr<DatasetInfo> DescribeTokens(const v1::TokensDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_TEXT_H_
