// Reads beside the writer, each of one moment.
#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {

absl::StatusOr<std::unique_ptr<Database>> Database::OpenReader(const Database& writer) {
  AMPD_ASSIGN_OR_RETURN(std::unique_ptr<Database> reader,
                        Connect(writer.path_, -1, SQLITE_OPEN_READONLY, writer.damage_));
  AMPD_RETURN_IF_ERROR(reader->Execute("PRAGMA cell_size_check=ON"));
  AMPD_RETURN_IF_ERROR(reader->Execute("PRAGMA trusted_schema=OFF"));
  return reader;
}

absl::StatusOr<uint32_t> Database::BeginRead() const {
  AMPD_RETURN_IF_ERROR(Statement(*this, "BEGIN").Run());
  return CommitNumber();
}

void Database::EndRead() const {
  if (sqlite3_get_autocommit(db_) == 0) Statement(*this, "ROLLBACK").Run().IgnoreError();
}

absl::StatusOr<uint32_t> Database::CommitNumber() const {
  Statement query(*this, "PRAGMA user_version");
  AMPD_RETURN_IF_ERROR(query.Step().status());
  return static_cast<uint32_t>(query.IntAt(0));
}

absl::Status Database::SetCommitNumber(uint32_t number) {
  // A pragma takes no parameters.
  return Execute(absl::StrCat("PRAGMA user_version=", static_cast<int32_t>(number)).c_str());
}

}  // namespace ampd
