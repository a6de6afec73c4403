#include "server/web/assets.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/jobs/credentials.h"

namespace ampd {
namespace {

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

constexpr char kForever[] = "public, max-age=31536000, immutable";
constexpr char kAskAgain[] = "no-cache";

// The client may keep several: If-None-Match is a list.
bool HasTag(const HttpRequest& request, const std::string& tag) {
  const std::optional<std::string> kept = request.Header("If-None-Match");
  return kept && absl::StrContains(*kept, tag);
}

HttpResponse AnswerWith(const Asset& asset, const std::string& tag, const HttpRequest& request) {
  HttpResponse response;
  response.content_type = asset.content_type;
  response.headers = {{"ETag", tag},
                      {"Cache-Control", asset.is_immutable ? kForever : kAskAgain},
                      {"Content-Security-Policy", kPolicy},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (HasTag(request, tag)) {
    response.status = 304;
  } else {
    response.body = std::string(asset.bytes);
  }
  return response;
}

}  // namespace

void AddAssets(absl::Span<const Asset> assets, Router* router) {
  for (const Asset& asset : assets) {
    const std::string tag = absl::StrCat("\"", absl::BytesToHexString(Sha256(asset.bytes).substr(0, 16)), "\"");
    router->Add("GET", asset.path, [asset, tag](HttpExchange& exchange, const Router::Arguments&) {
      exchange.Send(AnswerWith(asset, tag, exchange.request()));
    });
  }
}

}  // namespace ampd
