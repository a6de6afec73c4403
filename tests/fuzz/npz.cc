// A zip archive: its directory, the content of each member, and the dataset of its members x and y. Checksums are
// mended first in every second input, else no mutation gets behind them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <string>

#include "engine/data/byte_source.h"
#include "engine/data/zip.h"
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

namespace ampd::fuzz {
namespace {

std::shared_ptr<const data::InputFile> Open(const std::string& bytes) {
  const std::string path = Write("a.npz", bytes);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Check(fd >= 0, "cannot open " + path);
  return std::make_shared<const data::InputFile>(fd, "a.npz", static_cast<int64_t>(bytes.size()));
}

// All that the source gives, as far as 1 MiB.
std::string ReadAll(data::ByteSource& source) {
  std::string all(size_t{1} << 20, '\0');
  const auto n = source.Read(absl::MakeSpan(reinterpret_cast<uint8_t*>(all.data()), all.size()));
  CheckError(n.status());
  all.resize(n.ok() ? *n : 0);
  Check(all.size() <= source.MaxSize(), "more than the upper bound");
  return all;
}

// Writes the checksum of what each stored member holds into the central directory.
std::string WithChecksums(std::string bytes) {
  for (size_t at = bytes.find("PK\x01\x02"); at != std::string::npos; at = bytes.find("PK\x01\x02", at + 4)) {
    uint32_t compressed, header;
    if (at + 46 > bytes.size() || bytes[at + 10] != 0) continue;
    std::memcpy(&compressed, bytes.data() + at + 20, 4);
    std::memcpy(&header, bytes.data() + at + 42, 4);
    if (bytes.size() < 30 || header > bytes.size() - 30) continue;
    uint16_t name, extra;
    std::memcpy(&name, bytes.data() + header + 26, 2);
    std::memcpy(&extra, bytes.data() + header + 28, 2);
    const size_t begin = size_t{header} + 30 + name + extra;
    if (begin > bytes.size() || compressed > bytes.size() - begin) continue;
    const auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()) + begin, compressed));
    std::memcpy(bytes.data() + at + 16, &crc, 4);
  }
  return bytes;
}

void Read(const std::string& bytes) {
  const auto file = Open(bytes);
  const auto members = data::ReadZipDirectory(*file);
  CheckError(members.status());
  if (members.ok()) {
    for (const data::ZipMember& member : *members) {
      auto source = data::OpenZipMember(file, member);
      CheckError(source.status());
      if (source.ok()) ReadAll(**source);
    }
  }
  v1::DatasetSpec spec;
  spec.mutable_npy()->set_inputs("a.npz");
  spec.mutable_npy()->set_targets("a.npz");
  spec.mutable_npy()->set_inputs_key("x");
  spec.mutable_npy()->set_targets_key("y");
  ReadDataset(spec);
}

}  // namespace
}  // namespace ampd::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ampd::fuzz::Read(bytes);
  const std::string mended = ampd::fuzz::WithChecksums(bytes);
  if (mended != bytes) ampd::fuzz::Read(mended);
  return 0;
}
