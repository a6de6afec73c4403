#include "client/checkpoint_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/umask.h"
#include "proto/spec/names.h"

namespace ampd::client {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 200;
constexpr size_t kMaxFiles = 10000;

absl::Status FileError(const std::string& path) {
  const absl::StatusCode code = errno == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnknown;
  return absl::Status(code, absl::StrCat(path, ": ", std::strerror(errno)));
}

bool IsSafeName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' && IsMadeOf(name, "_-.");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(const std::string& folder) {
  std::string target = fs::path(folder).lexically_normal().string();
  if (target.size() > 1 && target.back() == '/') target.pop_back();
  std::error_code error;
  if (fs::exists(target, error) && !(fs::is_directory(target, error) && fs::is_empty(target, error))) {
    return absl::AlreadyExistsError(absl::StrCat(target, ": exists and is not an empty folder"));
  }
  const fs::path parent = fs::path(target).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  std::string partial = absl::StrCat(target, ".partial-XXXXXX");
  if (mkdtemp(partial.data()) == nullptr) return FileError(partial);
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(std::move(target), std::move(partial)));
}

CheckpointWriter::CheckpointWriter(std::string folder, std::string partial)
    : folder_(std::move(folder)), partial_(std::move(partial)) {}

CheckpointWriter::~CheckpointWriter() {
  if (file_ >= 0) close(file_);
  std::error_code ignored;
  if (!committed_) fs::remove_all(partial_, ignored);
}

absl::Status CheckpointWriter::Add(const v1::FileChunk& chunk) {
  if (checkpoint_.empty()) checkpoint_ = chunk.checkpoint();
  if (chunk.checkpoint() != checkpoint_) {
    return absl::DataLossError(absl::StrCat("files of two checkpoints in one download: ", Quoted(checkpoint_), " and ",
                                            Quoted(chunk.checkpoint())));
  }
  from_mirror_ = from_mirror_ || chunk.from_mirror();
  if (file_ < 0 || chunk.file() != name_) {
    if (absl::Status status = FinishFile(); !status.ok()) return status;
    if (absl::Status status = Start(chunk); !status.ok()) return status;
  }
  const int64_t size = static_cast<int64_t>(chunk.data().size());
  if (chunk.file_size() != file_size_ || chunk.offset() != written_ || size > file_size_ - written_) {
    return absl::DataLossError(absl::StrCat(name_, ": got bytes ", chunk.offset(), " to ", chunk.offset() + size,
                                            " of ", chunk.file_size(), " where byte ", written_, " of ", file_size_,
                                            " is next"));
  }
  return Write(chunk.data());
}

absl::Status CheckpointWriter::Start(const v1::FileChunk& chunk) {
  if (!IsSafeName(chunk.file())) {
    return absl::DataLossError(absl::StrCat("refused the file name ", Quoted(chunk.file())));
  }
  if (contents_.size() >= kMaxFiles) return absl::DataLossError(absl::StrCat("more than ", kMaxFiles, " files"));
  if (Has(chunk.file())) {
    return absl::DataLossError(absl::StrCat(chunk.file(), ": came twice"));
  }
  if (chunk.file_size() < 0) return absl::DataLossError(absl::StrCat(chunk.file(), ": a negative size"));
  if (chunk.file() == kManifest && chunk.file_size() > static_cast<int64_t>(kMaxManifestBytes)) {
    return absl::DataLossError(absl::StrCat(kManifest, " is too large"));
  }
  const std::string path = absl::StrCat(partial_, "/", chunk.file());
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file_ < 0) return FileError(path);
  name_ = chunk.file();
  file_size_ = chunk.file_size();
  written_ = 0;
  digest_ = Sha256();
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Write(const std::string& data) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t count = write(file_, data.data() + done, data.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(absl::StrCat(partial_, "/", name_));
    done += static_cast<size_t>(count);
  }
  digest_.Update(data);
  if (name_ == kManifest) manifest_ += data;
  written_ += static_cast<int64_t>(done);
  bytes_ += static_cast<int64_t>(done);
  return absl::OkStatus();
}

absl::Status CheckpointWriter::FinishFile() {
  if (file_ < 0) return absl::OkStatus();
  if (written_ != file_size_) {
    return absl::DataLossError(absl::StrCat(name_, ": ended after ", written_, " of ", file_size_, " bytes"));
  }
  const int file = std::exchange(file_, -1);
  const bool synced = fsync(file) == 0;
  if (!synced || close(file) != 0) return FileError(absl::StrCat(partial_, "/", name_));
  contents_[name_] = {digest_.HexDigest(), written_};
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Check() const {
  if (contents_.count(kManifest) == 0) {
    return absl::DataLossError(absl::StrCat("the server sent no ", kManifest, " of ", Quoted(checkpoint_)));
  }
  const absl::StatusOr<std::map<std::string, FileContent>> listed = ParseManifest(manifest_);
  if (!listed.ok()) return listed.status();
  for (const auto& [name, content] : *listed) {
    const auto came = contents_.find(name);
    if (came == contents_.end()) {
      return absl::DataLossError(absl::StrCat("the server sent no ", Quoted(name), ", which ", kManifest, " lists"));
    }
    if (!(came->second == content)) {
      return absl::DataLossError(
          absl::StrCat(name, " of ", Quoted(checkpoint_), ": its bytes are not those that ", kManifest, " lists"));
    }
  }
  for (const auto& [name, content] : contents_) {
    if (name == kManifest || listed->count(name) > 0) continue;
    return absl::DataLossError(absl::StrCat(name, " of ", Quoted(checkpoint_), ": ", kManifest, " does not list it"));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::Commit() {
  if (absl::Status status = FinishFile(); !status.ok()) return status;
  if (contents_.empty()) return absl::DataLossError("the server sent no files");
  if (absl::Status status = Check(); !status.ok()) return status;
  // mkdtemp made it for the owner alone.
  chmod(partial_.c_str(), WithoutUmask(0777));
  // Replaces an empty folder, and fails where something has been put there meanwhile.
  if (std::rename(partial_.c_str(), folder_.c_str()) != 0) return FileError(folder_);
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace ampd::client
