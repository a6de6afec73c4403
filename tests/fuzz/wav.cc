// A RIFF WAVE file.
#include <fcntl.h>

#include <cmath>

#include "engine/data/wav.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ampd;
  const std::string path = fuzz::Write("a.wav", {reinterpret_cast<const char*>(data), size});
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  fuzz::Check(fd >= 0, "cannot open " + path);
  const data::InputFile file(fd, "a.wav", static_cast<int64_t>(size));
  const auto header = data::ReadWavHeader(file);
  fuzz::CheckError(header.status());
  if (!header.ok()) return 0;
  fuzz::Check(header->samples >= 1 && header->channels >= 1 && header->channels <= 64, "a header that cannot be");
  fuzz::Check(
      header->data_offset >= 0 && header->samples <= (file.size() - header->data_offset) / header->block_bytes(),
      "samples beyond the file");
  const auto samples = data::ReadWavSamples(file, *header);
  fuzz::CheckError(samples.status());
  if (!samples.ok()) return 0;
  fuzz::Check(static_cast<int64_t>(samples->size()) == header->samples, "samples missing");
  for (float v : *samples) fuzz::Check(std::isfinite(v), "a sample that is not finite");
  return 0;
}
