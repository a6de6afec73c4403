// Writes docs/metrics.md to stdout; the target ampd_references runs it.
#include <iostream>

#include "server/metrics/reference.h"

int main() {
  std::cout << ampd::MetricsReference() << std::flush;
  return std::cout.good() ? 0 : 1;
}
