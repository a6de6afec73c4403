// Line charts as SVG, readable by themselves: light background, axes with round ticks, a legend.
#ifndef AMPD_CLIENT_OUTPUT_SVG_H_
#define AMPD_CLIENT_OUTPUT_SVG_H_

#include <optional>
#include <string>
#include <vector>

namespace ampd::client {

struct ChartLine {
  std::string name;
  // "#rrggbb".
  std::string color;
  // By category; without a value the line is broken. Of a logarithmic chart only values > 0 are drawn.
  std::vector<std::optional<double>> values;
};

// Categories, in order, are spaced evenly along the x axis.
struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> categories;
  std::vector<ChartLine> lines;
  // Else from 0.
  bool logarithmic = false;
  // A dashed line at this height.
  std::optional<double> reference;
};

// The charts side by side under a title and one legend, the first's; `notes` stand below, one a line. Text may hold
// anything.
std::string SvgOf(const std::string& title, const std::vector<Chart>& charts, const std::vector<std::string>& notes);

// Round numbers from `low` to `high` (finite, low < high), both included or enclosed; 1, 2 or 5 times powers of ten. Of
// a logarithmic axis (low > 0) those between.
std::vector<double> RoundTicks(double low, double high, bool logarithmic);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_SVG_H_
