#include "client/commands/fitted.h"

#include <unistd.h>

#include "client/output/watch_view.h"

namespace ampd::client {

std::string Fitted(const Table& table, const Table::Fit& fit, const CommandContext& context) {
  return context.terminal ? table.ToString(static_cast<size_t>(TerminalColumns(STDOUT_FILENO)), fit) : table.ToString();
}

std::string FittedText(const Table& table, size_t column, const CommandContext& context) {
  constexpr size_t kLeast = 12;
  return Fitted(table, {{{column, kLeast}}, {}}, context);
}

}  // namespace ampd::client
