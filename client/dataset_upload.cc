#include "client/dataset_upload.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/local_files.h"
#include "client/output/text.h"
#include "client/retry.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/names.h"
#include "proto/spec/utf8.h"

namespace ampd::client {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = 1 << 20;

absl::Status Cancelled() { return absl::CancelledError("interrupted"); }

// Paths within the dataset and on this machine, of one file or all beneath a folder.
absl::StatusOr<std::map<std::string, std::string>> FindFiles(const std::string& path) {
  std::error_code error;
  const fs::path root(path);
  std::map<std::string, std::string> found;
  if (fs::is_regular_file(root, error)) {
    found[fs::absolute(root, error).filename().string()] = path;
    return found;
  }
  if (!fs::is_directory(root, error)) return absl::NotFoundError(absl::StrCat("no file or folder ", path));
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string source = it->path().string();
    if (it->is_regular_file(ignored)) {
      found[it->path().lexically_relative(root).generic_string()] = source;
    } else if (it->is_symlink(ignored) || !it->is_directory(ignored)) {
      return absl::InvalidArgumentError(absl::StrCat(source, ": is neither a file nor a folder, nor a link to a file"));
    }
  }
  if (error) return absl::DataLossError(absl::StrCat(path, ": cannot be read: ", error.message()));
  if (found.empty()) return absl::NotFoundError(absl::StrCat(path, ": holds no file"));
  return found;
}

// What the server knows of each file.
std::map<std::string, v1::DatasetFile> ByPath(const v1::Dataset& dataset) {
  std::map<std::string, v1::DatasetFile> files;
  for (const v1::DatasetFile& file : dataset.files()) files[file.path()] = file;
  return files;
}

bool IsSame(const v1::DatasetFile& a, const v1::DatasetFile& b) {
  return a.size_bytes() == b.size_bytes() && a.sha256() == b.sha256();
}

bool AreSame(const std::vector<LocalDatasetFile>& local, const v1::Dataset& there) {
  const std::map<std::string, v1::DatasetFile> files = ByPath(there);
  return local.size() == files.size() && std::all_of(local.begin(), local.end(), [&](const LocalDatasetFile& one) {
           const auto found = files.find(one.file.path());
           return found != files.end() && IsSame(found->second, one.file);
         });
}

int64_t BytesOf(const v1::Dataset& dataset) {
  int64_t bytes = 0;
  for (const v1::DatasetFile& file : dataset.files()) bytes += file.received_bytes();
  return bytes;
}

// The messages of one call: what `there` lacks of `local`, then the commit.
class Messages {
 public:
  Messages(const std::string& name, const std::vector<LocalDatasetFile>& local, const v1::Dataset& there)
      : name_(name), local_(local), there_(ByPath(there)) {}

  // False: there are no more.
  absl::StatusOr<bool> Next(v1::UploadDatasetRequest* request) {
    request->Clear();
    if (std::exchange(first_, false)) request->set_name(name_);
    while (index_ < local_.size() && !stream_.is_open() && IsThere(local_[index_].file)) ++index_;
    if (index_ == local_.size()) {
      request->set_commit(true);
      return !std::exchange(committed_, true);
    }
    const LocalDatasetFile& one = local_[index_];
    if (!stream_.is_open()) Begin(one, request);
    request->set_offset(offset_);
    const int64_t wanted = std::min(kPieceBytes, one.file.size_bytes() - offset_);
    std::string& data = *request->mutable_data();
    data.resize(static_cast<size_t>(wanted));
    stream_.read(data.data(), wanted);
    if (stream_.gcount() != wanted) {
      return absl::DataLossError(absl::StrCat(one.source, ": cannot be read, or became shorter"));
    }
    offset_ += wanted;
    if (offset_ == one.file.size_bytes()) {
      stream_.close();
      ++index_;
    }
    return true;
  }

 private:
  // Of an empty file nothing can be there but its name.
  bool IsThere(const v1::DatasetFile& file) const {
    const auto found = there_.find(file.path());
    return found != there_.end() && IsSame(found->second, file) && found->second.received_bytes() == file.size_bytes();
  }

  void Begin(const LocalDatasetFile& one, v1::UploadDatasetRequest* request) {
    const auto found = there_.find(one.file.path());
    offset_ = found != there_.end() && IsSame(found->second, one.file) ? found->second.received_bytes() : 0;
    stream_ = std::ifstream(one.source, std::ios::binary);
    stream_.seekg(offset_);
    request->set_file(one.file.path());
    request->set_file_size(one.file.size_bytes());
    request->set_file_sha256(one.file.sha256());
  }

  const std::string name_;
  const std::vector<LocalDatasetFile>& local_;
  const std::map<std::string, v1::DatasetFile> there_;
  bool first_ = true;
  bool committed_ = false;
  size_t index_ = 0;
  std::ifstream stream_;
  int64_t offset_ = 0;
};

// What the server has of it; empty where it has nothing.
absl::StatusOr<v1::Dataset> FindThere(Connection* connection, const std::string& name) {
  const absl::StatusOr<v1::ListDatasetsResponse> list = connection->ListDatasets(name);
  if (absl::IsNotFound(list.status())) return v1::Dataset();
  // Unlike a file that is damaged while it is uploaded, this does not pass.
  if (absl::IsDataLoss(list.status())) return absl::FailedPreconditionError(list.status().message());
  if (!list.ok()) return list.status();
  if (list->datasets_size() != 1) return absl::InternalError("the server lists no one dataset of the name");
  return list->datasets(0);
}

