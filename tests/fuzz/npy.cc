// The arrays of inputs, of lengths (empty: none) and of targets.
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const auto parts = fuzz::Parts(data, size, 3);
  fuzz::Write("x.npy", parts[0]);
  fuzz::Write("lengths.npy", parts[1]);
  fuzz::Write("y.npy", parts[2]);
  v1::DatasetSpec spec;
  spec.mutable_npy()->set_inputs("x.npy");
  spec.mutable_npy()->set_targets("y.npy");
  if (!parts[1].empty()) spec.mutable_npy()->set_lengths("lengths.npy");
  fuzz::ReadDataset(spec);
  return 0;
}
