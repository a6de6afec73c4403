#include "client/output/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/output/text.h"

namespace ampd::client {
namespace {

// Pixels.
constexpr double kPanelWidth = 460, kPanelHeight = 300;
constexpr double kLeft = 72, kRight = 24, kTop = 92, kBottom = 62;
constexpr double kNoteHeight = 16;
constexpr char kInk[] = "#24292f", kGrey[] = "#6a737d", kGrid[] = "#e4e7eb";

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(Clean(text), {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, const std::string& anchor, double size, const char* color, const std::string& text,
                 const std::string& more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%g\" fill=\"%s\"%s>%s</text>\n", x,
                         y, anchor, size, color, more, Escaped(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* color, const std::string& more = "") {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"%s/>\n", x1, y1, x2, y2,
                         color, more);
}

bool IsDrawn(const Chart& chart, const std::optional<double>& value) {
  return value.has_value() && std::isfinite(*value) && (!chart.logarithmic || *value > 0);
}

class Panel {
 public:
  Panel(const Chart& chart, double x) : chart_(chart), x_(x) { Scale(); }

  std::string Svg() const {
    std::string svg = Text(x_, kTop - 16, "start", 14, kInk, chart_.title, " font-weight=\"600\"");
    absl::StrAppend(&svg, YAxis(), XAxis());
    if (chart_.reference.has_value() && *chart_.reference >= low_ && *chart_.reference <= high_) {
      absl::StrAppend(&svg, Line(x_, Y(*chart_.reference), x_ + kPanelWidth, Y(*chart_.reference), kGrey,
                                 " stroke-dasharray=\"5 4\""));
    }
    for (const ChartLine& line : chart_.lines) absl::StrAppend(&svg, Polyline(line));
    return svg;
  }

 private:
  void Scale() {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const ChartLine& line : chart_.lines) {
      for (const std::optional<double>& value : line.values) {
        if (!IsDrawn(chart_, value)) continue;
        low = std::min(low, *value);
        high = std::max(high, *value);
      }
    }
    if (!(low <= high)) low = high = 1;
    if (!chart_.logarithmic) low = std::min(low, 0.0);
    if (chart_.reference.has_value()) high = std::max(high, *chart_.reference);
    // Room above, so that the highest point does not sit on the edge.
    low_ = chart_.logarithmic ? low / 1.3 : low;
    high_ = chart_.logarithmic ? high * 1.3 : low + (high - low) * 1.08;
    if (!(low_ < high_)) high_ = low_ + 1;
    ticks_ = RoundTicks(low_, high_, chart_.logarithmic);
  }

  double X(size_t category) const {
    const double step = kPanelWidth / static_cast<double>(std::max<size_t>(1, chart_.categories.size()));
    return x_ + step * (static_cast<double>(category) + 0.5);
  }
  double Y(double value) const {
    const double share =
        chart_.logarithmic ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return kTop + kPanelHeight * (1 - share);
  }

  std::string YAxis() const {
    std::string svg;
    for (const double tick : ticks_) {
      if (tick < low_ || tick > high_) continue;
      absl::StrAppend(&svg, Line(x_, Y(tick), x_ + kPanelWidth, Y(tick), kGrid),
                      Text(x_ - 8, Y(tick) + 4, "end", 12, kGrey, Figure(tick)));
    }
    const double x = x_ - kLeft + 16, y = kTop + kPanelHeight / 2;
    absl::StrAppend(
        &svg, Line(x_, kTop, x_, kTop + kPanelHeight, kGrey),
        Text(x, y, "middle", 12, kInk, chart_.y_label, absl::StrFormat(" transform=\"rotate(-90 %.1f %.1f)\"", x, y)));
    return svg;
  }

  std::string XAxis() const {
    const double bottom = kTop + kPanelHeight;
    std::string svg = Line(x_, bottom, x_ + kPanelWidth, bottom, kGrey);
    size_t longest = 1;
    for (const std::string& category : chart_.categories) longest = std::max(longest, category.size());
    // As many labels as fit side by side.
    const double wanted = 7.5 * static_cast<double>(longest) + 8;
    const double step = kPanelWidth / static_cast<double>(std::max<size_t>(1, chart_.categories.size()));
    const auto every = static_cast<size_t>(std::max(1.0, std::ceil(wanted / step)));
    for (size_t i = 0; i < chart_.categories.size(); ++i) {
      absl::StrAppend(&svg, Line(X(i), bottom, X(i), bottom + 5, kGrey));
      if (i % every == 0) absl::StrAppend(&svg, Text(X(i), bottom + 20, "middle", 12, kGrey, chart_.categories[i]));
    }
    absl::StrAppend(&svg, Text(x_ + kPanelWidth / 2, bottom + 42, "middle", 12, kInk, chart_.x_label));
    return svg;
  }

  std::string Polyline(const ChartLine& line) const {
    std::string path, dots;
    bool drawing = false;
    for (size_t i = 0; i < std::min(line.values.size(), chart_.categories.size()); ++i) {
      if (!IsDrawn(chart_, line.values[i])) {
        drawing = false;
        continue;
      }
      const double y = Y(*line.values[i]);
      absl::StrAppendFormat(&path, "%s%.1f %.1f ", drawing ? "L" : "M", X(i), y);
      absl::StrAppendFormat(
          &dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"><title>%s, %s: %s</title></circle>\n", X(i), y,
          line.color, Escaped(line.name), Escaped(chart_.categories[i]), Figure(*line.values[i]));
      drawing = true;
    }
    if (path.empty()) return "";
    return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n%s", path, line.color,
                           dots);
  }

