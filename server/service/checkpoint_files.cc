#include "server/service/checkpoint_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/core/status.h"

namespace ampd {
namespace {

constexpr char kManifest[] = "MANIFEST";
constexpr int64_t kMaxManifestBytes = 1 << 16;
constexpr int64_t kReadBytes = 1 << 20;

bool IsCheckpointName(absl::string_view name) {
  if (!absl::StartsWith(name, "step-") || name.size() < 6 || name.size() > 64) return false;
  const absl::string_view digits = name.substr(5);
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
}

UniqueFd OpenDirectory(int parent, const std::string& name) {
  return UniqueFd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

absl::StatusOr<CheckpointFile> OpenFile(int directory, const std::string& name) {
  CheckpointFile file{name, 0,
                      UniqueFd(openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  if (!file.fd.valid()) return absl::DataLossError(absl::StrCat(name, ": ", strerror(errno)));
  struct stat info {};
  if (fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::DataLossError(absl::StrCat(name, " is not a regular file"));
  }
  file.size = info.st_size;
  return file;
}

using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

std::string HexDigest(EVP_MD_CTX* context) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  EVP_DigestFinal_ex(context, reinterpret_cast<unsigned char*>(digest.data()), &size);
  return absl::BytesToHexString(absl::string_view(digest.data(), size));
}

absl::StatusOr<std::string> Sha256OfFile(const CheckpointFile& file) {
  const DigestContext context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (int64_t offset = 0; offset < file.size; offset += kReadBytes) {
    AMPD_ASSIGN_OR_RETURN(const std::string bytes, ReadChunk(file, offset, kReadBytes));
    EVP_DigestUpdate(context.get(), bytes.data(), bytes.size());
  }
  return HexDigest(context.get());
}

// One line of MANIFEST.
struct Listed {
  std::string checksum;
  int64_t size = 0;
  std::string name;
};

absl::StatusOr<Listed> ParseLine(absl::string_view line) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 2));
  Listed listed;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &listed.size) || !IsPlainFileName(fields[2])) {
    return absl::DataLossError(absl::StrCat(kManifest, " has a line that is not \"<sha256> <size> <name>\""));
  }
  listed.checksum = fields[0];
  listed.name = fields[2];
  return listed;
}

// MANIFEST without its last line, which is about the lines before it.
absl::StatusOr<std::string> ReadManifest(const CheckpointFile& file) {
  if (file.size > kMaxManifestBytes) return absl::DataLossError(absl::StrCat(kManifest, " is too large"));
  AMPD_ASSIGN_OR_RETURN(std::string text, ReadChunk(file, 0, file.size));
  const size_t seal = text.size() < 2 ? 0 : text.rfind('\n', text.size() - 2) + 1;
  AMPD_ASSIGN_OR_RETURN(const Listed sealed, ParseLine(absl::StripSuffix(absl::string_view(text).substr(seal), "\n")));
  text.resize(seal);
  const DigestContext context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  EVP_DigestUpdate(context.get(), text.data(), text.size());
  if (sealed.name == kManifest && sealed.checksum == HexDigest(context.get())) return text;
  return absl::DataLossError(absl::StrCat(kManifest, " does not match its own checksum"));
}

absl::StatusOr<CheckpointFile> OpenListed(int directory, absl::string_view line) {
  AMPD_ASSIGN_OR_RETURN(const Listed listed, ParseLine(line));
  AMPD_ASSIGN_OR_RETURN(CheckpointFile file, OpenFile(directory, listed.name));
  if (file.size != listed.size) {
    return absl::DataLossError(absl::StrCat(file.name, " has ", file.size, " bytes, not ", listed.size));
  }
  AMPD_ASSIGN_OR_RETURN(const std::string checksum, Sha256OfFile(file));
  if (checksum == listed.checksum) return file;
  return absl::DataLossError(absl::StrCat(file.name, " does not match its checksum"));
}

absl::StatusOr<OpenCheckpoint> OpenWhole(int parent, const std::string& name) {
  const UniqueFd directory = OpenDirectory(parent, name);
  if (!directory.valid()) return absl::NotFoundError(absl::StrCat("no checkpoint ", name));
  AMPD_ASSIGN_OR_RETURN(CheckpointFile manifest, OpenFile(directory.get(), kManifest));
  AMPD_ASSIGN_OR_RETURN(const std::string text, ReadManifest(manifest));
  OpenCheckpoint checkpoint{name, {}};
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    AMPD_ASSIGN_OR_RETURN(CheckpointFile file, OpenListed(directory.get(), line));
    checkpoint.files.push_back(std::move(file));
  }
  checkpoint.files.push_back(std::move(manifest));
  return checkpoint;
}

// Newest first.
std::vector<std::string> CheckpointNames(int directory) {
  std::vector<std::string> names;
  DIR* listing = fdopendir(dup(directory));
  if (listing == nullptr) return names;
  while (const dirent* entry = readdir(listing)) {
    if (IsCheckpointName(entry->d_name)) names.emplace_back(entry->d_name);
  }
  closedir(listing);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a > b;
  });
  return names;
}

}  // namespace

absl::StatusOr<OpenCheckpoint> OpenCheckpointFiles(const std::string& directory, const std::string& name) {
  if (!name.empty() && !IsCheckpointName(name)) {
    return absl::InvalidArgumentError("a checkpoint's name is \"step-\" and digits");
  }
  const UniqueFd parent = OpenDirectory(AT_FDCWD, directory);
  if (!parent.valid()) return absl::NotFoundError("the job has no checkpoint");
  const std::vector<std::string> names = name.empty() ? CheckpointNames(parent.get()) : std::vector{name};
  absl::Status newest_error = absl::NotFoundError("the job has no checkpoint");
  bool first = true;
  for (const std::string& candidate : names) {
    absl::StatusOr<OpenCheckpoint> checkpoint = OpenWhole(parent.get(), candidate);
    if (checkpoint.ok()) return checkpoint;
    if (std::exchange(first, false))
      newest_error = Annotate(checkpoint.status(), absl::StrCat("checkpoint ", candidate));
  }
  return newest_error;
}

absl::StatusOr<OpenCheckpoint> OpenArtifact(const std::string& directory, const std::string& name) {
  if (!IsPlainFileName(name) || name[0] == '.') {
    return absl::InvalidArgumentError("name: an artifact's name is that of a file, without '/' and no '.' in front");
  }
  const UniqueFd parent = OpenDirectory(AT_FDCWD, directory);
  if (!parent.valid()) return absl::NotFoundError("the job has no artifact");
  absl::StatusOr<CheckpointFile> file = OpenFile(parent.get(), name);
  if (!file.ok()) {
    return absl::NotFoundError(absl::StrCat("the job has no artifact ", absl::CHexEscape(file.status().message())));
  }
  OpenCheckpoint opened;
  opened.files.push_back(*std::move(file));
  return opened;
}

absl::StatusOr<std::string> ReadChunk(const CheckpointFile& file, int64_t offset, int64_t size) {
  const int64_t wanted = std::min(size, file.size - offset);
  std::string bytes(static_cast<size_t>(std::max<int64_t>(wanted, 0)), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        pread(file.fd.get(), bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::DataLossError(absl::StrCat(file.name, " cannot be read at byte ", offset));
    done += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace ampd
