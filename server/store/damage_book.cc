#include "server/store/damage_book.h"

#include "absl/strings/str_cat.h"

namespace ampd {

void DamageBook::Note(const DamagedPage& page) {
  {
    const MutexLock lock(&mutex_);
    if (!pages_.insert(page.number).second) return;
  }
  if (log_) log_(absl::StrCat(path_, ": page ", page.number, " is damaged: it ", page.what));
}

int64_t DamageBook::pages() const {
  const MutexLock lock(&mutex_);
  return static_cast<int64_t>(pages_.size());
}

}  // namespace ampd
