// The bitmaps of two classes, two of each read past the first.
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const auto parts = fuzz::Parts(data, size, 2);
  fuzz::Write("cat.npy", parts[0]);
  fuzz::Write("dog.npy", parts[1]);
  v1::DatasetSpec spec;
  spec.mutable_quickdraw()->set_path(".");
  spec.mutable_quickdraw()->add_classes("cat");
  spec.mutable_quickdraw()->add_classes("dog");
  fuzz::ReadDataset(spec);
  spec.mutable_quickdraw()->set_skip_per_class(1);
  spec.mutable_quickdraw()->set_samples_per_class(2);
  fuzz::ReadDataset(spec);
  return 0;
}
