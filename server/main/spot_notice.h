// Watches for the notice that a cloud is about to take the machine back.
#ifndef AMPD_SERVER_MAIN_SPOT_NOTICE_H_
#define AMPD_SERVER_MAIN_SPOT_NOTICE_H_

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "engine/core/mutex.h"
#include "server/config/http_url.h"

namespace ampd {

class SpotNotice {
 public:
  struct Options {
    // The notice is there once this file is; empty: no file is looked for.
    std::string file;
    // The notice is there once a GET of this is answered with 200; any other answer, or none, is none. As clouds'
    // metadata services want it: where it is answered with 401 it is asked again with a session token (AWS's IMDSv2);
    // beneath /computeMetadata/ (Google Cloud) it is asked with "Metadata-Flavor: Google", and the answer must be TRUE.
    std::optional<HttpUrl> url;
    absl::Duration interval = absl::Seconds(1);
    // Told, in words, of an answer other than 200 and 404, and that there was none three times: once, and again when it
    // is another or was as it should be in between. Required with `url`.
    std::function<void(const std::string&)> log;
  };

  // Looks every `interval`. `on_notice` is called at most once, on a thread of its own, with what told of it.
  SpotNotice(Options options, std::function<void(const std::string& what)> on_notice);
  ~SpotNotice();
  SpotNotice(const SpotNotice&) = delete;
  SpotNotice& operator=(const SpotNotice&) = delete;

 private:
  void Run();
  // Empty while there is no notice.
  std::string Look();
  bool UrlTells();
  // Logs an odd status of the URL's; 0: no answer.
  void Judge(int status);

  const Options options_;
  const std::function<void(const std::string&)> on_notice_;
  // Used by the thread alone: the session token, empty before it was needed, and the last status that counted, and
  // looks without an answer since the last one.
  std::string token_;
  int told_ = 200;
  int silent_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_SPOT_NOTICE_H_
