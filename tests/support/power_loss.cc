#include "tests/support/power_loss.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace ampd {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 512;

enum class Kind { kCreate, kMakeFolder, kWrite, kTruncate, kSync, kRename, kExchange, kRemove };

struct Call {
  Kind kind;
  // Of the file as it is named at the time; within the folder.
  std::string path;
  // kRename, kExchange: the other name.
  std::string to;
  // kWrite: where. kTruncate: the size.
  size_t offset = 0;
  std::string bytes;
};

struct Recording {
  std::mutex mutex;
  std::atomic<bool> on = false;
  std::string folder;
  std::vector<Call> calls;
  // Descriptors of files and folders beneath the folder; a file renamed while open is not followed.
  std::map<int, std::string> open;
};

Recording& TheRecording() {
  static Recording& recording = *new Recording;
  return recording;
}

std::optional<std::string> Within(const std::string& folder, int at, const char* path) {
  std::string whole = path;
  if (whole.empty() || whole[0] != '/') {
    char base[4096];
    const std::string link = at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(at);
    const ssize_t size = readlink(link.c_str(), base, sizeof(base));
    if (size < 0) return std::nullopt;
    whole = std::string(base, static_cast<size_t>(size)) + "/" + whole;
  }
  whole = fs::path(whole).lexically_normal().string();
  if (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  if (whole != folder && whole.compare(0, folder.size() + 1, folder + "/") != 0) return std::nullopt;
  return whole;
}

// Runs `call`, whose result is -1 on failure, and then `record` with the recording locked; order of calls is that of
// their records.
template <typename Run, typename Record>
auto Recorded(Run run, Record record) {
  Recording& recording = TheRecording();
  // It may block, and the program may fork meanwhile.
  if (!recording.on) return run();
  const std::lock_guard lock(recording.mutex);
  const auto result = run();
  if (recording.on && result >= 0) {
    const int error = errno;
    record(recording, result);
    errno = error;
  }
  return result;
}

template <typename F>
F* Next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

int RecordedOpen(const char* name, int at, const char* path, int flags, mode_t mode) {
  auto* const next = Next<int(int, const char*, int, ...)>(name);
  // Without the recording, the common case, no lock is taken: opening may block.
  if (!TheRecording().on) return next(at, path, flags, mode);
  const std::string folder = TheRecording().folder;
  const std::optional<std::string> within = Within(folder, at, path);
  if (!within) return next(at, path, flags, mode);
  const bool existed = access(within->c_str(), F_OK) == 0;
  return Recorded([&] { return next(at, path, flags, mode); },
                  [&](Recording& recording, int fd) {
                    recording.open[fd] = *within;
                    if (!existed) recording.calls.push_back({Kind::kCreate, *within, "", 0, ""});
                    if (existed && (flags & O_TRUNC) != 0)
                      recording.calls.push_back({Kind::kTruncate, *within, "", 0, ""});
                  });
}

void RecordWrite(Recording& recording, int fd, const void* bytes, size_t size, size_t offset) {
  const auto file = recording.open.find(fd);
  if (file == recording.open.end()) return;
  recording.calls.push_back(
      {Kind::kWrite, file->second, "", offset, std::string(static_cast<const char*>(bytes), size)});
}

int RecordedSync(const char* name, int fd) {
  return Recorded([&] { return Next<int(int)>(name)(fd); },
                  [&](Recording& recording, int) {
                    const auto file = recording.open.find(fd);
                    if (file != recording.open.end()) recording.calls.push_back({Kind::kSync, file->second, "", 0, ""});
                  });
}

int RecordedTruncate(const char* name, int fd, off_t size) {
  return Recorded([&] { return Next<int(int, off_t)>(name)(fd, size); },
                  [&](Recording& recording, int) {
                    const auto file = recording.open.find(fd);
                    if (file == recording.open.end()) return;
                    recording.calls.push_back({Kind::kTruncate, file->second, "", static_cast<size_t>(size), ""});
                  });
}

void RecordNames(Recording& recording, Kind kind, int at, const char* path, int to_at = AT_FDCWD,
                 const char* to = nullptr) {
  const std::optional<std::string> within = Within(recording.folder, at, path);
  const std::optional<std::string> other = to == nullptr ? std::nullopt : Within(recording.folder, to_at, to);
  if (!within || (to != nullptr && !other)) return;
  recording.calls.push_back({kind, *within, other.value_or(""), 0, ""});
}

// A file or a folder; names that lead to it come and go without it.
struct Node {
  bool is_folder = false;
  // As the program sees it.
  std::string bytes;
  std::map<std::string, std::shared_ptr<Node>> names;
  // As of the last sync.
  std::string synced_bytes;
  std::map<std::string, std::shared_ptr<Node>> synced_names;
  // Since then.
  std::vector<Call> changes;
  // Of a folder: its names after each of them.
  std::vector<std::map<std::string, std::shared_ptr<Node>>> names_after;
};
using NodePtr = std::shared_ptr<Node>;

void Change(Node* file, const Call& call) {
  if (call.kind == Kind::kTruncate) {
    file->bytes.resize(call.offset);
  } else {
    file->bytes.resize(std::max(file->bytes.size(), call.offset + call.bytes.size()));
    file->bytes.replace(call.offset, call.bytes.size(), call.bytes);
  }
}

class Disk {
 public:
  explicit Disk(std::string folder) : folder_(std::move(folder)) { root_->is_folder = true; }

  void Apply(const Call& call, bool syncs_nothing) {
    switch (call.kind) {
      case Kind::kCreate:
      case Kind::kMakeFolder: {
        auto node = std::make_shared<Node>();
        node->is_folder = call.kind == Kind::kMakeFolder;
        return Rename(call, [&](auto& names) { names[Name(call.path)] = node; });
      }
      case Kind::kRemove:
        return Rename(call, [&](auto& names) { names.erase(Name(call.path)); });
      case Kind::kRename:
      case Kind::kExchange:
        return Rename(call, [&](auto& names) {
          std::swap(names[Name(call.path)], names[Name(call.to)]);
          if (call.kind == Kind::kRename) names.erase(Name(call.path));
        });
      case Kind::kSync:
        if (!syncs_nothing) Sync(Find(call.path).get());
        return;
      case Kind::kWrite:
      case Kind::kTruncate: {
        const NodePtr file = Find(call.path);
        if (file == nullptr) return;
        Change(file.get(), call);
        file->changes.push_back(call);
      }
    }
  }

  void Write(std::mt19937& random, const std::string& target) const { WriteFolder(*root_, random, target); }

 private:
  static std::string Name(const std::string& path) { return fs::path(path).filename().string(); }

  NodePtr Find(const std::string& path) const {
    NodePtr node = root_;
    if (path == folder_) return node;
    for (const fs::path& part : fs::path(path.substr(folder_.size() + 1))) {
      const auto found = node->names.find(part.string());
      if (found == node->names.end()) return nullptr;
      node = found->second;
    }
    return node;
  }

  template <typename F>
  void Rename(const Call& call, F change) {
    const NodePtr parent = Find(fs::path(call.path).parent_path().string());
    if (!call.to.empty() && fs::path(call.to).parent_path() != fs::path(call.path).parent_path()) {
      fprintf(stderr, "a rename from one folder to another is not modelled: %s\n", call.path.c_str());
      abort();
    }
    if (parent == nullptr) return;
    change(parent->names);
    parent->names_after.push_back(parent->names);
  }

  static void Sync(Node* node) {
    if (node == nullptr) return;
    node->synced_bytes = node->bytes;
    node->synced_names = node->names;
    node->changes.clear();
    node->names_after.clear();
  }

  static void WriteFolder(const Node& folder, std::mt19937& random, const std::string& target) {
    fs::create_directories(target);
    const size_t survive = random() % (folder.names_after.size() + 1);
    const auto& names = survive == 0 ? folder.synced_names : folder.names_after[survive - 1];
    for (const auto& [name, node] : names) {
      const std::string path = target + "/" + name;
      if (node->is_folder) {
        WriteFolder(*node, random, path);
      } else {
        std::ofstream(path, std::ios::binary) << Surviving(*node, random);
      }
    }
  }

  // None, all, or some of what was written since the last sync.
  static std::string Surviving(const Node& file, std::mt19937& random) {
    const unsigned how = random() % 4;
    Node disk;
    disk.bytes = file.synced_bytes;
    if (how == 0) return disk.bytes;
    for (const Call& call : file.changes) {
      if (how == 1) {
        Change(&disk, call);
      } else if (call.kind == Kind::kTruncate) {
        if (random() % 2 == 0) Change(&disk, call);
      } else {
        ChangeBlocks(&disk, call, random);
      }
    }
    return disk.bytes;
  }

  static void ChangeBlocks(Node* disk, const Call& call, std::mt19937& random) {
    for (size_t done = 0; done < call.bytes.size();) {
      const size_t at = call.offset + done;
      const size_t size = std::min(kBlock - at % kBlock, call.bytes.size() - done);
      if (random() % 2 == 0) Change(disk, {Kind::kWrite, "", "", at, call.bytes.substr(done, size)});
      done += size;
    }
  }

  const std::string folder_;
  NodePtr root_ = std::make_shared<Node>();
};

}  // namespace

