#include "engine/core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ampd {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

// The number that follows `key` in a file of the kernel's, or its first; `fallback` where there is none ("max").
int64_t NumberIn(const std::string& path, const std::string& key, int64_t fallback) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) continue;
  int64_t value = 0;
  return file >> word && absl::SimpleAtoi(word, &value) ? value : fallback;
}

// The folders of the process's group and of those around it: what they are called from within a container's own tree
// of groups is the tree's root.
std::vector<std::string> Groups(const std::string& root) {
  const std::string tree = absl::StrCat(root, "/sys/fs/cgroup");
  std::ifstream file(absl::StrCat(root, "/proc/self/cgroup"));
  std::string line, path;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "0::/")) path = line.substr(3);
  }
  std::vector<std::string> groups = {tree};
  for (; path.size() > 1; path.resize(path.rfind('/'))) groups.push_back(absl::StrCat(tree, path));
  return groups;
}

int64_t LimitOf(const std::string& group) { return NumberIn(absl::StrCat(group, "/memory.max"), "", kAll); }

int64_t LeftIn(const std::string& group) {
  const int64_t limit = LimitOf(group);
  if (limit == kAll) return kAll;
  const int64_t used = NumberIn(absl::StrCat(group, "/memory.current"), "", 0);
  const int64_t taken_back = NumberIn(absl::StrCat(group, "/memory.stat"), "inactive_file", 0);
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, used - taken_back));
}

}  // namespace

int64_t AvailableHostMemory(int64_t fallback, const std::string& root) {
  int64_t bytes = 1024 * NumberIn(absl::StrCat(root, "/proc/meminfo"), "MemAvailable:", fallback / 1024);
  for (const std::string& group : Groups(root)) bytes = std::min(bytes, LeftIn(group));
  return bytes;
}

int64_t HostMemoryLimit(const std::string& root) {
  int64_t bytes = kAll;
  for (const std::string& group : Groups(root)) bytes = std::min(bytes, LimitOf(group));
  return bytes;
}

}  // namespace ampd
