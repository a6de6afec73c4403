// A JPEG file.
#include "tests/fuzz/image.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ampd::fuzz::Decode(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
