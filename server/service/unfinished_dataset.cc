#include "server/service/unfinished_dataset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/core/status.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve.h"
#include "proto/spec/upload_path.h"
#include "server/files/files.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr char kJournal[] = "JOURNAL";
constexpr char kManifest[] = "MANIFEST";
constexpr size_t kReadBytes = 1 << 20;
// Clients read it: without a path of the server's.
constexpr char kCannotKeep[] = "the server cannot keep the file";
// A file may be announced anew, each time with a line of its own.
constexpr int64_t kJournalsPerManifest = 4;
// Folders count for nothing, but take a block and an inode each.
constexpr int64_t kFoldersPerFile = 2, kFreeFolders = 1000;

// What is said of a file, bytes.
int64_t EntryBytes(const std::string& path) { return static_cast<int64_t>(path.size()) + 90; }

// That both lie in.
int64_t CommonFolders(const std::string& a, const std::string& b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return std::count(a.begin(), end, '/');
}

// `field`: of the request's.
absl::Status Invalid(const char* field, const std::string& path, absl::string_view what) {
  return InvalidFields({{field, absl::StrCat("file ", Quoted(path), ": ", what)}});
}

// Of its bytes [0, size). DATA_LOSS when there are fewer; `go_on`, asked every while, may end it with another error.
absl::Status DigestPrefix(int fd, int64_t size, Sha256Stream* digest, const std::function<absl::Status()>& go_on) {
  std::vector<char> buffer(kReadBytes);
  for (int64_t at = 0; at < size;) {
    AMPD_RETURN_IF_ERROR(go_on());
    const auto wanted = static_cast<size_t>(std::min<int64_t>(size - at, static_cast<int64_t>(buffer.size())));
    const ssize_t n = pread(fd, buffer.data(), wanted, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(kCannotKeep, errno);
    if (n == 0) return absl::DataLossError("a file is shorter than it was");
    digest->Update({buffer.data(), static_cast<size_t>(n)});
    at += n;
  }
  return absl::OkStatus();
}

bool HasSize(int fd, int64_t size) {
  struct stat info {};
  return fstat(fd, &info) == 0 && info.st_size == size;
}

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  // Not by an iterator, which throws where a disk fails; what was not read is missed by who parses it.
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace

absl::StatusOr<std::shared_ptr<UnfinishedDataset>> UnfinishedDataset::Create(const std::string& name,
                                                                             const std::string& user, absl::Time now,
                                                                             const std::string& made,
                                                                             const std::string& folder,
                                                                             const DatasetLimits& limits) {
  DatasetHeader header;
  header.create_time = now;
  header.user = user;
  const std::string line = HeaderLine(header);
  std::error_code error;
  fs::create_directories(made + "/files", error);
  if (error) return FileError(kCannotKeep, error.value());
  UniqueFd journal(
      open(absl::StrCat(made, "/", kJournal).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600));
  if (!journal.valid()) return FileError(kCannotKeep, errno);
  AMPD_RETURN_IF_ERROR(WriteAll(journal.get(), line, kCannotKeep));
  if (rename(made.c_str(), folder.c_str()) != 0) return FileError(kCannotKeep, errno);
  return std::shared_ptr<UnfinishedDataset>(
      new UnfinishedDataset(name, folder, std::move(header), limits, std::move(journal), line.size()));
}

absl::StatusOr<std::shared_ptr<UnfinishedDataset>> UnfinishedDataset::Open(const std::string& name,
                                                                           const std::string& folder,
                                                                           const LimitsOf& limits_of) {
  const std::string path = absl::StrCat(folder, "/", kJournal);
  const std::string journal = ReadAll(path);
  const size_t line_end = journal.find('\n');
  if (line_end == std::string::npos) return absl::DataLossError(absl::StrCat(path, ": is damaged or missing"));
  absl::StatusOr<DatasetHeader> header = ParseHeaderLine(absl::string_view(journal).substr(0, line_end));
  if (!header.ok()) return Annotate(header.status(), path);
  const DatasetLimits limits = limits_of(header->user);
  UniqueFd file(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file.valid()) return FileError(path, errno);
  std::shared_ptr<UnfinishedDataset> dataset(
      new UnfinishedDataset(name, folder, *std::move(header), limits, std::move(file), line_end + 1));
  const MutexLock lock(&dataset->work_);
  AMPD_RETURN_IF_ERROR(dataset->Load(absl::string_view(journal).substr(line_end + 1)));
  dataset->RemoveStrays();
  return dataset;
}

UnfinishedDataset::~UnfinishedDataset() {
  const MutexLock lock(&state_);
  limits_.all->GiveBack(received_bytes_ + counted_files_ * limits_.entry_bytes);
  limits_.journals->GiveBack(entry_bytes_);
}

// Up to the first line that is none: the rest was not yet on disk when the power went.
absl::Status UnfinishedDataset::Load(absl::string_view journal) {
  const MutexLock lock(&state_);
  while (true) {
    const size_t end = journal.find('\n');
    if (end == absl::string_view::npos) break;
    absl::StatusOr<v1::DatasetFile> file = ParseFileLine(journal.substr(0, end));
    if (!file.ok()) break;
    struct stat info {};
    const bool there = lstat(PathOf(file->path()).c_str(), &info) == 0 && S_ISREG(info.st_mode);
    file->set_received_bytes(there && info.st_size <= file->size_bytes() ? info.st_size : 0);
    const int64_t own_folders = OwnFolders(file->path());
    const auto [entry, is_new] = files_.try_emplace(file->path());
    if (is_new) {
      entry_bytes_ += EntryBytes(file->path());
      folders_ += own_folders;
    }
    entry->second = {file->size_bytes(), file->sha256(), file->received_bytes()};
    journal.remove_prefix(end + 1);
    journal_bytes_ += static_cast<int64_t>(end) + 1;
  }
  for (const auto& [path, file] : files_) {
    announced_bytes_ += file.size;
    received_bytes_ += file.received;
  }
  counted_files_ = static_cast<int64_t>(files_.size());
  limits_.all->Count(received_bytes_ + counted_files_ * limits_.entry_bytes);
  limits_.journals->Count(entry_bytes_);
  return ftruncate(journal_.get(), journal_bytes_) == 0 ? absl::OkStatus() : FileError(kJournal, errno);
}

void UnfinishedDataset::RemoveStrays() {
  const MutexLock lock(&state_);
  const std::string root = folder_ + "/files";
  std::vector<fs::path> strays;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) continue;
    if (files_.count(it->path().string().substr(root.size() + 1)) == 0) strays.push_back(it->path());
  }
  for (const fs::path& stray : strays) fs::remove(stray, error);
}

