// What is linked where there is no cuDNN: every convolution runs on the backend's own kernel.
#include "engine/backend/cuda/conv.h"
#include "absl/strings/str_cat.h"

namespace ampd::cuda {

std::string ConvLibrary() { return "none"; }
std::string ConvLibraryName() { return ""; }
std::string ConvLibraryFolder() { return ""; }

absl::StatusOr<std::unique_ptr<Conv>> Conv::Create(std::string name, const ConvDesc&, Context*) {
  return absl::UnimplementedError(absl::StrCat("[conv] ", name, ": built without cuDNN"));
}

}  // namespace ampd::cuda
