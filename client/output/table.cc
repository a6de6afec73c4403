#include "client/output/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

constexpr char kGap[] = "  ";

size_t Columns(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// Of a line with the columns that are shown.
size_t Total(const std::vector<size_t>& widths, const std::vector<bool>& shown) {
  size_t total = 0, gap = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (!shown[i]) continue;
    total += gap + widths[i];
    gap = sizeof(kGap) - 1;
  }
  return total;
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

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths(right_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Columns(row[i]));
  }
  return widths;
}

bool Table::SaysNothing(size_t column) const {
  return std::all_of(rows_.begin() + 1, rows_.end(), [column](const auto& row) { return row[column] == "-"; });
}

std::vector<bool> Table::ColumnsWithin(size_t columns, const std::vector<size_t>& widths, const Fit& fit) const {
  std::vector<bool> shown(right_.size(), true);
  for (const bool empty : {true, false}) {
    for (const size_t column : fit.dropped) {
      if (Total(widths, shown) <= columns) break;
      if (!empty || SaysNothing(column)) shown[column] = false;
    }
  }
  // A wide one that had to go may have left room for a narrow one.
  for (auto column = fit.dropped.rbegin(); column != fit.dropped.rend(); ++column) {
    if (shown[*column] || SaysNothing(*column)) continue;
    shown[*column] = true;
    if (Total(widths, shown) > columns) shown[*column] = false;
  }
  return shown;
}

std::string Table::Print(const std::vector<size_t>& widths, const std::vector<bool>& shown) const {
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    const char* gap = "";
    for (size_t i = 0; i < row.size(); ++i) {
      if (!shown[i]) continue;
      const std::string cell = Shorten(row[i], static_cast<int>(widths[i]));
      const std::string padding(widths[i] - Columns(cell), ' ');
      const auto color = colors_.find(i);
      const bool painted = color != colors_.end() && &row != &rows_[0];
      absl::StrAppend(&line, gap, right_[i] ? padding : "", painted ? client::Paint(color->second(row[i]), cell) : cell,
                      right_[i] ? "" : padding);
      gap = kGap;
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string Table::ToString() const { return Print(Widths(), std::vector<bool>(right_.size(), true)); }

std::string Table::ToString(size_t columns, const Fit& fit) const {
  const std::vector<size_t> whole = Widths();
  std::vector<size_t> widths = whole;
  for (const auto& [column, least] : fit.least) widths[column] = std::min(whole[column], least);
  const std::vector<bool> shown = ColumnsWithin(columns, widths, fit);
  const size_t taken = Total(widths, shown);
  size_t room = columns > taken ? columns - taken : 0;
  for (const auto& [column, least] : fit.least) {
    if (!shown[column]) continue;
    const size_t more = std::min(room, whole[column] - widths[column]);
    widths[column] += more;
    room -= more;
  }
  return Print(widths, shown);
}

}  // namespace ampd::client
