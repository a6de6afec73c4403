#include "engine/backend/cuda/resident_dataset.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backend/cuda/launch.h"
#include "engine/core/status.h"
#include "engine/core/tensor.h"

namespace ampd::cuda {
namespace {

using runtime::MicroBatchWeight;
using runtime::StoredSamples;

constexpr int kThreads = 256;
// Of the device's memory that is free, what samples may take unasked.
constexpr int64_t kShareOfFree = 16;
// Which samples leave alone, whatever they are given; a sixteenth of what is free where that is less.
constexpr int64_t kReserve = int64_t{256} << 20;
// Read and uploaded at a time.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
// Above this many channels a table of all results would fall out of the cache.
constexpr int64_t kMostTables = 64;

static_assert(std::is_trivially_copyable_v<ResidentSamples> && std::is_trivially_copyable_v<SlotLayout>);

// Notes of steps, on the device: `bytes` a slot.
struct Notes {
  const char* data = nullptr;
  int64_t bytes = 0;
};

// `place` < 0: the zero beside an image.
__device__ __forceinline__ float ValueOf(const ResidentSamples& samples, int64_t place, int64_t channel) {
  if (samples.bytes) {
    const uint8_t byte = place < 0 ? uint8_t{0} : static_cast<const uint8_t*>(samples.values)[place];
    if (samples.table != nullptr) return samples.table[channel * 256 + byte];
    return Normalized(static_cast<float>(byte), samples.mean[channel], samples.std[channel]);
  }
  const float value = place < 0 ? 0.0f : static_cast<const float*>(samples.values)[place];
  return samples.mean == nullptr ? value : Normalized(value, samples.mean[channel], samples.std[channel]);
}

// By one warp.
__device__ __forceinline__ void CopyPlain(const ResidentSamples& samples, int64_t sample, int lane, float* to) {
  const int64_t first = sample * samples.values_per_sample;
  const auto values = static_cast<uint32_t>(samples.values_per_sample);
  const auto channels = static_cast<uint32_t>(samples.channels);
  for (uint32_t e = static_cast<uint32_t>(lane); e < values; e += kWarp)
    to[e] = ValueOf(samples, first + e, e % channels);
}

// By one warp.
__device__ __forceinline__ void CopyView(const ResidentSamples& samples, int64_t sample, const ImageView& view,
                                         int lane, float* to) {
  const int64_t first = sample * samples.values_per_sample;
  const auto values = static_cast<uint32_t>(samples.values_per_sample);
  const auto channels = static_cast<uint32_t>(samples.augmentation.channels);
  const auto width = static_cast<uint32_t>(samples.augmentation.width);
  for (uint32_t e = static_cast<uint32_t>(lane); e < values; e += kWarp) {
    const uint32_t pixel = e / channels, channel = e - pixel * channels, y = pixel / width;
    const int64_t from = samples.augmentation.StoredPixel(view, y, pixel - y * width);
    to[e] = ValueOf(samples, from < 0 ? -1 : first + from + channel, samples.channels == 1 ? 0 : channel);
  }
}

// By one warp.
__device__ __forceinline__ void CopyTarget(const ResidentSamples& samples, int64_t sample, int lane, int64_t row,
                                           char* to) {
  const uint32_t* words = samples.targets + sample * samples.target_words;
  if (samples.one_hot == 0) {
    auto* out = reinterpret_cast<uint32_t*>(to) + row * samples.target_words;
    for (int64_t e = lane; e < samples.target_words; e += kWarp) out[e] = words[e];
    return;
  }
  auto* out = reinterpret_cast<float*>(to) + row * samples.one_hot;
  for (int64_t e = lane; e < samples.one_hot; e += kWarp) out[e] = e == words[0] ? 1.0f : 0.0f;
}

// Writes the slots of `steps` steps from `first` on, a sample by each warp.
__global__ void ExpandSamples(ResidentSamples samples, SlotLayout layout, Notes notes, uint64_t first, int64_t steps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t batch = layout.batch_size(), warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  for (int64_t w = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp; w < steps * batch; w += warps) {
    const int64_t position = w % batch;
    const uint64_t step = first + static_cast<uint64_t>(w / batch);
    const auto slot = static_cast<int64_t>(step % static_cast<uint64_t>(layout.slots));
    const char* note = notes.data + slot * notes.bytes;
    char* to = layout.ring + slot * layout.bytes_per_slot;
    if (position == 0) {
      const auto* weights = reinterpret_cast<const double*>(note);
      const auto count = static_cast<int>(layout.weight_bytes / static_cast<int64_t>(sizeof(double)));
      for (int i = lane; i < count; i += kWarp) reinterpret_cast<double*>(to)[i] = weights[i];
    }
    const int64_t sample = reinterpret_cast<const int32_t*>(note + layout.weight_bytes)[position];
    const int64_t micro_batch = position / layout.micro_batch_size, row = position % layout.micro_batch_size;
    if (layout.input.bytes > 0) {
      auto* out = reinterpret_cast<float*>(to + layout.input.offset + micro_batch * layout.input.stride) +
                  row * samples.values_per_sample;
      if (samples.augmentation.draws()) {
        const ImageView view = samples.augmentation.ViewOf(samples.seed, step, static_cast<uint32_t>(position));
        CopyView(samples, sample, view, lane, out);
      } else {
        CopyPlain(samples, sample, lane, out);
      }
    }
    if (layout.target.bytes > 0) {
      CopyTarget(samples, sample, lane, row, to + layout.target.offset + micro_batch * layout.target.stride);
    }
  }
}

// What the plans read must be what the samples make.
absl::Status CheckPlace(absl::string_view name, const FeedPlace& place, int64_t micro_batch_size, int64_t row_bytes) {
  if (place.bytes == 0 || place.bytes == micro_batch_size * row_bytes) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the plans read ", place.bytes, " bytes of ", name, ", ",
                                               micro_batch_size, " samples make ", micro_batch_size * row_bytes));
}

