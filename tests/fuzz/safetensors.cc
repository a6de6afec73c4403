// A .safetensors file: the reader of checkpoints, the reader of headers alone, and the dataset of tensors x and y.
#include "engine/core/safetensors.h"

#include "tests/fuzz/datasets.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto file = Safetensors::Parse(bytes);
  fuzz::CheckError(file.status());
  const auto header_bytes = SafetensorsHeaderBytes(bytes, bytes.size());
  fuzz::CheckError(header_bytes.status());
  if (header_bytes.ok()) {
    fuzz::Check(*header_bytes <= bytes.size(), "a header beyond the file");
    const auto header = ParseSafetensorsHeader(absl::string_view(bytes).substr(0, *header_bytes), bytes.size());
    fuzz::CheckError(header.status());
    fuzz::Check(header.ok() || !file.ok(), "the readers disagree");
  }
  if (file.ok()) {
    fuzz::Check(header_bytes.ok(), "the readers disagree");
    for (const auto& [name, entry] : file->entries()) {
      fuzz::Check(file->Bytes(entry).size() == static_cast<size_t>(NumElements(entry.shape) * SizeOf(entry.dtype)),
                  "a tensor of another size: " + name);
    }
  }
  fuzz::Write("a.safetensors", bytes);
  v1::DatasetSpec spec;
  spec.mutable_safetensors()->set_path("a.safetensors");
  spec.mutable_safetensors()->set_inputs_key("x");
  spec.mutable_safetensors()->set_targets_key("y");
  fuzz::ReadDataset(spec);
  return 0;
}
