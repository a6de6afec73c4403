// The length of SQLite's log.
#include <sqlite3.h>

#include "server/store/database.h"

namespace ampd {

void Database::WatchLog() {
  // In place of SQLite's own copying after a commit, which tells nobody how long the log is.
  const auto after_commit = [](void* self, sqlite3*, const char*, int pages) {
    auto* database = static_cast<Database*>(self);
    database->log_pages_ = pages;
    if (pages >= kLogPages) database->CopyLog();
    // An error here would be the commit's, which is durable.
    return SQLITE_OK;
  };
  sqlite3_wal_hook(db_, after_commit, this);
}

void Database::CopyLog() const { sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr); }

}  // namespace ampd
