// Tokens of clients.
#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {

absl::Status Database::PutToken(const TokenRecord& record) {
  return Statement(*this,
                   "INSERT INTO tokens(id, hash, token) VALUES(?1, ?2, ?3) "
                   "ON CONFLICT(id) DO UPDATE SET hash = excluded.hash, token = excluded.token")
      .Text(record.token.id())
      .Blob(record.hash)
      .Blob(record.token.SerializeAsString())
      .Run();
}

absl::StatusOr<std::vector<TokenRecord>> Database::Tokens() const {
  Statement query(*this, "SELECT token, hash FROM tokens ORDER BY id");
  std::vector<TokenRecord> records;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return records;
    TokenRecord& record = records.emplace_back();
    AMPD_RETURN_IF_ERROR(query.ParseAt(0, &record.token));
    record.hash = query.BytesAt(1);
  }
}

}  // namespace ampd
