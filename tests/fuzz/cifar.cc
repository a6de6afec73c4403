// One file of CIFAR-10's records.
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  fuzz::Write("batch.bin", {reinterpret_cast<const char*>(data), size});
  v1::DatasetSpec spec;
  spec.mutable_cifar10()->add_paths("batch.bin");
  fuzz::ReadDataset(spec);
  return 0;
}
