#include "client/contexts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/spec/names.h"
#include "proto/spec/text.h"
#include "proto/spec/yaml.h"

namespace ampd::client {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 100;
constexpr char kHead[] = "# Servers that ampctl knows; `ampctl contexts` changes them.\n";

// Closes what it holds.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

absl::Status Unusable(const std::string& path, int error) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", strerror(error)));
}

absl::StatusOr<std::string> ReadAll(int file, const std::string& path) {
  std::string text;
  char buffer[4096];
  while (text.size() <= kMaxBytes) {
    const ssize_t count = read(file, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unusable(path, errno);
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, " is too large"));
}

absl::Status WriteAll(int file, const std::string& path, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unusable(path, errno);
    written += static_cast<size_t>(count);
  }
  return fsync(file) == 0 ? absl::OkStatus() : Unusable(path, errno);
}

void MakeAbsolute(const fs::path& folder, std::string* path) {
  if (!path->empty() && (*path)[0] != '/') *path = (folder / *path).lexically_normal().string();
}

// Of the parser's lines, "FILE:LINE: PATH: what is wrong", those about tokens say what stands there.
absl::Status WithoutTokens(const absl::Status& status) {
  const std::string field_end = ".token: ";
  std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  for (std::string& line : lines) {
    const size_t field = line.find(field_end);
    if (field != std::string::npos) line = line.substr(0, field + field_end.size()) + "must be a string";
  }
  return absl::Status(status.code(), absl::StrJoin(lines, "\n"));
}

bool HoldsToken(const ClientConfig& config) {
  for (const auto& [name, context] : config.contexts()) {
    if (!context.token().empty()) return true;
  }
  return false;
}

}  // namespace

std::string ContextsPath() {
  const auto of = [](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string path = of("AMPCTL_CONFIG"); !path.empty()) return path;
  if (const std::string folder = of("XDG_CONFIG_HOME"); !folder.empty()) return folder + "/ampctl/config.yaml";
  const std::string home = of("HOME");
  return home.empty() ? "" : home + "/.config/ampctl/config.yaml";
}

absl::StatusOr<ClientConfig> ReadContexts(const std::string& path) {
  ClientConfig config;
  if (path.empty()) return config;
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return config;
  if (file.get() < 0) return Unusable(path, errno);
  const absl::StatusOr<std::string> text = ReadAll(file.get(), path);
  if (!text.ok()) return text.status();
  if (const absl::Status status = ParseYaml(*text, path, &config); !status.ok()) return WithoutTokens(status);
  struct stat about = {};
  if (HoldsToken(config) && (fstat(file.get(), &about) != 0 || (about.st_mode & 077) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds a token, and others may read it; keep it to yourself: chmod 600 ", path));
  }
  std::error_code error;
  const fs::path folder = fs::absolute(path, error).parent_path();
  for (auto& [name, context] : *config.mutable_contexts()) {
    MakeAbsolute(folder, context.mutable_ca());
    MakeAbsolute(folder, context.mutable_cert());
    MakeAbsolute(folder, context.mutable_key());
    MakeAbsolute(folder, context.mutable_token_file());
  }
  return config;
}

absl::Status WriteContexts(const std::string& path, const ClientConfig& config) {
  if (path.empty()) return absl::FailedPreconditionError("no place for contexts: set AMPCTL_CONFIG or HOME");
  std::error_code error;
  // A link stays one.
  fs::path target = fs::weakly_canonical(path, error);
  if (error) target = path;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
  if (error) return Unusable(target.parent_path().string(), error.value());
  std::string aside = target.string() + ".XXXXXX";
  // Of mode 0600.
  const File file(mkostemp(aside.data(), O_CLOEXEC));
  if (file.get() < 0) return Unusable(target.string(), errno);
  absl::Status status = WriteAll(file.get(), target.string(), absl::StrCat(kHead, ToYaml(config)));
  if (status.ok() && rename(aside.c_str(), target.c_str()) != 0) status = Unusable(target.string(), errno);
  if (!status.ok()) unlink(aside.c_str());
  return status;
}

absl::StatusOr<ClientContext> FindContext(const ClientConfig& config, const std::string& name) {
  const auto found = config.contexts().find(name);
  if (found != config.contexts().end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [other, context] : config.contexts()) names.push_back(other);
  return absl::NotFoundError(
      absl::StrCat("no context ", Quoted(name), DidYouMean(name, names), "; `ampctl contexts list` shows them"));
}

absl::Status CheckContextName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes && IsMadeOf(name, "_-.") && name[0] != '-') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(name), " is no name for a context: letters, digits, '_', '-' and '.', at most ", kMaxNameBytes));
}

ClientContext WithoutSecrets(ClientContext context) {
  if (!context.token().empty()) context.set_token("REDACTED");
  return context;
}

ClientConfig WithoutSecrets(ClientConfig config) {
  for (auto& [name, context] : *config.mutable_contexts()) context = WithoutSecrets(std::move(context));
  return config;
}

}  // namespace ampd::client
