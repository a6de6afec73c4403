// Devices that are kept free of jobs.
#include "engine/core/status.h"
#include "server/store/database.h"
#include "server/store/statement.h"

namespace ampd {

absl::Status Database::SetDrain(const DrainRecord& drain) {
  return Statement(*this,
                   "INSERT OR REPLACE INTO device_drains(device, reason, time, stop_jobs) VALUES(?1, ?2, ?3, ?4)")
      .Text(drain.device)
      .Text(drain.reason)
      .Int(absl::ToUnixNanos(drain.time))
      .Int(drain.stop_jobs ? 1 : 0)
      .Run();
}

absl::Status Database::ClearDrain(absl::string_view device) {
  return Statement(*this, "DELETE FROM device_drains WHERE device=?1").Text(device).Run();
}

absl::StatusOr<std::vector<DrainRecord>> Database::Drains() const {
  Statement query(*this, "SELECT device, reason, time, stop_jobs FROM device_drains ORDER BY device");
  std::vector<DrainRecord> drains;
  while (true) {
    AMPD_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return drains;
    drains.push_back({query.BytesAt(0), query.BytesAt(1), absl::FromUnixNanos(query.IntAt(2)), query.IntAt(3) != 0});
  }
}

}  // namespace ampd
