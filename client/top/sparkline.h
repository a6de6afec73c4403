// A curve in one line of text.
#ifndef AMPD_CLIENT_TOP_SPARKLINE_H_
#define AMPD_CLIENT_TOP_SPARKLINE_H_

#include <string>
#include <vector>

namespace ampd::client {

// `columns` or fewer characters, one a value or, where there are more values, one for the mean of several: eighths of a
// block, or of " .:-=+*#" where `ascii`; the lowest value is the lowest, the highest the highest, and all are in the
// middle where they are equal. Values that are not finite are 'x', and so is a character all of whose values are none.
std::string Sparkline(const std::vector<double>& values, int columns, bool ascii);

// "[####    ]" of `columns` characters; `share` from 0 to 1, clamped.
std::string Bar(double share, int columns);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_TOP_SPARKLINE_H_
