#include "server/store/statement.h"

#include <sqlite3.h>

#include "engine/core/status.h"
#include "server/store/database.h"

namespace ampd {

Statement::Statement(const Database& database, const char* sql) : database_(database) {
  sqlite3_stmt*& cached = database.statements_[sql];
  if (cached == nullptr) Check(sqlite3_prepare_v3(database.db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &cached, nullptr));
  statement_ = cached;
}

Statement::Statement(const Database& database, absl::string_view sql, Once) : database_(database), is_own_(true) {
  Check(sqlite3_prepare_v3(database.db_, sql.data(), static_cast<int>(sql.size()), 0, &statement_, nullptr));
}

Statement::~Statement() {
  if (statement_ == nullptr) return;
  if (is_own_) {
    sqlite3_finalize(statement_);
    return;
  }
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

void Statement::Check(int code) {
  if (status_.ok() && code != SQLITE_OK) status_ = database_.ErrorOf(code, "statement");
}

Statement& Statement::Int(int64_t value) {
  if (status_.ok()) Check(sqlite3_bind_int64(statement_, ++bound_, value));
  return *this;
}

Statement& Statement::Real(double value) {
  if (status_.ok()) Check(sqlite3_bind_double(statement_, ++bound_, value));
  return *this;
}

Statement& Statement::Text(absl::string_view value) {
  if (status_.ok()) {
    Check(sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  return *this;
}

Statement& Statement::Blob(absl::string_view value) {
  // A null pointer would bind NULL.
  const char* data = value.empty() ? "" : value.data();
  if (status_.ok()) Check(sqlite3_bind_blob64(statement_, ++bound_, data, value.size(), SQLITE_TRANSIENT));
  return *this;
}

Statement& Statement::Null() {
  if (status_.ok()) Check(sqlite3_bind_null(statement_, ++bound_));
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  AMPD_RETURN_IF_ERROR(status_);
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_.ErrorOf(code, sqlite3_sql(statement_));
}

absl::Status Statement::Run() {
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, Step());
    if (!row) return absl::OkStatus();
  }
}

int64_t Statement::IntAt(int column) const { return sqlite3_column_int64(statement_, column); }
double Statement::RealAt(int column) const { return sqlite3_column_double(statement_, column); }
bool Statement::NullAt(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

size_t Statement::SizeAt(int column) const { return static_cast<size_t>(sqlite3_column_bytes(statement_, column)); }
bool Statement::IsTextAt(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_TEXT; }

std::string Statement::BytesAt(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
}

absl::Status Statement::ParseAt(int column, google::protobuf::MessageLite* message) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (message->ParseFromArray(data, size)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(database_.path_, ": column ", sqlite3_column_name(statement_, column),
                                          " of \"", sqlite3_sql(statement_), "\" holds no ", message->GetTypeName()));
}

}  // namespace ampd
