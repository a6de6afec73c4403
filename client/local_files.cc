#include "client/local_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/output/text.h"
#include "client/retry.h"
#include "client/sha256.h"
#include "proto/onnx/external_data.h"
#include "proto/spec/first_of.h"
#include "proto/spec/named_files.h"
#include "proto/spec/names.h"
#include "proto/spec/upload_path.h"

namespace ampd::client {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;
constexpr char kWeightsSuffix[] = ".safetensors";

bool IsFile(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

absl::StatusOr<std::ifstream> OpenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  return file;
}

// Empty at the file's end.
absl::StatusOr<std::string> ReadPiece(std::ifstream* file, const std::string& path) {
  std::string piece(kPieceBytes, '\0');
  file->read(piece.data(), static_cast<std::streamsize>(piece.size()));
  if (file->bad()) return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  piece.resize(static_cast<size_t>(file->gcount()));
  return piece;
}

// A file, or what stands for it.
struct Sent {
  std::string path;
  std::optional<std::string> bytes;
  // What the bytes were taken from, but for `path`.
  std::set<std::string> beside;
  std::string checksum;
  int64_t size = 0;
};

absl::StatusOr<v1::UploadModelResponse> UploadOnce(Connection* connection, const Sent& sent, Interrupt* interrupt) {
  if (sent.bytes.has_value()) {
    size_t done = 0;
    const auto next = [&]() -> absl::StatusOr<std::string> {
      std::string piece = sent.bytes->substr(done, kPieceBytes);
      done += piece.size();
      return piece;
    };
    return connection->UploadModel(sent.checksum, next, interrupt);
  }
  absl::StatusOr<std::ifstream> file = OpenFile(sent.path);
  if (!file.ok()) return file.status();
  return connection->UploadModel(
      sent.checksum, [&] { return ReadPiece(&*file, sent.path); }, interrupt);
}

// Whether the file may need others: it holds the key that says where tensors lie.
absl::StatusOr<bool> MayNeedOthers(const std::string& path) {
  const std::string key = kExternalLocationKey;
  absl::StatusOr<std::ifstream> file = OpenFile(path);
  if (!file.ok()) return file.status();
  std::string end;
  while (true) {
    const absl::StatusOr<std::string> piece = ReadPiece(&*file, path);
    if (!piece.ok()) return piece.status();
    if (piece->empty()) return false;
    absl::StrAppend(&end, *piece);
    if (end.find(key) != std::string::npos) return true;
    end.erase(0, end.size() - std::min(end.size(), key.size() - 1));
  }
}

bool IsHidden(const fs::path& name) { return name.string().size() > 1 && name.string()[0] == '.'; }

// The file, with all links followed, in which a tensor of the model at `path` lies. What is read of it is sent, and a
// model from elsewhere could ask for any file of this machine.
absl::StatusOr<std::string> FindBeside(const std::string& path, const std::string& location) {
  const auto refused = [&](absl::string_view why) {
    return absl::PermissionDeniedError(absl::StrCat(Quoted(location), " ", why));
  };
  constexpr char kHidden[] = "is hidden: such files are not sent";
  const fs::path named(location);
  if (std::any_of(named.begin(), named.end(), IsHidden)) return refused(kHidden);
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  const fs::path file = fs::canonical(folder / location, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return absl::NotFoundError(location);
  }
  if (error) return refused(error.message());
  const fs::path home = fs::canonical(folder, error);
  if (error) return refused(error.message());
  const auto [left, within] = std::mismatch(home.begin(), home.end(), file.begin(), file.end());
  if (left != home.end()) {
    return refused("leads out of the model's folder: copy the files that links lead to (cp -L) and send the copies");
  }
  if (std::any_of(within, file.end(), IsHidden)) return refused(kHidden);
  if (!IsFile(file.string())) return refused("is no regular file");
  return file.string();
}

absl::StatusOr<std::string> ReadBeside(const std::string& path, const ExternalPart& part) {
  absl::StatusOr<std::string> file = FindBeside(path, part.location);
  if (!file.ok()) return file.status();
  std::error_code error;
  const absl::StatusOr<int64_t> length = part.LengthWithin(static_cast<int64_t>(fs::file_size(*file, error)));
  if (!length.ok()) return length.status();
  std::ifstream stream(*file, std::ios::binary);
  if (!stream) return absl::PermissionDeniedError(absl::StrCat(Quoted(part.location), ": ", std::strerror(errno)));
  std::string bytes(static_cast<size_t>(*length), '\0');
  stream.seekg(part.offset);
  stream.read(bytes.data(), *length);
  if (stream.gcount() == *length) return bytes;
  return absl::DataLossError(absl::StrCat(Quoted(part.location), " cannot be read to its end"));
}

// Gives `sent` the file's bytes with those that its tensors have in others, where there are such.
absl::Status Join(Sent* sent) {
  std::error_code error;
  const auto size = fs::file_size(sent->path, error);
  // Who reads it says what is wrong with it.
  if (error || size > static_cast<uintmax_t>(kMostOnnxBytes)) return absl::OkStatus();
  const absl::StatusOr<bool> may = MayNeedOthers(sent->path);
  if (!may.ok()) return may.status();
  if (!*may) return absl::OkStatus();
  absl::StatusOr<std::ifstream> file = OpenFile(sent->path);
  if (!file.ok()) return file.status();
  std::string bytes(size, '\0');
  file->read(bytes.data(), static_cast<std::streamsize>(size));
  if (static_cast<uintmax_t>(file->gcount()) != size) {
    return absl::DataLossError(absl::StrCat(sent->path, ": cannot be read"));
  }
  const auto read = [&](const ExternalPart& part) {
    absl::StatusOr<std::string> taken = ReadBeside(sent->path, part);
    if (taken.ok()) sent->beside.insert(part.location);
    return taken;
  };
  absl::StatusOr<std::optional<std::string>> joined = JoinExternalData(std::move(bytes), read);
  if (!joined.ok()) {
    return absl::Status(joined.status().code(), absl::StrCat(sent->path, ": ", joined.status().message()));
  }
  sent->bytes = *std::move(joined);
  return absl::OkStatus();
}

absl::StatusOr<Sent> Prepare(const std::string& path, bool is_onnx) {
  Sent sent{.path = path};
  if (is_onnx) {
    if (absl::Status status = Join(&sent); !status.ok()) return status;
  }
  if (sent.bytes.has_value()) {
    Sha256 digest;
    digest.Update(*sent.bytes);
    sent.checksum = digest.HexDigest();
    sent.size = static_cast<int64_t>(sent.bytes->size());
    return sent;
  }
  absl::StatusOr<std::string> checksum = Sha256OfFile(path);
  if (!checksum.ok()) return checksum.status();
  sent.checksum = *std::move(checksum);
  std::error_code error;
  sent.size = static_cast<int64_t>(fs::file_size(path, error));
  return sent;
}

// " with a, b and 3 more", or "".
std::string BesideText(const Sent& sent) {
  constexpr size_t kShown = 4;
  std::vector<std::string> names;
  for (const std::string& file : sent.beside) names.push_back(Clean(file));
  return names.empty() ? "" : absl::StrCat(" with ", FirstOf(names, kShown));
}

// The upload's name in specs.
absl::StatusOr<std::string> Upload(Connection* connection, const Sent& sent, Interrupt* interrupt, std::ostream* log) {
  constexpr int kAttempts = 5;
  if (log != nullptr) {
    *log << "sending " << sent.path << BesideText(sent) << ", " << Bytes(sent.size) << ", unless the server has it"
         << std::endl;
  }
  Backoff backoff(absl::Milliseconds(200), absl::Seconds(2));
  absl::StatusOr<v1::UploadModelResponse> answer = UploadOnce(connection, sent, interrupt);
  for (int attempt = 1; attempt < kAttempts && !answer.ok() && IsTransient(answer.status()); ++attempt) {
    if (!interrupt->SleepFor(RetryDelayOf(answer.status()).value_or(backoff.Next()))) break;
    answer = UploadOnce(connection, sent, interrupt);
  }
  if (answer.ok()) return answer->path();
  return absl::Status(answer.status().code(), absl::StrCat(sent.path, ": ", std::string(answer.status().message())));
}

bool IsOfTheFile(const absl::Status& status) { return absl::IsNotFound(status) || absl::IsDataLoss(status); }

// Of JOB or JOB@CHECKPOINT; nullopt where a part is missing.
std::optional<v1::WeightSource> ParseJobSource(const std::string& source) {
  const size_t at = source.find('@');
  v1::WeightSource job;
  job.set_job_id(source.substr(0, at));
  if (at != std::string::npos) job.set_checkpoint(source.substr(at + 1));
  if (job.job_id().empty() || (at != std::string::npos && job.checkpoint().empty())) return std::nullopt;
  return job;
}

}  // namespace

