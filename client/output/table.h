// Columns of text.
#ifndef AMPD_CLIENT_OUTPUT_TABLE_H_
#define AMPD_CLIENT_OUTPUT_TABLE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "client/output/color.h"

namespace ampd::client {

class Table {
 public:
  // A header that starts with '>' names a column aligned to the right, without that sign.
  explicit Table(std::vector<std::string> headers);

  // As many cells as headers; foreign text is cleaned.
  void Add(const std::vector<std::string>& cells);

  // Colours the cells of a column, not its header.
  void Paint(size_t column, std::function<Color(const std::string&)> color_of);

  // Two spaces between columns, none at the end of a line.
  std::string ToString() const;

 private:
  std::vector<bool> right_;
  std::map<size_t, std::function<Color(const std::string&)>> colors_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_TABLE_H_
