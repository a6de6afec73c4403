#include "server/main/open_connections.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ampd {
namespace {

// At a time.
constexpr size_t kLooks = 512;

int KeyOf(int descriptor) { return descriptor; }

template <typename T>
int KeyOf(const std::pair<const int, T>& entry) {
  return entry.first;
}

// The next in turn behind `*looked_at`, from the front again at the end.
template <typename Container>
std::vector<int> NextOf(const Container& of, int* looked_at) {
  std::vector<int> next;
  auto at = of.upper_bound(*looked_at);
  for (size_t i = std::min(kLooks, of.size()); i > 0; --i, ++at) {
    if (at == of.end()) at = of.begin();
    next.push_back(KeyOf(*at));
  }
  if (!next.empty()) *looked_at = next.back();
  return next;
}

}  // namespace

bool OpenConnections::HasRoomFor(const std::string& client, bool is_local) {
  if (open_.size() >= bounds_.all) LookAtAll();
  if (open_.size() >= bounds_.all) return false;
  const size_t bound = is_local ? bounds_.local_client : bounds_.client;
  if (CountOf(client) >= bound) LookAtThoseOf(client);
  return CountOf(client) < bound;
}

void OpenConnections::Add(int descriptor, const std::string& client) {
  // Of an earlier one that had this number.
  Forget(descriptor);
  struct stat now = {};
  if (fstat(descriptor, &now) != 0) return;
  open_[descriptor] = {now.st_dev, now.st_ino, client};
  clients_[client].descriptors.insert(descriptor);
}

size_t OpenConnections::CountOf(const std::string& client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? 0 : found->second.descriptors.size();
}

bool OpenConnections::HasEnded(int descriptor, const Open& open) const {
  struct stat now = {};
  return fstat(descriptor, &now) != 0 || now.st_dev != open.device || now.st_ino != open.inode;
}

void OpenConnections::LookAtAll() {
  for (const int descriptor : NextOf(open_, &looked_at_)) {
    if (HasEnded(descriptor, open_.at(descriptor))) Forget(descriptor);
  }
}

void OpenConnections::LookAtThoseOf(const std::string& client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  for (const int descriptor : NextOf(found->second.descriptors, &found->second.looked_at)) {
    if (HasEnded(descriptor, open_.at(descriptor))) Forget(descriptor);
  }
}

void OpenConnections::Forget(int descriptor) {
  const auto found = open_.find(descriptor);
  if (found == open_.end()) return;
  const auto client = clients_.find(found->second.client);
  client->second.descriptors.erase(descriptor);
  if (client->second.descriptors.empty()) clients_.erase(client);
  open_.erase(found);
}

}  // namespace ampd
