// The images, then the labels; either may be gzip-compressed.
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const auto parts = fuzz::Parts(data, size, 2);
  fuzz::Write("images", parts[0]);
  fuzz::Write("labels", parts[1]);
  v1::DatasetSpec spec;
  spec.mutable_idx()->set_images("images");
  spec.mutable_idx()->set_labels("labels");
  fuzz::ReadDataset(spec);
  return 0;
}
