// What fuzz targets share: cutting an input into parts, files for readers that take paths, and checks that end a run.
#ifndef AMPD_TESTS_FUZZ_INPUT_H_
#define AMPD_TESTS_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What libFuzzer calls, one in each file of targets. The driver, which links all of them, has the build give each
// another name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace ampd::fuzz {

// Ends the process with `what`: the input was handled wrongly, though nothing crashed.
[[noreturn]] void Fail(const std::string& what);

// Ends the process unless `holds`.
inline void Check(bool holds, const std::string& what) {
  if (!holds) Fail(what);
}

// Ends the process when `status` is an error without words, or one of those that only a mistake of ours makes: INTERNAL
// and UNKNOWN.
void CheckError(const absl::Status& status);

// An input of several files, as bytes: `count` - 1 of them with their size in front (4 bytes, least significant first),
// then the last to the end. A size beyond the end takes what there is.
std::vector<std::string> Parts(const uint8_t* data, size_t size, size_t count);

// A folder for this process, beneath $TMPDIR, that goes with it.
const std::string& Folder();

// Replaces the file `name` in Folder(); its path.
std::string Write(const std::string& name, absl::string_view bytes);

}  // namespace ampd::fuzz

#endif  // AMPD_TESTS_FUZZ_INPUT_H_