std::string UnfinishedDataset::PathOf(const std::string& path) const { return absl::StrCat(folder_, "/files/", path); }

v1::Dataset UnfinishedDataset::Describe(bool with_files) const {
  v1::Dataset dataset = DatasetOf(name_, header_, false);
  const MutexLock lock(&state_);
  dataset.set_size_bytes(announced_bytes_);
  if (!with_files) return dataset;
  for (const auto& [path, file] : files_) {
    v1::DatasetFile& described = *dataset.add_files();
    described.set_path(path);
    described.set_size_bytes(file.size);
    described.set_sha256(file.sha256);
    described.set_received_bytes(file.received);
  }
  return dataset;
}

uint64_t UnfinishedDataset::TakeTurn() {
  const MutexLock lock(&state_);
  return ++turn_;
}

void UnfinishedDataset::End() {
  TakeTurn();
  const MutexLock lock(&work_);
  ended_ = true;
}

absl::Status UnfinishedDataset::CheckTurn(uint64_t turn) const {
  if (ended_) return absl::AbortedError(absl::StrCat("the upload of dataset ", name_, " is over"));
  return CheckNotTakenOver(turn);
}

absl::Status UnfinishedDataset::CheckNotTakenOver(uint64_t turn) const {
  const MutexLock lock(&state_);
  if (turn == turn_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another call has taken over the upload of dataset ", name_));
}

absl::Status UnfinishedDataset::CheckRoom() const {
  const std::string shortage = limits_.shortage ? limits_.shortage() : "";
  if (shortage.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("dataset ", name_, ": nothing more is taken: ", shortage));
}

UnfinishedDataset::File UnfinishedDataset::Get(const std::string& path) const {
  const MutexLock lock(&state_);
  const auto found = files_.find(path);
  return found == files_.end() ? File() : found->second;
}

void UnfinishedDataset::SetReceived(const std::string& path, int64_t received, bool checked) {
  const MutexLock lock(&state_);
  File& file = files_[path];
  received_bytes_ += received - file.received;
  file.received = received;
  file.checked = checked;
}

absl::Status UnfinishedDataset::CheckAnnounced(const v1::DatasetFile& file, const File* known) const {
  const std::string& path = file.path();
  if (const std::string wrong = WrongDatasetFile(path); !wrong.empty())
    return Invalid("file", path, "the path " + wrong);
  if (file.size_bytes() < 0) return Invalid("file_size", path, absl::StrCat(file.size_bytes(), " is below 0"));
  if (!IsUploadChecksum(file.sha256())) {
    return Invalid("file_sha256", path, "must be 64 lower-case hex digits, in the file's first message");
  }
  if (file.size_bytes() > limits_.file_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("file ", Quoted(path), " has ", file.size_bytes(),
                                                     " bytes; this server takes at most ", limits_.file_bytes,
                                                     " (max_upload_bytes)"));
  }
  const int64_t entry = known == nullptr ? limits_.entry_bytes : 0;
  const int64_t missing = file.size_bytes() - (known == nullptr ? 0 : known->received);
  if (missing > 0 || known == nullptr) AMPD_RETURN_IF_ERROR(CheckRoom());
  if (const std::string used = limits_.all->InTheWayOf(missing + entry); !used.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("file ", Quoted(path), ": ", missing, " bytes are missing",
                                                     entry == 0 ? "" : absl::StrCat(", ", entry, " count for its name"),
                                                     ", and files that were uploaded take ", used));
  }
  if (known != nullptr) return absl::OkStatus();
  const MutexLock lock(&state_);
  if (static_cast<int64_t>(files_.size()) >= limits_.files ||
      entry_bytes_ + EntryBytes(path) > limits_.manifest_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("dataset ", name_, ": too many files: at most ", limits_.files,
                                                     ", of whose names, sizes and checksums there are at most ",
                                                     limits_.manifest_bytes, " bytes"));
  }
  const int64_t folders = folders_ + OwnFolders(path), files = static_cast<int64_t>(files_.size()) + 1;
  if (folders > kFoldersPerFile * files + kFreeFolders) {
    return absl::ResourceExhaustedError(absl::StrCat("dataset ", name_, ": ", files, " files in ", folders,
                                                     " folders: at most ", kFoldersPerFile, " a file and ",
                                                     kFreeFolders, " more, since folders take room too"));
  }
  return absl::OkStatus();
}

