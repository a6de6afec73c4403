// The manual page, told from the program's own verbs and options.
#ifndef AMPD_CLIENT_MAN_PAGE_H_
#define AMPD_CLIENT_MAN_PAGE_H_

#include <string>

namespace CLI {
class App;
}

namespace ampd::client {

// ampctl(1) as roff with the macros of man(7).
std::string ManPage(const CLI::App& app);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_MAN_PAGE_H_
