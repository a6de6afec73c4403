// ampctl without its process: arguments in, text and an exit code out.
#ifndef AMPD_CLIENT_PROGRAM_H_
#define AMPD_CLIENT_PROGRAM_H_

#include <ostream>

namespace CLI {
class App;
}

namespace ampd::client {

struct CommandContext;

// Adds all of ampctl's verbs and options to `app`, which is new. `context` outlives it.
void AddProgram(CLI::App* app, CommandContext* context);

// Runs the verb that `argv` names and returns the exit code. `terminal` says whether `out` is one. The verbs that
// follow jobs block SIGINT and SIGTERM in the calling thread and take them as the wish to detach.
int RunProgram(int argc, const char* const* argv, std::ostream* out, std::ostream* err, bool terminal);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_PROGRAM_H_
