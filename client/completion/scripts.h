// Completion in shells: scripts that ask ampctl itself what comes next, so that they need not know a verb.
#ifndef AMPD_CLIENT_COMPLETION_SCRIPTS_H_
#define AMPD_CLIENT_COMPLETION_SCRIPTS_H_

#include <string>

#include "client/completion/complete.h"

namespace ampd::client {

// What the scripts call, with the words behind the program's name, the last one as far as it is typed.
inline constexpr char kCompleteVerb[] = "__complete";

// The script of "bash", "zsh" or "fish"; empty for another shell.
const char* CompletionScript(const std::string& shell);

// For the scripts: ":files" or ":open" on lines of their own, then a value a line, with a tab and a description behind
// it.
std::string CompletionText(const Completion& completion);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMPLETION_SCRIPTS_H_
