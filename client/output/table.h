// Columns of text.
#ifndef AMPD_CLIENT_OUTPUT_TABLE_H_
#define AMPD_CLIENT_OUTPUT_TABLE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
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

  // What gives way where there is less room than the table takes.
  struct Fit {
    // Columns that may be cut, and how wide they stay; those before get room first.
    std::vector<std::pair<size_t, size_t>> least;
    // Columns that may be left out, the first one first; of all those before the others that say "-" in every row.
    std::vector<size_t> dropped;
  };
  // Likewise, in lines of at most `columns`, as far as `fit` lets it.
  std::string ToString(size_t columns, const Fit& fit) const;

 private:
  std::vector<size_t> Widths() const;
  bool SaysNothing(size_t column) const;
  // Those to show, of which `widths` are at least so wide.
  std::vector<bool> ColumnsWithin(size_t columns, const std::vector<size_t>& widths, const Fit& fit) const;
  std::string Print(const std::vector<size_t>& widths, const std::vector<bool>& shown) const;

  std::vector<bool> right_;
  std::map<size_t, std::function<Color(const std::string&)>> colors_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_TABLE_H_
