// Members of a zip archive (PKWARE's APPNOTE.TXT), as far as NumPy's .npz needs: stored or deflated, one disk, sizes
// below 4 GiB.
#ifndef AMPD_ENGINE_DATA_ZIP_H_
#define AMPD_ENGINE_DATA_ZIP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/byte_source.h"
#include "engine/data/input_file.h"

namespace ampd::data {

// An entry of the archive's central directory.
struct ZipMember {
  std::string name;
  uint16_t flags = 0;
  // 0 stored, 8 deflated.
  uint16_t method = 0;
  uint32_t crc32 = 0;
  int64_t compressed_size = 0;
  int64_t size = 0;
  int64_t header_offset = 0;
};

// The archive's members in its order. DATA_LOSS when it is damaged; UNIMPLEMENTED for zip64 and split archives.
absl::StatusOr<std::vector<ZipMember>> ReadZipDirectory(const InputFile& file);

// The member's content; reading to the end verifies size and checksum. Its name is "archive[member]". DATA_LOSS when
// the member is damaged; UNIMPLEMENTED when it is encrypted or compressed in another way.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenZipMember(std::shared_ptr<const InputFile> file,
                                                          const ZipMember& member);

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_ZIP_H_