PowerLoss::PowerLoss(const std::string& folder) {
  Recording& recording = TheRecording();
  const std::lock_guard lock(recording.mutex);
  recording.folder = std::filesystem::path(folder).lexically_normal().string();
  recording.calls.clear();
  recording.open.clear();
  recording.on = true;
}

PowerLoss::~PowerLoss() {
  const std::lock_guard lock(TheRecording().mutex);
  TheRecording().on = false;
}

size_t PowerLoss::position() const {
  const std::lock_guard lock(TheRecording().mutex);
  return TheRecording().calls.size();
}

void PowerLoss::Restore(size_t position, std::mt19937& random, const std::string& target, bool syncs_nothing) const {
  Recording& recording = TheRecording();
  std::vector<Call> calls;
  {
    const std::lock_guard lock(recording.mutex);
    calls.assign(recording.calls.begin(), recording.calls.begin() + static_cast<ptrdiff_t>(position));
  }
  Disk disk(recording.folder);
  for (const Call& call : calls) disk.Apply(call, syncs_nothing);
  disk.Write(random, target);
}

}  // namespace ampd

using ampd::Kind;
using ampd::Next;
using ampd::Recorded;
using ampd::RecordedOpen;
using ampd::Recording;

namespace {

mode_t ModeOf(int flags, va_list arguments) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return RecordedOpen("openat", AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return RecordedOpen("openat64", AT_FDCWD, path, flags, mode);
}

int openat(int at, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return RecordedOpen("openat", at, path, flags, mode);
}

int close(int fd) {
  return Recorded([&] { return Next<int(int)>("close")(fd); },
                  [&](Recording& recording, int) { recording.open.erase(fd); });
}

ssize_t write(int fd, const void* bytes, size_t size) {
  return Recorded([&] { return Next<ssize_t(int, const void*, size_t)>("write")(fd, bytes, size); },
                  [&](Recording& recording, ssize_t written) {
                    const off_t end = lseek(fd, 0, SEEK_CUR);
                    if (end < written) return;
                    ampd::RecordWrite(recording, fd, bytes, static_cast<size_t>(written),
                                      static_cast<size_t>(end - written));
                  });
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  return Recorded([&] { return Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64")(fd, bytes, size, offset); },
                  [&](Recording& recording, ssize_t written) {
                    ampd::RecordWrite(recording, fd, bytes, static_cast<size_t>(written), static_cast<size_t>(offset));
                  });
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

int ftruncate(int fd, off_t size) noexcept { return ampd::RecordedTruncate("ftruncate", fd, size); }
int ftruncate64(int fd, off64_t size) noexcept { return ampd::RecordedTruncate("ftruncate64", fd, size); }

int fsync(int fd) { return ampd::RecordedSync("fsync", fd); }
int fdatasync(int fd) { return ampd::RecordedSync("fdatasync", fd); }

int mkdir(const char* path, mode_t mode) noexcept {
  return Recorded([&] { return Next<int(const char*, mode_t)>("mkdir")(path, mode); },
                  [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kMakeFolder, AT_FDCWD, path); });
}

int rename(const char* from, const char* to) noexcept {
  return Recorded(
      [&] { return Next<int(const char*, const char*)>("rename")(from, to); },
      [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kRename, AT_FDCWD, from, AT_FDCWD, to); });
}

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  return Recorded(
      [&] {
        return Next<int(int, const char*, int, const char*, unsigned)>("renameat2")(from_at, from, to_at, to, flags);
      },
      [&](Recording& recording, int) {
        const Kind kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::kExchange : Kind::kRename;
        ampd::RecordNames(recording, kind, from_at, from, to_at, to);
      });
}

int unlink(const char* path) noexcept {
  return Recorded([&] { return Next<int(const char*)>("unlink")(path); },
                  [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kRemove, AT_FDCWD, path); });
}

int rmdir(const char* path) noexcept {
  return Recorded([&] { return Next<int(const char*)>("rmdir")(path); },
                  [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kRemove, AT_FDCWD, path); });
}

int unlinkat(int at, const char* path, int flags) noexcept {
  return Recorded([&] { return Next<int(int, const char*, int)>("unlinkat")(at, path, flags); },
                  [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kRemove, at, path); });
}

int remove(const char* path) noexcept {
  return Recorded([&] { return Next<int(const char*)>("remove")(path); },
                  [&](Recording& recording, int) { ampd::RecordNames(recording, Kind::kRemove, AT_FDCWD, path); });
}

}  // extern "C"