absl::Status CheckBegun(const std::vector<LocalDatasetFile>& local, const v1::Dataset& there) {
  std::map<std::string, v1::DatasetFile> files = ByPath(there);
  for (const LocalDatasetFile& one : local) files.erase(one.file.path());
  if (files.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("an upload of ", there.name(), " was begun with other files, such as ", Quoted(files.begin()->first),
                   "; ampctl datasets delete ", there.name(), " takes it away"));
}

// Whether to try again what ended so.
bool MayPass(const absl::Status& status) {
  // A file that was damaged on the server's disk is sent again.
  return IsTransient(status) || absl::IsDataLoss(status);
}

// One upload over as many calls as it takes.
class Uploader {
 public:
  Uploader(const DatasetUploadOptions& options, std::vector<LocalDatasetFile> local, Connection* connection,
           Interrupt* interrupt, std::ostream* log)
      : options_(options),
        local_(std::move(local)),
        connection_(connection),
        interrupt_(interrupt),
        log_(log),
        backoff_(options.first_delay, options.last_delay) {}

  absl::StatusOr<v1::Dataset> Run() {
    for (int left = options_.attempts;; --left) {
      local_error_ = false;
      const absl::StatusOr<v1::Dataset> dataset = Once();
      if (dataset.ok()) return dataset;
      if (interrupt_->raised()) return Cancelled();
      if (std::exchange(progressed_, false)) {
        left = options_.attempts;
        backoff_.Reset();
      }
      if (left <= 1 || local_error_ || !MayPass(dataset.status())) return dataset.status();
      *log_ << "the upload broke (" << Clean(dataset.status().message()) << "); going on" << std::endl;
      if (!interrupt_->SleepFor(RetryDelayOf(dataset.status()).value_or(backoff_.Next()))) return Cancelled();
    }
  }

 private:
  absl::StatusOr<v1::Dataset> Once() {
    absl::StatusOr<v1::Dataset> there = FindThere(connection_, options_.name);
    if (!there.ok()) return there;
    if (there->committed()) return Whole(*std::move(there));
    if (const absl::Status begun = CheckBegun(local_, *there); !begun.ok()) return begun;
    const int64_t bytes = BytesOf(*there);
    progressed_ = had_ >= 0 && bytes > had_;
    if (bytes > 0 && bytes != had_) *log_ << "the server has " << Bytes(bytes) << " of it" << std::endl;
    had_ = bytes;
    Messages messages(options_.name, local_, *there);
    return connection_->UploadDataset(
        [&](v1::UploadDatasetRequest* request) {
          absl::StatusOr<bool> more = messages.Next(request);
          local_error_ = !more.ok();
          return more;
        },
        interrupt_);
  }

  absl::StatusOr<v1::Dataset> Whole(v1::Dataset there) const {
    if (!AreSame(local_, there)) {
      return absl::AlreadyExistsError(absl::StrCat("there is a dataset ", options_.name,
                                                   " with other files; ampctl datasets delete ", options_.name,
                                                   " takes it away"));
    }
    there.clear_files();
    return there;
  }

  const DatasetUploadOptions& options_;
  const std::vector<LocalDatasetFile> local_;
  Connection* const connection_;
  Interrupt* const interrupt_;
  std::ostream* const log_;
  Backoff backoff_;
  int64_t had_ = -1;
  bool progressed_ = false;
  bool local_error_ = false;
};

}  // namespace

absl::StatusOr<std::vector<LocalDatasetFile>> ReadDataset(const std::string& path, Interrupt* interrupt) {
  absl::StatusOr<std::map<std::string, std::string>> found = FindFiles(path);
  if (!found.ok()) return found.status();
  std::vector<LocalDatasetFile> files;
  for (const auto& [name, source] : *found) {
    if (interrupt->raised()) return Cancelled();
    if (const std::string wrong = WrongDatasetFile(name); !wrong.empty()) {
      const std::string named = ValidUtf8(source) == source ? source : absl::CHexEscape(source);
      return absl::InvalidArgumentError(absl::StrCat(named, ": its path in the dataset ", wrong));
    }
    const absl::StatusOr<std::string> checksum = Sha256OfFile(source);
    if (!checksum.ok()) return checksum.status();
    std::error_code error;
    LocalDatasetFile one{source, {}};
    one.file.set_path(name);
    one.file.set_size_bytes(static_cast<int64_t>(fs::file_size(source, error)));
    if (error) return absl::DataLossError(absl::StrCat(source, ": ", error.message()));
    one.file.set_sha256(*checksum);
    files.push_back(std::move(one));
  }
  return files;
}

absl::StatusOr<v1::Dataset> UploadDataset(const DatasetUploadOptions& options, Connection* connection,
                                          Interrupt* interrupt, std::ostream* log) {
  if (const std::string wrong = WrongDatasetName(options.name); !wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the dataset's name ", Quoted(options.name), " ", wrong));
  }
  absl::StatusOr<std::vector<LocalDatasetFile>> local = ReadDataset(options.path, interrupt);
  if (!local.ok()) return local.status();
  int64_t bytes = 0;
  for (const LocalDatasetFile& one : *local) bytes += one.file.size_bytes();
  *log << "sending " << options.path << ": " << local->size() << (local->size() == 1 ? " file, " : " files, ")
       << Bytes(bytes) << std::endl;
  return Uploader(options, *std::move(local), connection, interrupt, log).Run();
}

}  // namespace ampd::client
