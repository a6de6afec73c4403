#include "server/service/model_export.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "proto/spec/resolve.h"
#include "server/files/files.h"
#include "server/service/checkpoint_copies.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using Form = v1::ExportModelRequest;

absl::Status CheckRequest(const v1::ExportModelRequest& request) {
  if (!Form::Form_IsValid(request.form())) return InvalidFields({{"form", "is no form of a model"}});
  if (!Form::Dtype_IsValid(request.dtype())) return InvalidFields({{"dtype", "is no dtype of weights"}});
  const bool whole = request.dtype() == Form::DTYPE_UNSPECIFIED || request.dtype() == Form::FLOAT32;
  if (request.form() == Form::ONNX && !whole) return InvalidFields({{"dtype", "an ONNX model is FLOAT32"}});
  return absl::OkStatus();
}

// A folder of one export; gone, with what it holds, at the end.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(const std::string& within) {
    std::string path = absl::StrCat(within, "/XXXXXX");
    if (mkdtemp(path.data()) != nullptr) return Scratch(std::move(path));
    return absl::UnavailableError(absl::StrCat("cannot make a folder in ", within, ": ", strerror(errno)));
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The opened files under their names in a new folder: the job may delete the checkpoint while they are read.
absl::Status HoldFiles(const OpenCheckpoint& checkpoint, const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0) return FileError("make a folder for the checkpoint", errno);
  for (const CheckpointFile& file : checkpoint.files) {
    AMPD_RETURN_IF_ERROR(LinkOrCopy(file.fd.get(), absl::StrCat(folder, "/", file.name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> OpenWritten(const std::string& path, const std::string& name) {
  CheckpointFile file{name, 0, UniqueFd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC))};
  struct stat info {};
  if (!file.fd.valid() || fstat(file.fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InternalError(absl::StrCat("exporting the model: the exporter wrote no file: ", strerror(errno)));
  }
  file.size = info.st_size;
  return file;
}

}  // namespace

ModelExporter::ModelExporter(Options options, Runner runner)
    : options_(std::move(options)), runner_(std::move(runner)) {
  if (options_.scratch_dir.empty()) return;
  std::error_code ignored;
  fs::remove_all(options_.scratch_dir, ignored);
  fs::create_directories(options_.scratch_dir, ignored);
  fs::permissions(options_.scratch_dir, fs::perms::owner_all, ignored);
  // Where that fails, the first export tells.
  options_.workers.LetPass(options_.scratch_dir).IgnoreError();
}

absl::StatusOr<OpenCheckpoint> ModelExporter::Export(const v1::Job& job, const v1::ExportModelRequest& request,
                                                     Departure& caller) const {
  AMPD_RETURN_IF_ERROR(CheckRequest(request));
  const CheckpointFolders folders =
      FoldersOfJob(options_.checkpoint_root, options_.mirror_root, job.id(), job.summary().checkpoint());
  const auto is_left = [&caller] { return caller.has_gone(); };
  AMPD_ASSIGN_OR_RETURN(const OpenCheckpoint chosen,
                        OpenAnyCopy(folders, request.checkpoint(), "", {.is_left = is_left}));
  int64_t bytes = 0;
  for (const CheckpointFile& file : chosen.files) bytes += file.size;
  AMPD_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(options_.scratch_dir));
  const std::string held = absl::StrCat(scratch.path(), "/", chosen.name);
  AMPD_RETURN_IF_ERROR(HoldFiles(chosen, held));
  const std::string written = absl::StrCat(scratch.path(), "/written");
  if (mkdir(written.c_str(), 0700) != 0) return FileError("make a folder for the model", errno);
  AMPD_RETURN_IF_ERROR(options_.workers.LetRead(scratch.path()));
  AMPD_RETURN_IF_ERROR(options_.workers.Give(written));
  v1::ExportRequest ask;
  *ask.mutable_spec() = job.spec();
  ask.mutable_data_roots()->Assign(options_.data_roots.begin(), options_.data_roots.end());
  ask.set_upload_dir(options_.upload_dir);
  ask.set_checkpoint_dir(held);
  *ask.mutable_plan() = job.plan();
  *ask.mutable_request() = request;
  const std::string name = request.form() == Form::ONNX ? "model.onnx" : "model.safetensors";
  const std::string path = absl::StrCat(written, "/", name);
  // Shared: the caller may go when the runner is through.
  const auto left = std::make_shared<StopEvent>();
  caller.Then([left] { left->Set(); });
  AMPD_RETURN_IF_ERROR(runner_(ask, path, bytes, *left));
  AMPD_ASSIGN_OR_RETURN(CheckpointFile file, OpenWritten(path, name));
  OpenCheckpoint opened{chosen.name, {}};
  opened.from_mirror = chosen.from_mirror;
  opened.files.push_back(std::move(file));
  return opened;
}

}  // namespace ampd
