// What a measurement found, in every form in which it is shown.
#ifndef AMPD_CLIENT_OUTPUT_BENCH_TABLE_H_
#define AMPD_CLIENT_OUTPUT_BENCH_TABLE_H_

#include <string>
#include <vector>

#include "ampd/v1/event.pb.h"

namespace ampd::client {

// The cells of a job that measures, gathered from its events in order.
class BenchCells {
 public:
  void Observe(const v1::JobEvent& event);
  const std::vector<v1::BenchCell>& cells() const { return cells_; }

 private:
  std::vector<v1::BenchCell> cells_;
};

// For people: a row a cell; figures that no cell has are left out.
std::string BenchTable(const std::vector<v1::BenchCell>& cells);

// RFC 4180, with a header of BenchCell's field names, in SI units; what a cell does not have is empty. A failure is its
// class and message.
std::string BenchCsv(const std::vector<v1::BenchCell>& cells);

// One array of BenchCells.
std::string BenchJson(const std::vector<v1::BenchCell>& cells);

// Time of a step and speed-up, a line a mode; of convolutions in which several kernels were measured a category is
// channels and kernel. `title`: e.g. the job's name.
std::string BenchSvg(const std::string& title, const std::vector<v1::BenchCell>& cells);

}  // namespace ampd::client

#endif  // AMPD_CLIENT_OUTPUT_BENCH_TABLE_H_
