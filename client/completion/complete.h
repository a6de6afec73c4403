// What may stand at the end of a command line, told from the program's own verbs and options.
#ifndef AMPD_CLIENT_COMPLETION_COMPLETE_H_
#define AMPD_CLIENT_COMPLETION_COMPLETE_H_

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace ampd::client {

struct Candidate {
  std::string value;
  // One line; may be empty.
  std::string description;
};

// What is asked for by the name of a value, such as "JOB" or "DEVICE".
struct ValueQuery {
  std::string kind;
  // The verb with those around it: "cancel", "datasets delete".
  std::string verb;
  // Options of the program as a whole that the line has so far, to be parsed again.
  std::vector<std::string> globals;
  // Other values given so far, in order.
  std::vector<std::string> values;
  // What the candidates begin with.
  std::string prefix;
};

struct Completion {
  // Only those that begin with the line's last word, in order.
  std::vector<Candidate> candidates;
  // The shell is to propose files.
  bool files = false;
  // What is inserted goes on: no space behind it.
  bool open = false;
};

// Completes the last of `words`, which follow the program's name; the last one is "" after a space. `values` tells what
// the values of a kind are, of which the fitting ones are taken.
Completion Complete(const CLI::App& app, const std::vector<std::string>& words,
                    const std::function<std::vector<Candidate>(const ValueQuery&)>& values);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMPLETION_COMPLETE_H_
