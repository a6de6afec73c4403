// Tables on terminals that are narrower than they.
#ifndef AMPD_CLIENT_COMMANDS_FITTED_H_
#define AMPD_CLIENT_COMMANDS_FITTED_H_

#include <cstddef>
#include <string>

#include "client/commands/command.h"
#include "client/output/table.h"

namespace ampd::client {

// `table` for context.out: on a terminal in lines of its width, as far as `fit` lets it; whole anywhere else.
std::string Fitted(const Table& table, const Table::Fit& fit, const CommandContext& context);

// Likewise, where only the text of `column` may be cut.
std::string FittedText(const Table& table, size_t column, const CommandContext& context);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_COMMANDS_FITTED_H_
