// ampctl: submits jobs to ampd, watches them and fetches what they learned.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <ostream>
#include <streambuf>

#include "client/exit_code.h"
#include "client/program.h"

namespace {

// Standard output, as a buffer that keeps why it could not be written.
class Output : public std::streambuf {
 public:
  Output() { Clear(); }

  // 0: all was written.
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c)
                                                           : sputc(traits_type::to_char_type(c));
  }

  int sync() override {
    for (const char* at = pbase(); at < pptr() && error_ == 0;) {
      const ssize_t written = write(STDOUT_FILENO, at, static_cast<size_t>(pptr() - at));
      if (written >= 0) {
        at += written;
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    Clear();
    return error_ == 0 ? 0 : -1;
  }

 private:
  void Clear() { setp(buffer_.data(), buffer_.data() + buffer_.size()); }

  std::array<char, 64 << 10> buffer_;
  int error_ = 0;
};

// Output that is no terminal, which may be a file on a full disk.
int RunIntoFile(int argc, char** argv) {
  Output output;
  std::ostream out(&output);
  const int code = ampd::client::RunProgram(argc, argv, &out, &std::cerr, false);
  out.flush();
  // A reader that is gone, such as head, had enough.
  if (output.error() == 0 || output.error() == EPIPE) return code;
  std::cerr << "ampctl: write error: " << std::strerror(output.error()) << std::endl;
  return code == ampd::client::kExitSucceeded ? ampd::client::kExitFailed : code;
}

}  // namespace

int main(int argc, char** argv) {
  // What gRPC logs of a connection, ampctl says itself.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  if (isatty(STDOUT_FILENO) != 1) return RunIntoFile(argc, argv);
  return ampd::client::RunProgram(argc, argv, &std::cout, &std::cerr, true);
}
