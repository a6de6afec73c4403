// A table whose last column is a class, then the same with the first column as a target.
#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  fuzz::Write("table.csv", {reinterpret_cast<const char*>(data), size});
  v1::DatasetSpec spec;
  spec.mutable_csv()->set_path("table.csv");
  spec.mutable_csv()->set_label("label");
  fuzz::ReadDataset(spec);
  spec.mutable_csv()->clear_label();
  spec.mutable_csv()->add_targets(std::string(1, 'a'));
  fuzz::ReadDataset(spec);
  spec.mutable_csv()->set_delimiter(std::string(1, ';'));
  fuzz::ReadDataset(spec);
  return 0;
}
