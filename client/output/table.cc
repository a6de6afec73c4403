#include "client/output/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

size_t Columns(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

Table::Table(std::vector<std::string> headers) {
  for (std::string& header : headers) {
    right_.push_back(header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
  rows_.push_back(std::move(headers));
}

void Table::Add(const std::vector<std::string>& cells) {
  rows_.emplace_back();
  for (size_t i = 0; i < right_.size(); ++i) rows_.back().push_back(i < cells.size() ? Clean(cells[i]) : "");
}

void Table::Paint(size_t column, std::function<Color(const std::string&)> color_of) {
  colors_[column] = std::move(color_of);
}

std::string Table::ToString() const {
  std::vector<size_t> widths(right_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - Columns(row[i]), ' ');
      const auto color = colors_.find(i);
      const bool painted = color != colors_.end() && &row != &rows_[0];
      absl::StrAppend(&line, i == 0 ? "" : "  ", right_[i] ? padding : "",
                      painted ? client::Paint(color->second(row[i]), row[i]) : row[i], right_[i] ? "" : padding);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace ampd::client
