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
    // The notice is there once a GET of this is answered with 200; any other answer, or none, is none.
    std::optional<HttpUrl> url;
    absl::Duration interval = absl::Seconds(1);
  };

  // Looks every `interval`. `on_notice` is called at most once, on a thread of its own, with what told of it.
  SpotNotice(Options options, std::function<void(const std::string& what)> on_notice);
  ~SpotNotice();
  SpotNotice(const SpotNotice&) = delete;
  SpotNotice& operator=(const SpotNotice&) = delete;

 private:
  void Run();
  // Empty while there is no notice.
  std::string Look() const;

  const Options options_;
  const std::function<void(const std::string&)> on_notice_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ampd

#endif  // AMPD_SERVER_MAIN_SPOT_NOTICE_H_
