#include "engine/data/loader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "engine/core/status.h"
#include "engine/data/byte_source.h"

namespace ampd::data {
namespace {

int64_t OwnWidth(const DatasetInfo& info) {
  return info.target_kind == TargetKind::kClass ? info.classes : info.target_features;
}

absl::Status CheckTargets(const DatasetInfo& info, const LoaderOptions& options) {
  if (info.label_count > 0 && options.targets != TargetFormat::kLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name, " has label sequences, but the loss needs one target a sample"));
  }
  if (info.target_kind == TargetKind::kClass) {
    // One-hot targets have no place for a label that is ignored.
    const bool one_hot = options.targets != TargetFormat::kLabels;
    const int64_t classes = one_hot ? info.classes : info.CountedClasses(options.ignored);
    if (classes <= options.target_width) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(info.name, " has labels up to ", classes - 1,
                                                   ", but the network has ", options.target_width, " outputs"));
  }
  if (options.targets == TargetFormat::kLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name, " has float targets, but the loss needs integer class labels"));
  }
  if (info.target_features == options.target_width) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(info.name, " has ", info.target_features,
                                                 " target features, but the network has ", options.target_width,
                                                 " outputs"));
}

// In floating point, in which absurd sizes do not wrap around.
absl::Status CheckMemory(const DatasetInfo& info, const LoaderOptions& options) {
  const double longer = options.buckets.empty()
                            ? 1
                            : static_cast<double>(options.buckets.back()) / static_cast<double>(info.input_shape[0]);
  const double sample =
      4.0 * (static_cast<double>(info.input_elements()) * std::max(longer, 1.0) +
             static_cast<double>(options.target_width + std::max(info.label_count, options.label_places)));
  const double batches = options.depth * static_cast<double>(options.batch_size) * (sample + sizeof(int64_t));
  const bool ordered = options.shuffle || !options.buckets.empty();
  const double order = ordered ? 4.0 * static_cast<double>(info.size) * sizeof(int64_t) : 0;
  if (batches + order <= static_cast<double>(PhysicalMemory())) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("batches of ", options.batch_size, " of the ", info.size,
                                                   " samples of ", info.name, " need ", batches + order,
                                                   " bytes in memory; this process may have ", PhysicalMemory()));
}

absl::Status CheckBuckets(const DatasetInfo& info, const LoaderOptions& options) {
  if (info.lengths.empty() != options.buckets.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(info.name, info.lengths.empty() ? " has no lengths" : " has lengths",
                                                   ", the loader got ", options.buckets.size(), " length buckets"));
  }
  if (info.lengths.empty()) return absl::OkStatus();
  const int32_t longest = *std::max_element(info.lengths.begin(), info.lengths.end());
  if (longest <= options.buckets.back()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(info.name, " has a sample of ", longest, " steps, the longest bucket is ", options.buckets.back()));
}

absl::Status CheckOptions(const DatasetInfo& info, const LoaderOptions& options, bool training) {
  if (options.batch_size < 1 || options.first_step < 0 || options.depth < 2 || options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("loader: batch size ", options.batch_size, ", first step ",
                                                   options.first_step, ", depth ", options.depth, ", threads ",
                                                   options.threads));
  }
  if (training) AMPD_RETURN_IF_ERROR(CheckFills(info, options.batch_size));
  if (options.read_ahead != ReadAhead::kSamples && (!training || !options.buckets.empty() || info.max_damaged >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name, ": which samples make a batch is known only when they are read"));
  }
  AMPD_RETURN_IF_ERROR(CheckBuckets(info, options));
  AMPD_RETURN_IF_ERROR(CheckMemory(info, options));
  return CheckTargets(info, options);
}

