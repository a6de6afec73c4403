// How ampctl explains itself: what --help prints, and the words that the manual shares with it.
#ifndef AMPD_CLIENT_HELP_H_
#define AMPD_CLIENT_HELP_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace CLI {
class FormatterBase;
class Option;
}  // namespace CLI

namespace ampd::client {

// What the option's value is called: "FILE"; "" of a flag, "N" and "VALUE" where it has no name of its own.
std::string ValueName(const CLI::Option& option);

// What the option does, with its default and the environment's variable behind it: "PEM file of its private key [env:
// AMPD_KEY]".
std::string OptionText(const CLI::Option& option);

// Help for terminals of 80 columns. Verbs inherit it from the program that they are added to.
std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter();

// `text` in lines of at most `columns` where it has a space for that; all but the first begin with `indent` spaces.
std::string Wrapped(absl::string_view text, size_t columns, size_t indent);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_HELP_H_
