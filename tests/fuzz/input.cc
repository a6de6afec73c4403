#include "tests/fuzz/input.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace ampd::fuzz {
namespace {

struct Removed {
  explicit Removed(std::string p) : path(std::move(p)) {}
  ~Removed() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  const std::string path;
};

std::string Make() {
  std::string path = (std::filesystem::temp_directory_path() / "ampd-fuzz-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) Fail("cannot make a folder like " + path);
  return path;
}

}  // namespace

void Fail(const std::string& what) {
  std::fprintf(stderr, "\nFAILED: %s\n", what.c_str());
  std::abort();
}

void CheckError(const absl::Status& status) {
  if (status.ok()) return;
  Check(!status.message().empty(), "an error without words");
  Check(!absl::IsInternal(status) && !absl::IsUnknown(status), status.ToString());
}

std::vector<std::string> Parts(const uint8_t* data, size_t size, size_t count) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < count) {
    uint32_t wanted = 0;
    const size_t head = std::min<size_t>(size, 4);
    for (size_t i = 0; i < head; ++i) wanted |= static_cast<uint32_t>(data[i]) << (8 * i);
    const size_t taken = std::min<size_t>(size - head, wanted);
    parts.emplace_back(reinterpret_cast<const char*>(data) + head, taken);
    data += head + taken;
    size -= head + taken;
  }
  parts.emplace_back(reinterpret_cast<const char*>(data), size);
  return parts;
}

const std::string& Folder() {
  static const Removed folder(Make());
  return folder.path;
}

std::string Write(const std::string& name, absl::string_view bytes) {
  const std::string path = Folder() + "/" + name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  Check(fd >= 0, "cannot write " + path);
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    Check(n > 0, "cannot write " + path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  close(fd);
  return path;
}

}  // namespace ampd::fuzz
