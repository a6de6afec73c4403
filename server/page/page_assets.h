// The web page: the files of web/, embedded when the program is built.
#ifndef AMPD_SERVER_PAGE_PAGE_ASSETS_H_
#define AMPD_SERVER_PAGE_PAGE_ASSETS_H_

#include "absl/types/span.h"
#include "server/web/assets.h"

namespace ampd {

// A row a file: "/" is index.html, the others are at "/v/HASH/js/main.js", immutable; HASH is of all of them.
absl::Span<const Asset> PageAssets();

}  // namespace ampd

#endif  // AMPD_SERVER_PAGE_PAGE_ASSETS_H_
