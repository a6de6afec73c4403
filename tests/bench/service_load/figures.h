// Measured figures against what is asked of them.
#ifndef AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_
#define AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace ampd::load {

// Of the samples sorted: the least that `share` (0 to 1) of them do not exceed; 0 of none.
inline double Quantile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(share * static_cast<double>(samples.size()));
  return samples[std::min(rank, samples.size() - 1)];
}

// Prints each figure as it is known.
class Figures {
 public:
  void AtLeast(const std::string& name, double value, double limit, const std::string& unit) {
    Print(name, value, limit, unit, ">=", value >= limit);
  }
  void Below(const std::string& name, double value, double limit, const std::string& unit) {
    Print(name, value, limit, unit, "<", value < limit);
  }
  // What is not asked for.
  void Note(const std::string& name, double value, const std::string& unit) {
    std::printf("      %-58s %12.4g %s\n", name.c_str(), value, unit.c_str());
    std::fflush(stdout);
  }
  // A part that could not be measured.
  void Failed(const std::string& name, const std::string& why) {
    std::printf("MISS  %-58s %s\n", name.c_str(), why.c_str());
    std::fflush(stdout);
    ++missed_;
  }

  int missed() const { return missed_; }

 private:
  void Print(const std::string& name, double value, double limit, const std::string& unit, const char* relation,
             bool met) {
    std::printf("%s  %-58s %12.4g %s (%s %g)\n", met ? "ok  " : "MISS", name.c_str(), value, unit.c_str(), relation,
                limit);
    std::fflush(stdout);
    if (!met) ++missed_;
  }

  int missed_ = 0;
};

}  // namespace ampd::load

#endif  // AMPD_TESTS_BENCH_SERVICE_LOAD_FIGURES_H_
