// Comma-separated numbers (RFC 4180), plain or gzip-compressed.
#ifndef AMPD_ENGINE_DATA_CSV_H_
#define AMPD_ENGINE_DATA_CSV_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ampd/v1/data.pb.h"
#include "engine/data/byte_source.h"
#include "engine/data/dataset.h"

namespace ampd::data {

// Records of a text, one at a time. Fields may be quoted; then they may hold delimiters, line ends and doubled quotes.
// Lines end in LF or CR LF; empty ones are passed over, and so is UTF-8's byte order mark at the start. Not
// thread-safe.
class CsvReader {
 public:
  // `source` outlives it.
  CsvReader(ByteSource& source, char delimiter) : source_(source), delimiter_(delimiter) {}

  // The next record; false at the end. DATA_LOSS naming the line for a quote amid a field or never closed, a field over
  // 4,096 bytes, and a record of more than 2^20 fields; and for UTF-16.
  absl::StatusOr<bool> Next(std::vector<std::string>& fields);

  // Where the last record began, from 1.
  int64_t line() const { return record_line_; }

 private:
  // The next byte, or -1 at the end.
  absl::StatusOr<int> Take();
  absl::StatusOr<int> TakeFirst();
  absl::Status Bad(absl::string_view what) const;
  absl::Status Add(char c, std::string& field) const;
  absl::Status ReadQuoted(std::string& field);
  absl::StatusOr<char> ReadField(std::string& field);

  ByteSource& source_;
  const char delimiter_;
  std::vector<uint8_t> buffer_;
  size_t at_ = 0;
  int64_t line_ = 1;
  int64_t record_line_ = 0;
  bool started_ = false;
  // Taken too early; -2: none is.
  int pushed_back_ = -2;
};

// Inputs are floats [columns]; targets a class, or floats. Whether the first record names the columns: as
// CsvDataset.Header tells. Errors as OpenDataset; INVALID_ARGUMENT for columns that there are not, and for a first
// record that may be names or a sample; DATA_LOSS naming the line for what is no number and for records of different
// lengths. "nan", "inf" and what is beyond float32's range are values that are not finite. `limit` 0 is all.
absl::StatusOr<std::unique_ptr<Dataset>> OpenCsv(const v1::CsvDataset& spec, absl::Span<const std::string> roots,
                                                 int64_t limit);

// Reads the whole file, but keeps nothing of it.
absl::StatusOr<DatasetInfo> DescribeCsv(const v1::CsvDataset& spec, absl::Span<const std::string> roots);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_CSV_H_