int64_t BatchesPerEpoch(int64_t size, int64_t batch_size, bool training) {
  return training ? size / batch_size : (size - 1) / batch_size + 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Loader>> Loader::CreateTraining(const Dataset& dataset, const Transform& transform,
                                                               const LoaderOptions& options) {
  return Create(dataset, transform, options, /*training=*/true);
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::CreateEvaluation(const Dataset& dataset, const Transform& transform,
                                                                 const LoaderOptions& options) {
  return Create(dataset, transform, options, /*training=*/false);
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(const Dataset& dataset, const Transform& transform,
                                                       LoaderOptions options, bool training) {
  if (options.target_width == 0) options.target_width = OwnWidth(dataset.info());
  AMPD_RETURN_IF_ERROR(CheckOptions(dataset.info(), options, training));
  AMPD_RETURN_IF_ERROR(transform.CheckApplies(dataset.info()));
  std::unique_ptr<Loader> loader(new Loader(dataset, transform, options, training));
  loader->AllocateBuffers();
  // Last, when all that the thread uses is in place.
  loader->thread_ = std::thread([raw = loader.get()] { raw->Run(); });
  return loader;
}

Loader::Loader(const Dataset& dataset, const Transform& transform, const LoaderOptions& options, bool training)
    : dataset_(dataset),
      transform_(transform),
      options_(options),
      training_(training),
      batches_per_epoch_(BatchesPerEpoch(dataset.size(), options.batch_size, training)),
      pool_(dataset.info().decodes ? options.threads : 1),
      scratch_(static_cast<size_t>(pool_.threads())) {}

Loader::~Loader() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Loader::AllocateBuffers() {
  const MutexLock lock(&mutex_);
  for (int i = 0; i < options_.depth; ++i) {
    auto batch = std::make_unique<Batch>();
    if (options_.read_ahead == ReadAhead::kSamples) AllocateTensors(*batch);
    if (options_.read_ahead == ReadAhead::kLabels) AllocateLabels(*batch);
    free_.push_back(batch.get());
    buffers_.push_back(std::move(batch));
  }
}

void Loader::AllocateTensors(Batch& batch) const {
  Shape inputs = {options_.batch_size};
  const DatasetInfo& info = dataset_.info();
  inputs.insert(inputs.end(), info.input_shape.begin(), info.input_shape.end());
  if (!options_.buckets.empty()) inputs[1] = options_.buckets.back();
  batch.inputs = Tensor(DType::kF32, inputs);
  AllocateLabels(batch);
  if (options_.targets == TargetFormat::kFloats) {
    batch.targets = Tensor(DType::kF32, {options_.batch_size, options_.target_width});
  }
  if (!options_.buckets.empty()) batch.lengths = Tensor(DType::kI32, {options_.batch_size});
  if (!info.label_lengths.empty()) batch.label_lengths = Tensor(DType::kI32, {options_.batch_size});
}

void Loader::AllocateLabels(Batch& batch) const {
  if (options_.targets != TargetFormat::kLabels) return;
  const DatasetInfo& info = dataset_.info();
  Shape labels = {options_.batch_size};
  if (info.label_count > 0) {
    labels.push_back(LabelsByStep() ? options_.buckets.back() : std::max(info.label_count, options_.label_places));
  }
  batch.labels = Tensor(DType::kI32, labels);
}

absl::StatusOr<Batch*> Loader::Next() {
  AMPD_ASSIGN_OR_RETURN(Batch * batch, NextUnread());
  if (batch == nullptr || batch->read) return batch;
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = Read(batch);
  batch->wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (status.ok()) return batch;
  Release(batch);
  return status;
}

absl::Status Loader::Read(Batch* batch) {
  if (batch->read) return absl::OkStatus();
  AllocateTensors(*batch);
  return Fill(*batch);
}

absl::StatusOr<Batch*> Loader::NextUnread() {
  const auto start = std::chrono::steady_clock::now();
  const MutexLock lock(&mutex_);
  if (held_ == options_.depth) {
    return absl::FailedPreconditionError(absl::StrCat("loader: all ", held_, " batches are held; release one"));
  }
  while (ready_.empty()) changed_.Wait(&mutex_);
  // The end and an error stay, so that asking again gives the same answer.
  if (!ready_.front().status.ok()) return ready_.front().status;
  if (ready_.front().batch == nullptr) return nullptr;
  Batch* batch = ready_.front().batch;
  ready_.pop_front();
  ++held_;
  if (ready_.empty()) changed_.NotifyAll();
  batch->wait_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return batch;
}

void Loader::Release(Batch* batch) {
  if (options_.read_ahead != ReadAhead::kSamples && batch->read) {
    batch->inputs = Tensor();
    batch->targets = Tensor();
    if (options_.read_ahead == ReadAhead::kNothing) batch->labels = Tensor();
  }
  bool awaited = false;
  {
    const MutexLock lock(&mutex_);
    free_.push_back(batch);
    --held_;
    awaited = free_.size() >= wanted_ || ready_.empty();
  }
  if (awaited) changed_.NotifyAll();
}

void Loader::Run() {
  for (int64_t step = training_ ? options_.first_step : 0; training_ || step < batches_per_epoch_; ++step) {
    Batch* batch = TakeFree();
    if (batch == nullptr) return;
    const absl::Status status = NumberAndPrepare(step, *batch);
    Publish({batch, status});
    if (!status.ok()) return;
  }
  Publish({nullptr, absl::OkStatus()});
}

Batch* Loader::TakeFree() {
  const MutexLock lock(&mutex_);
  if (free_.empty() && options_.read_ahead != ReadAhead::kSamples) {
    wanted_ = static_cast<size_t>(std::max(1, options_.depth / 4));
  }
  while (!stopping_ && (free_.empty() || (free_.size() < wanted_ && !ready_.empty()))) changed_.Wait(&mutex_);
  if (stopping_) return nullptr;
  wanted_ = 1;
  Batch* batch = free_.back();
  free_.pop_back();
  return batch;
}

void Loader::Publish(Prepared prepared) {
  {
    const MutexLock lock(&mutex_);
    ready_.push_back(std::move(prepared));
  }
  changed_.NotifyAll();
}

void Loader::Number(int64_t step, Batch& batch) {
  batch.step = step;
  batch.epoch = training_ ? step / batches_per_epoch_ + 1 : 0;
  batch.batch = step % batches_per_epoch_;
  if (options_.buckets.empty()) {
    Choose(batch);
  } else {
    ChooseFromBuckets(batch);
  }
  batch.valid = static_cast<int64_t>(batch.samples.size());
  batch.read = false;
}

// An exception must not leave the thread.
absl::Status Loader::NumberAndPrepare(int64_t step, Batch& batch) {
  try {
    Number(step, batch);
    return Prepare(batch);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(dataset_.info().name, ": no memory left to prepare batches"));
  }
}

absl::Status Loader::Prepare(Batch& batch) {
  if (options_.read_ahead == ReadAhead::kSamples) return Fill(batch);
  if (batch.labels.shape().empty()) return absl::OkStatus();
  for (int64_t i = 0; i < batch.valid; ++i) {
    AMPD_RETURN_IF_ERROR(FillTarget(batch.samples[static_cast<size_t>(i)], i, batch, ahead_));
  }
  return absl::OkStatus();
}

absl::Status Loader::Fill(Batch& batch) {
  if (const absl::Status status = FillSamples(batch); !status.ok()) {
    const std::string where = training_ ? absl::StrCat("epoch ", batch.epoch, ", batch ") : "evaluation, batch ";
    return Annotate(status, absl::StrCat(where, batch.batch));
  }
  ClearPadding(batch);
  batch.read = true;
  return absl::OkStatus();
}

absl::Status Loader::FillSamples(Batch& batch) {
  places_.assign(batch.samples.size(), Place());
  pool_.ForEach(batch.valid, [&](int64_t i, int worker) {
    Scratch& scratch = scratch_[static_cast<size_t>(worker)];
    Place& place = places_[static_cast<size_t>(i)];
    // An exception must not leave the thread.
    try {
      FillPlace(i, batch, scratch, place);
    } catch (const std::bad_alloc&) {
      const int64_t sample = batch.samples[static_cast<size_t>(i)];
      place.status = absl::ResourceExhaustedError(
          absl::StrCat(dataset_.SampleName(sample), ": no memory left to read sample ", sample));
    }
  });
  AMPD_RETURN_IF_ERROR(NoteRefused(batch));
  DropLeftOut(batch);
  return absl::OkStatus();
}

void Loader::FillPlace(int64_t position, Batch& batch, Scratch& scratch, Place& place) {
  const int64_t first = batch.samples[static_cast<size_t>(position)], size = dataset_.size();
  const int64_t max_damaged = dataset_.info().max_damaged;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t sample = (first + i) % size;
    if (i > 0 && !FitsBucket(sample, batch)) continue;
    batch.samples[static_cast<size_t>(position)] = sample;
    place.status = FillSample(sample, position, batch, scratch);
    if (max_damaged < 0 || !absl::IsDataLoss(place.status)) return;
    place.refused.push_back({sample, std::exchange(place.status, absl::OkStatus())});
    place.left_out = !training_;
    if (place.left_out || static_cast<int64_t>(place.refused.size()) > max_damaged) return;
  }
  place.status = Annotate(place.refused[0].status, "no whole sample is as short as this damaged one's bucket");
}

bool Loader::FitsBucket(int64_t sample, const Batch& batch) const {
  return options_.buckets.empty() ||
         dataset_.info().lengths[static_cast<size_t>(sample)] <= options_.buckets[batch.bucket];
}

// In the order of the batch, whichever thread was first.
absl::Status Loader::NoteRefused(Batch& batch) {
  for (int64_t i = 0; i < batch.valid; ++i) {
    const Place& place = places_[static_cast<size_t>(i)];
    for (const Refused& refused : place.refused) {
      AMPD_RETURN_IF_ERROR(dataset_.NoteDamage(refused.sample, refused.status));
    }
    AMPD_RETURN_IF_ERROR(place.status);
  }
  return absl::OkStatus();
}

void Loader::DropLeftOut(Batch& batch) {
  int64_t kept = 0;
  const auto move_row = [&](Tensor& tensor, int64_t from) {
    if (tensor.shape().empty()) return;
    const size_t row = static_cast<size_t>(tensor.view().bytes() / options_.batch_size);
    char* data = static_cast<char*>(tensor.view().data);
    std::memmove(data + static_cast<size_t>(kept) * row, data + static_cast<size_t>(from) * row, row);
  };
  for (int64_t i = 0; i < batch.valid; ++i) {
    if (places_[static_cast<size_t>(i)].left_out) continue;
    if (i != kept) {
      for (Tensor* tensor : {&batch.inputs, &batch.labels, &batch.lengths, &batch.label_lengths, &batch.targets}) {
        move_row(*tensor, i);
      }
      batch.samples[static_cast<size_t>(kept)] = batch.samples[static_cast<size_t>(i)];
    }
    ++kept;
  }
  batch.valid = kept;
  batch.samples.resize(static_cast<size_t>(kept));
}

void Loader::Choose(Batch& batch) {
  const int64_t first = batch.batch * options_.batch_size;
  const bool shuffled = training_ && options_.shuffle;
  if (shuffled && order_epoch_ != batch.epoch) {
    order_ = EpochOrder(dataset_.size(), options_.seed, batch.epoch);
    order_epoch_ = batch.epoch;
  }
  batch.samples.clear();
  for (int64_t i = first; i < std::min(first + options_.batch_size, dataset_.size()); ++i) {
    batch.samples.push_back(shuffled ? order_[static_cast<size_t>(i)] : i);
  }
}

void Loader::ChooseFromBuckets(Batch& batch) {
  if (order_epoch_ != batch.epoch) {
    const std::vector<int32_t>& lengths = dataset_.info().lengths;
    if (training_) {
      bucket_batches_ =
          EpochBatches(lengths, options_.buckets, options_.batch_size, options_.shuffle, options_.seed, batch.epoch);
    } else {
      std::vector<int64_t> order(lengths.size());
      std::iota(order.begin(), order.end(), 0);
      bucket_batches_ = BucketBatches(lengths, options_.buckets, order, options_.batch_size);
    }
    order_epoch_ = batch.epoch;
  }
  const BucketBatch& chosen = bucket_batches_[static_cast<size_t>(batch.batch)];
  batch.samples = chosen.samples;
  batch.bucket = chosen.bucket;
  const int64_t time = options_.buckets[chosen.bucket];
  Shape inputs = batch.inputs.shape();
  inputs[1] = time;
  batch.inputs.Reshape(std::move(inputs));
  if (LabelsByStep()) batch.labels.Reshape({options_.batch_size, time});
}

absl::Status Loader::FillSample(int64_t sample, int64_t position, Batch& batch, Scratch& scratch) {
  if (!options_.buckets.empty()) {
    AMPD_RETURN_IF_ERROR(FillSequence(sample, position, batch, scratch));
    return FillTarget(sample, position, batch, scratch);
  }
  const size_t elements = static_cast<size_t>(dataset_.info().input_elements());
  const auto out = batch.inputs.as<float>().subspan(static_cast<size_t>(position) * elements, elements);
  if (training_) {
    const Draw draw = {options_.seed, batch.step, position};
    AMPD_RETURN_IF_ERROR(transform_.ReadAugmented(dataset_, sample, draw, scratch.values, out));
  } else {
    AMPD_RETURN_IF_ERROR(transform_.ReadPlain(dataset_, sample, out));
  }
  return FillTarget(sample, position, batch, scratch);
}

absl::Status Loader::FillSequence(int64_t sample, int64_t position, Batch& batch, Scratch& scratch) {
  std::vector<float>& values = scratch.values;
  values.resize(static_cast<size_t>(dataset_.info().input_elements()));
  AMPD_RETURN_IF_ERROR(transform_.ReadPlain(dataset_, sample, absl::MakeSpan(values)));
  const size_t length = static_cast<size_t>(dataset_.info().lengths[static_cast<size_t>(sample)]);
  const size_t counted = values.size() / static_cast<size_t>(dataset_.info().input_shape[0]) * length;
  const size_t elements = static_cast<size_t>(batch.inputs.size() / options_.batch_size);
  const auto out = batch.inputs.as<float>().subspan(static_cast<size_t>(position) * elements, elements);
  std::fill(std::copy_n(values.begin(), counted, out.begin()), out.end(), 0.0f);
  batch.lengths.as<int32_t>()[static_cast<size_t>(position)] = static_cast<int32_t>(length);
  return absl::OkStatus();
}

absl::Status Loader::FillTarget(int64_t sample, int64_t position, Batch& batch, Scratch& scratch) {
  if (dataset_.info().label_count > 0) return FillLabels(sample, position, batch, scratch);
  if (options_.targets == TargetFormat::kLabels) {
    batch.labels.as<int32_t>()[static_cast<size_t>(position)] = dataset_.ReadLabel(sample);
    return absl::OkStatus();
  }
  const size_t width = static_cast<size_t>(options_.target_width);
  const auto out = batch.targets.as<float>().subspan(static_cast<size_t>(position) * width, width);
  if (dataset_.info().target_kind == TargetKind::kFloat) {
    dataset_.ReadTarget(sample, out);
    return absl::OkStatus();
  }
  std::fill(out.begin(), out.end(), 0.0f);
  out[static_cast<size_t>(dataset_.ReadLabel(sample))] = 1.0f;
  return absl::OkStatus();
}

bool Loader::LabelsByStep() const {
  return dataset_.info().label_count > 0 && !options_.buckets.empty() && !options_.spelled_labels;
}

absl::Status Loader::FillLabels(int64_t sample, int64_t position, Batch& batch, Scratch& scratch) {
  const DatasetInfo& info = dataset_.info();
  scratch.labels.resize(static_cast<size_t>(info.label_count));
  dataset_.ReadLabels(sample, absl::MakeSpan(scratch.labels));
  const size_t places = static_cast<size_t>(batch.labels.size() / options_.batch_size);
  const auto out = batch.labels.as<int32_t>().subspan(static_cast<size_t>(position) * places, places);
  const size_t given = std::min(places, scratch.labels.size());
  std::fill(std::copy_n(scratch.labels.begin(), given, out.begin()), out.end(), -1);
  if (!info.label_lengths.empty()) {
    batch.label_lengths.as<int32_t>()[static_cast<size_t>(position)] = info.label_lengths[static_cast<size_t>(sample)];
  }
  if (!options_.spelled_labels) return absl::OkStatus();
  const size_t counted =
      info.label_lengths.empty() ? given : static_cast<size_t>(info.label_lengths[static_cast<size_t>(sample)]);
  for (size_t i = 0; i < counted; ++i) {
    if (out[i] >= 0 && out[i] != options_.blank) continue;
    return absl::DataLossError(absl::StrCat(info.name, ": sample ", sample, " has ",
                                            out[i] < 0 ? "no label" : "the blank", " at place ", i, " of its ", counted,
                                            " labels"));
  }
  return absl::OkStatus();
}

void Loader::ClearPadding(Batch& batch) const {
  const auto clear = [&](auto values) {
    const size_t used = values.size() / static_cast<size_t>(options_.batch_size) * static_cast<size_t>(batch.valid);
    std::fill(values.begin() + used, values.end(), 0);
  };
  clear(batch.inputs.as<float>());
  if (!batch.label_lengths.shape().empty()) clear(batch.label_lengths.as<int32_t>());
  // Every sequence has a step.
  if (!options_.buckets.empty()) {
    const auto lengths = batch.lengths.as<int32_t>();
    std::fill(lengths.begin() + batch.valid, lengths.end(), 1);
  }
  if (options_.targets == TargetFormat::kLabels) {
    clear(batch.labels.as<int32_t>());
  } else {
    clear(batch.targets.as<float>());
  }
}

}  // namespace ampd::data