// Files in one folder are neighbours in the order of their paths.
int64_t UnfinishedDataset::OwnFolders(const std::string& path) const {
  const auto next = files_.lower_bound(path);
  if (next != files_.end() && next->first == path) return 0;
  int64_t common = next == files_.end() ? 0 : CommonFolders(path, next->first);
  if (next != files_.begin()) common = std::max(common, CommonFolders(path, std::prev(next)->first));
  return std::count(path.begin(), path.end(), '/') - common;
}

absl::Status UnfinishedDataset::TakeEntry(const std::string& path) {
  if (!limits_.journals->Take(EntryBytes(path))) {
    return absl::ResourceExhaustedError("the datasets that are being uploaded have too many files together; try later");
  }
  if (limits_.all->Take(limits_.entry_bytes)) return absl::OkStatus();
  limits_.journals->GiveBack(EntryBytes(path));
  return absl::ResourceExhaustedError(absl::StrCat("file ", Quoted(path), ": no room for one more: files that were ",
                                                   "uploaded take ", limits_.all->InTheWayOf(limits_.entry_bytes)));
}

void UnfinishedDataset::GiveBackEntry(const std::string& path) {
  limits_.journals->GiveBack(EntryBytes(path));
  limits_.all->GiveBack(limits_.entry_bytes);
}

// Folders are made on the way. Only this daemon writes here: there is no link to follow.
absl::StatusOr<UniqueFd> UnfinishedDataset::OpenFile(const std::string& path) const {
  const std::string whole = PathOf(path);
  std::error_code error;
  fs::create_directories(fs::path(whole).parent_path(), error);
  int code = error.value();
  if (!error) {
    UniqueFd fd(open(whole.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (fd.valid()) return fd;
    code = errno;
  }
  if (code == ENOTDIR || code == EISDIR || code == EEXIST)
    return Invalid("file", path, "is a file and a folder at once");
  return FileError(kCannotKeep, code);
}

absl::Status UnfinishedDataset::WriteLine(const v1::DatasetFile& file) {
  const std::string line = FileLine(file);
  const auto bytes = static_cast<int64_t>(line.size());
  const absl::Status written = WriteAll(journal_.get(), line, kCannotKeep);
  if (written.ok()) {
    journal_bytes_ += bytes;
  } else if (ftruncate(journal_.get(), journal_bytes_) != 0) {
    ended_ = true;
  }
  return written;
}

absl::Status UnfinishedDataset::CutTo(const std::string& path, int fd, int64_t size) {
  const int64_t before = Get(path).received;
  // Also where nothing need be cut: what follows may be left of a crash.
  if (ftruncate(fd, std::min(size, before)) != 0) return FileError(kCannotKeep, errno);
  if (size >= before) return absl::OkStatus();
  SetReceived(path, size, false);
  limits_.all->GiveBack(before - size);
  return absl::OkStatus();
}

absl::Status UnfinishedDataset::Place(const v1::DatasetFile& file, bool is_new) {
  // Before anything is made for it.
  if (journal_bytes_ + static_cast<int64_t>(FileLine(file).size()) > kJournalsPerManifest * limits_.manifest_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("dataset ", name_, ": its files were announced too often"));
  }
  AMPD_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(file.path()));
  if (!is_new) AMPD_RETURN_IF_ERROR(CutTo(file.path(), fd.get(), 0));
  return WriteLine(file);
}

