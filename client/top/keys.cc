#include "client/top/keys.h"

#include <cstddef>

namespace ampd::client {
namespace {

// Bytes of the key at `at`; 0: it has not come as a whole.
size_t KeyBytes(const std::string& sent, size_t at) {
  if (sent[at] != '\x1b') return 1;
  if (at + 1 == sent.size()) return 0;
  const char kind = sent[at + 1];
  if (kind == 'O') return at + 2 < sent.size() ? 3 : 0;
  // The escape key, and then another.
  if (kind != '[') return 1;
  // ECMA-48: parameters and intermediate bytes, then a final one.
  size_t end = at + 2;
  while (end < sent.size() && sent[end] >= 0x20 && sent[end] <= 0x3f) ++end;
  return end < sent.size() ? end + 1 - at : 0;
}

}  // namespace

std::vector<std::string> TakeKeys(std::string* sent) {
  std::vector<std::string> keys;
  size_t at = 0;
  while (at < sent->size()) {
    const size_t bytes = KeyBytes(*sent, at);
    if (bytes == 0) break;
    keys.push_back(sent->substr(at, bytes));
    at += bytes;
  }
  sent->erase(0, at);
  return keys;
}

}  // namespace ampd::client