absl::StatusOr<std::string> LocalFileOf(const std::string& path, const std::string& folder) {
  if (path.empty() || NamesUpload(path)) return "";
  // Nothing more is tidied: behind a link ".." is not what it looks like.
  const absl::string_view plain = absl::StripPrefix(path, "./");
  const std::string local = path[0] == '/' || folder == "." ? std::string(plain) : absl::StrCat(folder, "/", plain);
  if (IsFile(local)) return local;
  if (!absl::StartsWith(path, "./") && !absl::StartsWith(path, "../")) return "";
  return absl::NotFoundError(absl::StrCat("no file ", local, " on this machine"));
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  absl::StatusOr<std::ifstream> file = OpenFile(path);
  if (!file.ok()) return file.status();
  Sha256 digest;
  while (true) {
    const absl::StatusOr<std::string> piece = ReadPiece(&*file, path);
    if (!piece.ok()) return piece.status();
    if (piece->empty()) return digest.HexDigest();
    digest.Update(*piece);
  }
}

absl::Status UploadLocalFiles(const JobFile& file, Connection* connection, Interrupt* interrupt, std::ostream* log,
                              v1::JobSpec* spec) {
  // By their paths here: points of a sweep may share one.
  std::map<std::string, std::string> uploads;
  for (const NamedFile& one : NamedFiles(spec)) {
    const absl::StatusOr<std::string> local = LocalFileOf(*one.path, file.FolderOf(one.field));
    if (!local.ok()) return InvalidFields({{one.field, std::string(local.status().message())}});
    if (local->empty()) continue;
    std::string& name = uploads[*local];
    if (name.empty()) {
      const absl::StatusOr<Sent> sent = Prepare(*local, one.is_onnx);
      if (!sent.ok()) return InvalidFields({{one.field, std::string(sent.status().message())}});
      absl::StatusOr<std::string> upload = Upload(connection, *sent, interrupt, log);
      if (IsOfTheFile(upload.status())) return InvalidFields({{one.field, std::string(upload.status().message())}});
      if (!upload.ok()) return upload.status();
      name = *std::move(upload);
    }
    *one.path = name;
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::WeightSource> ParseResumeFrom(const std::string& source) {
  v1::WeightSource weights;
  if (NamesUpload(source)) {
    weights.set_path(source);
    return weights;
  }
  if (IsFile(source)) {
    weights.set_path(fs::absolute(source).string());
    return weights;
  }
  if (absl::EndsWith(source, kWeightsSuffix) || source.find('/') != std::string::npos) {
    return absl::NotFoundError(absl::StrCat("--resume-from: no file ", source,
                                            " on this machine; one beneath the server's data roots is named by --set "
                                            "start_from.path=PATH"));
  }
  std::optional<v1::WeightSource> job = ParseJobSource(source);
  if (job.has_value()) return *std::move(job);
  return absl::InvalidArgumentError(
      absl::StrCat("--resume-from: expected FILE.safetensors, JOB or JOB@CHECKPOINT, got ", Quoted(source)));
}

absl::StatusOr<v1::WeightSource> ParseContinueFrom(const std::string& source) {
  std::optional<v1::WeightSource> job;
  // A file has no training; an id has no such bytes.
  if (!NamesUpload(source) && source.find_first_of("./") == std::string::npos) job = ParseJobSource(source);
  if (!job.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--continue-from: expected JOB or JOB@CHECKPOINT, got ", Quoted(source)));
  }
  job->set_continue_training(true);
  return *std::move(job);
}

}  // namespace ampd::client