absl::Status CheckSamples(const StoredSamples& samples, const SlotLayout& layout) {
  constexpr int64_t kMost = INT32_MAX;
  if (samples.size > kMost || samples.values > kMost) {
    return absl::UnimplementedError(absl::StrCat(samples.size, " samples of ", samples.values, " values: at most ",
                                                 kMost, " of either are kept on the device"));
  }
  constexpr auto kWord = static_cast<int64_t>(sizeof(float));
  const int64_t target_words = samples.one_hot > 0 ? samples.one_hot : samples.target_words;
  AMPD_RETURN_IF_ERROR(CheckPlace(samples.input, layout.input, layout.micro_batch_size, samples.values * kWord));
  return CheckPlace(samples.target, layout.target, layout.micro_batch_size, target_words * kWord);
}

absl::Status CheckBound(const runtime::Memory& memory, const StoredSamples& samples) {
  const int64_t free = memory.free_bytes();
  // What is made later, as graphs of captured steps, has to find room too.
  const int64_t left_over = free - std::min(free / kShareOfFree, kReserve);
  const int64_t most = samples.max_bytes >= 0 ? std::min(samples.max_bytes, left_over) : free / kShareOfFree;
  if (samples.total_bytes() <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("they take ", samples.total_bytes(), " bytes of the device, of ",
                                                   most, " that they may take; ", free, " are free"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResidentDataset>> ResidentDataset::Create(Context* context, runtime::Memory* memory,
                                                                         const StoredSamples& samples,
                                                                         const SlotLayout& layout) {
  AMPD_RETURN_IF_ERROR(CheckSamples(samples, layout));
  AMPD_RETURN_IF_ERROR(CheckBound(*memory, samples));
  std::unique_ptr<ResidentDataset> dataset(new ResidentDataset(context, layout));
  AMPD_RETURN_IF_ERROR(dataset->AllocateSamples(samples));
  AMPD_RETURN_IF_ERROR(dataset->AllocateNotes());
  AMPD_RETURN_IF_ERROR(dataset->UploadNormalization(memory, samples));
  AMPD_RETURN_IF_ERROR(dataset->Upload(memory, samples));
  return dataset;
}

absl::Status ResidentDataset::AllocateSamples(const StoredSamples& samples) {
  size_ = samples.size;
  AMPD_ASSIGN_OR_RETURN(values_, DeviceArray::Allocate(samples.size * samples.value_bytes(), "training samples"));
  AMPD_ASSIGN_OR_RETURN(targets_, DeviceArray::Allocate(samples.size * samples.target_bytes(), "training targets"));
  samples_.values = values_.as<void>();
  samples_.targets = targets_.as<uint32_t>();
  samples_.values_per_sample = samples.values;
  samples_.bytes = samples.bytes;
  samples_.augmentation = samples.augmentation;
  samples_.seed = samples.seed;
  samples_.target_words = samples.target_words;
  samples_.one_hot = samples.one_hot;
  return absl::OkStatus();
}

absl::Status ResidentDataset::AllocateNotes() {
  note_bytes_ = AlignUp(layout_.weight_bytes + layout_.batch_size() * static_cast<int64_t>(sizeof(int32_t)));
  AMPD_ASSIGN_OR_RETURN(notes_, PinnedArray::Allocate(layout_.slots * note_bytes_, "numbers of samples"));
  AMPD_ASSIGN_OR_RETURN(device_notes_, DeviceArray::Allocate(layout_.slots * note_bytes_, "numbers of samples"));
  return absl::OkStatus();
}

absl::Status ResidentDataset::UploadNormalization(runtime::Memory* memory, const StoredSamples& samples) {
  const auto channels = static_cast<int64_t>(samples.mean.size());
  samples_.channels = channels;
  if (samples.bytes && channels <= kMostTables) {
    std::vector<float> table;
    for (size_t c = 0; c < samples.mean.size(); ++c) {
      for (int v = 0; v < 256; ++v) table.push_back(Normalized(static_cast<float>(v), samples.mean[c], samples.std[c]));
    }
    const auto bytes = static_cast<int64_t>(table.size() * sizeof(float));
    AMPD_ASSIGN_OR_RETURN(table_, DeviceArray::Allocate(bytes, "normalised bytes"));
    samples_.table = table_.as<float>();
    return memory->Upload(table.data(), bytes, table_.as<void>());
  }
  const bool same = channels == 1 && samples.mean[0] == 0 && samples.std[0] == 1;
  if (!samples.bytes && same) return absl::OkStatus();
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(double));
  AMPD_ASSIGN_OR_RETURN(mean_, DeviceArray::Allocate(bytes, "the samples' mean"));
  AMPD_ASSIGN_OR_RETURN(std_, DeviceArray::Allocate(bytes, "the samples' deviation"));
  samples_.mean = mean_.as<double>();
  samples_.std = std_.as<double>();
  AMPD_RETURN_IF_ERROR(memory->Upload(samples.mean.data(), bytes, mean_.as<void>()));
  return memory->Upload(samples.std.data(), bytes, std_.as<void>());
}

absl::Status ResidentDataset::Upload(runtime::Memory* memory, const StoredSamples& samples) {
  const int64_t value_bytes = samples.value_bytes(), target_bytes = samples.target_bytes();
  const int64_t piece = std::clamp<int64_t>(kPieceBytes / (value_bytes + target_bytes), 1, samples.size);
  std::vector<char> values(static_cast<size_t>(piece * value_bytes));
  std::vector<char> targets(static_cast<size_t>(piece * target_bytes));
  for (int64_t first = 0; first < samples.size; first += piece) {
    const int64_t count = std::min(piece, samples.size - first);
    AMPD_RETURN_IF_ERROR(samples.read(first, count, values.data(), targets.data()));
    AMPD_RETURN_IF_ERROR(memory->Upload(values.data(), count * value_bytes, values_.as<char>() + first * value_bytes));
    if (target_bytes == 0) continue;
    AMPD_RETURN_IF_ERROR(
        memory->Upload(targets.data(), count * target_bytes, targets_.as<char>() + first * target_bytes));
  }
  // The kernel runs on another stream.
  return memory->Wait();
}

absl::Status ResidentDataset::Note(uint64_t step, absl::Span<const int64_t> samples,
                                   absl::Span<const MicroBatchWeight> weights) {
  const auto weight_bytes = static_cast<int64_t>(weights.size() * sizeof(MicroBatchWeight));
  if (static_cast<int64_t>(samples.size()) != layout_.batch_size() || weight_bytes != layout_.weight_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("[cuda resident dataset] ", samples.size(), " samples with ",
                                                   weights.size(), " weights, a step takes ", layout_.batch_size()));
  }
  const auto slot = static_cast<int64_t>(step % static_cast<uint64_t>(layout_.slots));
  char* note = notes_.as<char>() + slot * note_bytes_;
  std::memcpy(note, weights.data(), static_cast<size_t>(weight_bytes));
  auto* numbers = reinterpret_cast<int32_t*>(note + weight_bytes);
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] < 0 || samples[i] >= size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("[cuda resident dataset] sample ", samples[i], " of ", size_, " in step ", step));
    }
    numbers[i] = static_cast<int32_t>(samples[i]);
  }
  return absl::OkStatus();
}

absl::Status ResidentDataset::Expand(cudaStream_t stream, uint64_t first, uint64_t end) const {
  const auto steps = static_cast<int64_t>(end - first);
  const auto slot = static_cast<int64_t>(first % static_cast<uint64_t>(layout_.slots));
  const int64_t straight = std::min(steps, layout_.slots - slot);
  const auto copy = [&](int64_t at, int64_t count) {
    return ToStatus(cudaMemcpyAsync(device_notes_.as<char>() + at * note_bytes_, notes_.as<char>() + at * note_bytes_,
                                    static_cast<size_t>(count * note_bytes_), cudaMemcpyHostToDevice, stream),
                    "feeding numbers of samples");
  };
  AMPD_RETURN_IF_ERROR(copy(slot, straight));
  if (straight < steps) AMPD_RETURN_IF_ERROR(copy(0, steps - straight));
  const unsigned blocks = BlocksFor(steps * layout_.batch_size() * kWarp, kThreads, context_->properties().sm_count);
  return Launch("expand samples", ExpandSamples, blocks, kThreads, 0, stream, samples_, layout_,
                Notes{device_notes_.as<char>(), note_bytes_}, first, steps);
}

}  // namespace ampd::cuda