  const Chart& chart_;
  const double x_;
  double low_ = 0, high_ = 1;
  std::vector<double> ticks_;
};

std::string Legend(const Chart& chart) {
  std::string svg;
  double x = kLeft;
  for (const ChartLine& line : chart.lines) {
    absl::StrAppend(&svg, Line(x, 52, x + 22, 52, line.color.c_str(), " stroke-width=\"2\""),
                    absl::StrFormat("<circle cx=\"%.1f\" cy=\"52\" r=\"3.5\" fill=\"%s\"/>\n", x + 11, line.color),
                    Text(x + 28, 56, "start", 12, kInk, line.name));
    x += 48 + 8 * static_cast<double>(line.name.size());
  }
  return svg;
}

}  // namespace

std::vector<double> RoundTicks(double low, double high, bool logarithmic) {
  constexpr double kSteps[] = {1, 2, 5, 10};
  std::vector<double> ticks;
  if (logarithmic) {
    // Over many decades their powers alone.
    const bool all = std::log10(high / low) < 3;
    for (double power = std::pow(10, std::floor(std::log10(low))); power <= high; power *= 10) {
      for (const double step : {1, 2, 5}) {
        if ((all || step == 1) && power * step >= low && power * step <= high) ticks.push_back(power * step);
      }
    }
    return ticks;
  }
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double candidate : kSteps) {
    if (candidate * power >= rough * (1 - 1e-9)) {
      step = candidate * power;
      break;
    }
  }
  for (double i = std::floor(low / step); i <= std::ceil(high / step); ++i) ticks.push_back(i * step);
  return ticks;
}

std::string SvgOf(const std::string& title, const std::vector<Chart>& charts, const std::vector<std::string>& notes) {
  const double panel = kLeft + kPanelWidth + kRight;
  const double width = panel * static_cast<double>(std::max<size_t>(1, charts.size()));
  const double height = kTop + kPanelHeight + kBottom + kNoteHeight * static_cast<double>(notes.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      width, height, width, height);
  absl::StrAppend(&svg, Text(kLeft, 28, "start", 17, kInk, title, " font-weight=\"600\""));
  if (!charts.empty()) absl::StrAppend(&svg, Legend(charts.front()));
  for (size_t i = 0; i < charts.size(); ++i) {
    absl::StrAppend(&svg, Panel(charts[i], panel * static_cast<double>(i) + kLeft).Svg());
  }
  double y = kTop + kPanelHeight + kBottom;
  for (const std::string& note : notes) {
    absl::StrAppend(&svg, Text(kLeft, y, "start", 11, kGrey, note));
    y += kNoteHeight;
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace ampd::client
