// Measured figures against what is asked of them.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ampd::load {

// Of the samples: the least that `share` (0 to 1) of them do not exceed; 0 of none.
double Quantile(std::vector<double> samples, double share);
// Of an even number the mean of the two in the middle; 0 without any.
double Median(std::vector<double> samples);

// Prints each figure as it is known. One of the same name again is another measurement of it: what counts is the median
// of all.
class Figures {
 public:
  void AtLeast(const std::string& name, double value, double limit, const std::string& unit);
  void Below(const std::string& name, double value, double limit, const std::string& unit);
  // What is not asked for.
  void Note(const std::string& name, double value, const std::string& unit);
  // A part that could not be measured.
  void Failed(const std::string& name, const std::string& why);

  // Figures whose median misses, and parts that failed.
  int missed() const;

  // Every figure's median, lowest and highest.
  void PrintSummary() const;
  // As a table for people (Markdown), with the machine that it was measured on and `how` it was. Replaces the file.
  absl::Status WriteReport(const std::string& path, const std::string& how) const;

 private:
  enum class Relation { kNone, kAtLeast, kBelow };
  struct Figure {
    std::string name;
    std::string unit;
    Relation relation = Relation::kNone;
    double limit = 0;
    std::vector<double> values;

    bool Holds(double value) const;
    bool met() const { return Holds(Median(values)); }
    // "< 5 ms", or nothing.
    std::string Asked() const;
  };

  void Add(const Figure& figure, double value);

  // In the order in which they were first measured.
  std::vector<Figure> figures_;
  std::vector<std::string> failed_;
};

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_
