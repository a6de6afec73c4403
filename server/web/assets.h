// Files of the web page, which are part of the program.
#ifndef AMPD_SERVER_WEB_ASSETS_H_
#define AMPD_SERVER_WEB_ASSETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/http/router.h"

namespace ampd {

struct Asset {
  // Exact: "/", "/app.js".
  const char* path;
  // "text/html; charset=utf-8".
  const char* content_type;
  // Lives as long as the program.
  absl::string_view bytes;
  // Other bytes have another path: who has them need not ask again.
  bool is_immutable = false;
};

// Has `router` answer GET and HEAD of each path, to everybody, with an ETag of the bytes (304 when the client has them)
// and a Content-Security-Policy that allows scripts, styles and connections of this server alone, and nothing inline
// (docs/json_api.md has its text).
void AddAssets(absl::Span<const Asset> assets, Router* router);

}  // namespace ampd

#endif  // AMPD_SERVER_WEB_ASSETS_H_
