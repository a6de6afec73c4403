// Which server the command line, the environment and the contexts mean.
#ifndef AMPD_CLIENT_ACCESS_H_
#define AMPD_CLIENT_ACCESS_H_

#include "client/server.h"

namespace CLI {
class App;
}

namespace ampd::client {

// Adds the options that say which server is meant, and who the user is there. Once the command line is read, what
// neither it nor the environment says is taken from the context: that of --context; else, unless another server than
// its own is named, AMPCTL_CONTEXT's; else the current one. `server` outlives `app`; what is wrong with the contexts is
// its `unknown`.
void AddAccessOptions(CLI::App* app, Server* server);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_ACCESS_H_
