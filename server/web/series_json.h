// A job's figures as the web page reads them; docs/json_api.md has the shape.
#ifndef AMPD_SERVER_WEB_SERIES_JSON_H_
#define AMPD_SERVER_WEB_SERIES_JSON_H_

#include <cstdint>
#include <string>

#include "server/web/job_digest.h"

namespace ampd {

struct SeriesRange {
  // From 1; `to` 0: up to the newest step.
  int64_t from = 1;
  int64_t to = 0;
  // Buckets at most, >= 1.
  int64_t points = 1000;
};

std::string SeriesJson(const std::string& job_id, const JobDigest& digest, const SeriesRange& range);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_SERIES_JSON_H_
