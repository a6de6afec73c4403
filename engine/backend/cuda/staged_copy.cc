#include "engine/backend/cuda/staged_copy.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/backend/cuda/status.h"
#include "engine/core/status.h"

namespace ampd::cuda {
namespace {

constexpr int64_t kChunk = int64_t{8} << 20, kPart = int64_t{1} << 20;
constexpr int kMostThreads = 4;

// The loader's threads need the others.
int ThreadsFor(int64_t most_bytes) {
  const auto some = static_cast<int>(std::thread::hardware_concurrency() / 4);
  return most_bytes <= kPart ? 1 : std::clamp(some, 1, kMostThreads);
}

}  // namespace

StagedCopier::StagedCopier(int64_t most_bytes) : pool_(ThreadsFor(most_bytes)) {}

void StagedCopier::Stage(char* to, const char* from, int64_t bytes) {
  // To wake the others takes as long as a small copy.
  if (bytes <= kPart) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  pool_.ForEach((bytes + kPart - 1) / kPart, [&](int64_t i, int) {
    const int64_t first = i * kPart;
    std::memcpy(to + first, from + first, static_cast<size_t>(std::min(kPart, bytes - first)));
  });
}

absl::Status StagedCopier::Copy(absl::Span<const StagedPiece> pieces, char* staging, char* device,
                                cudaStream_t stream) {
  int64_t sent = 0, staged = 0;
  const auto send = [&]() {
    const int64_t at = std::exchange(sent, staged);
    return ToStatus(
        cudaMemcpyAsync(device + at, staging + at, static_cast<size_t>(staged - at), cudaMemcpyHostToDevice, stream),
        "feeding a batch");
  };
  for (const StagedPiece& piece : pieces) {
    for (int64_t done = 0; done < piece.bytes; done += kChunk) {
      const int64_t chunk = std::min(kChunk, piece.bytes - done);
      Stage(staging + piece.at + done, piece.from + done, chunk);
      staged = piece.at + done + chunk;
      if (staged - sent >= kChunk) AMPD_RETURN_IF_ERROR(send());
    }
  }
  return staged > sent ? send() : absl::OkStatus();
}

}  // namespace ampd::cuda