absl::Status UnfinishedDataset::Announce(const v1::DatasetFile& file) {
  const std::string& path = file.path();
  const File known = Get(path);
  const bool is_new = known.sha256.empty();
  AMPD_RETURN_IF_ERROR(CheckAnnounced(file, is_new ? nullptr : &known));
  if (!is_new && known.size == file.size_bytes() && known.sha256 == file.sha256()) return absl::OkStatus();
  if (is_new) AMPD_RETURN_IF_ERROR(TakeEntry(path));
  const absl::Status status = Place(file, is_new);
  if (!status.ok() && is_new) {
    GiveBackEntry(path);
    if (!absl::IsInvalidArgument(status)) unlink(PathOf(path).c_str());
  }
  if (!status.ok()) return status;
  const MutexLock lock(&state_);
  if (is_new) {
    entry_bytes_ += EntryBytes(path);
    folders_ += OwnFolders(path);
    ++counted_files_;
  }
  announced_bytes_ += file.size_bytes() - known.size;
  files_[path] = {file.size_bytes(), file.sha256()};
  return absl::OkStatus();
}

absl::Status UnfinishedDataset::BeginFile(uint64_t turn, const v1::DatasetFile& file, int64_t offset) {
  const MutexLock lock(&work_);
  AMPD_RETURN_IF_ERROR(CheckTurn(turn));
  fd_.Reset();
  path_.clear();
  AMPD_RETURN_IF_ERROR(Announce(file));
  const int64_t received = Get(file.path()).received;
  if (offset < 0 || offset > received) {
    return absl::OutOfRangeError(
        absl::StrCat("file ", Quoted(file.path()), ": offset ", offset, ", but ", received, " of its bytes have come"));
  }
  path_ = file.path();
  at_ = offset;
  digest_ = Sha256Stream();
  return file.size_bytes() == 0 ? FinishFile() : absl::OkStatus();
}

absl::Status UnfinishedDataset::GoTo(uint64_t turn, int64_t offset) {
  AMPD_ASSIGN_OR_RETURN(fd_, OpenFile(path_));
  AMPD_RETURN_IF_ERROR(CutTo(path_, fd_.get(), offset));
  AMPD_RETURN_IF_ERROR(DigestPrefix(fd_.get(), offset, &digest_, [&] { return CheckNotTakenOver(turn); }));
  return lseek(fd_.get(), offset, SEEK_SET) == offset ? absl::OkStatus() : FileError(kCannotKeep, errno);
}

absl::Status UnfinishedDataset::Append(uint64_t turn, int64_t offset, absl::string_view bytes) {
  const MutexLock lock(&work_);
  AMPD_RETURN_IF_ERROR(CheckTurn(turn));
  if (bytes.empty()) return absl::OkStatus();
  if (path_.empty()) return InvalidFields({{"file", "required before data"}});
  const File file = Get(path_);
  const auto size = static_cast<int64_t>(bytes.size());
  if (offset != at_) return Invalid("offset", path_, absl::StrCat(offset, " where ", at_, " is next"));
  if (size > file.size - at_) {
    return Invalid("data", path_, absl::StrCat("has more than the ", file.size, " bytes that were announced"));
  }
  AMPD_RETURN_IF_ERROR(CheckRoom());
  if (!fd_.valid()) {
    if (const absl::Status there = GoTo(turn, at_); !there.ok()) {
      fd_.Reset();
      digest_ = Sha256Stream();
      return there;
    }
  }
  if (!limits_.all->Take(size)) {
    return absl::ResourceExhaustedError(absl::StrCat("file ", Quoted(path_), ": no room for ", size,
                                                     " more bytes: files that were uploaded take ",
                                                     limits_.all->InTheWayOf(size)));
  }
  if (const absl::Status written = WriteAll(fd_.get(), bytes, kCannotKeep); !written.ok()) {
    limits_.all->GiveBack(size);
    if (ftruncate(fd_.get(), at_) != 0) ended_ = true;
    fd_.Reset();
    digest_ = Sha256Stream();
    return written;
  }
  digest_.Update(bytes);
  at_ += size;
  SetReceived(path_, at_, false);
  return at_ == file.size ? FinishFile() : absl::OkStatus();
}

absl::Status UnfinishedDataset::FinishFile() {
  const File file = Get(path_);
  const std::string found = digest_.HexDigest();
  const std::string path = std::exchange(path_, "");
  if (found == file.sha256) {
    fd_.Reset();
    SetReceived(path, file.size, true);
    return absl::OkStatus();
  }
  const UniqueFd fd = std::move(fd_);
  if (fd.valid()) AMPD_RETURN_IF_ERROR(CutTo(path, fd.get(), 0));
  return Invalid("file_sha256", path,
                 absl::StrCat(file.sha256, " was announced, the ", file.size, " bytes that came have ", found,
                              "; nothing of it is kept"));
}

absl::Status UnfinishedDataset::CheckFile(uint64_t turn, const std::string& path) {
  const File file = Get(path);
  AMPD_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path));
  Sha256Stream digest;
  const absl::Status read = DigestPrefix(fd.get(), file.size, &digest, [&] { return CheckNotTakenOver(turn); });
  if (!read.ok() && !absl::IsDataLoss(read)) return read;
  if (read.ok() && HasSize(fd.get(), file.size) && digest.HexDigest() == file.sha256) {
    SetReceived(path, file.size, true);
    return absl::OkStatus();
  }
  AMPD_RETURN_IF_ERROR(CutTo(path, fd.get(), 0));
  return absl::DataLossError(
      absl::StrCat("file ", Quoted(path), " was damaged since it came, and nothing of it is kept: send it again"));
}

absl::Status UnfinishedDataset::CheckWhole(uint64_t turn) {
  std::vector<std::string> unchecked;
  std::vector<std::string> missing;
  {
    const MutexLock lock(&state_);
    if (files_.empty()) return absl::FailedPreconditionError(absl::StrCat("dataset ", name_, " has no file"));
    for (const auto& [path, file] : files_) {
      if (file.received < file.size && missing.size() < 5) {
        missing.push_back(absl::StrCat(Quoted(path), " (", file.received, " of ", file.size, " bytes)"));
      }
      if (!file.checked) unchecked.push_back(path);
    }
  }
  if (!missing.empty()) {
    return InvalidFields({{"commit", absl::StrCat("files that lack bytes: ", absl::StrJoin(missing, ", "))}});
  }
  for (const std::string& path : unchecked) AMPD_RETURN_IF_ERROR(CheckFile(turn, path));
  return absl::OkStatus();
}

absl::StatusOr<DatasetHeader> UnfinishedDataset::WriteManifest() {
  const v1::Dataset dataset = Describe(true);
  DatasetHeader header = WholeHeader(header_, dataset);
  const std::string path = absl::StrCat(folder_, "/", kManifest);
  const UniqueFd manifest(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!manifest.valid()) return FileError(kCannotKeep, errno);
  AMPD_RETURN_IF_ERROR(WriteAll(manifest.get(), ManifestText(header, dataset), kCannotKeep));
  // One call for however many files and folders there are; it tells of earlier errors too.
  if (syncfs(manifest.get()) != 0) return FileError(kCannotKeep, errno);
  return header;
}

absl::StatusOr<DatasetHeader> UnfinishedDataset::Commit(
    uint64_t turn, const std::function<absl::Status(const DatasetHeader& header)>& publish) {
  const MutexLock lock(&work_);
  AMPD_RETURN_IF_ERROR(CheckTurn(turn));
  fd_.Reset();
  path_.clear();
  AMPD_RETURN_IF_ERROR(CheckWhole(turn));
  AMPD_ASSIGN_OR_RETURN(DatasetHeader header, WriteManifest());
  AMPD_RETURN_IF_ERROR(publish(header));
  ended_ = true;
  const MutexLock state_lock(&state_);
  received_bytes_ = 0;
  counted_files_ = 0;
  return header;
}

}  // namespace ampd
