// Batches, prepared ahead on other threads.
#ifndef AMPD_ENGINE_DATA_LOADER_H_
#define AMPD_ENGINE_DATA_LOADER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/core/mutex.h"
#include "engine/core/tensor.h"
#include "engine/core/worker_pool.h"
#include "engine/data/dataset.h"
#include "engine/data/epoch_order.h"
#include "engine/data/length_buckets.h"
#include "engine/data/transform.h"

namespace ampd::data {

// How the loss wants its targets.
enum class TargetFormat {
  // Batch::labels; class datasets only.
  kLabels,
  // Batch::targets, [batch, width]; class labels are one-hot encoded.
  kFloats,
};

// What of a batch is there when it is handed out.
enum class ReadAhead {
  // All of it.
  kSamples,
  // Which samples it has: for whoever has them elsewhere. For trainings without buckets, of datasets that tolerate no
  // damage, where what is chosen does not depend on what is read. Loader::Read() reads the rest.
  kNothing,
  // As kNothing, and Batch::labels.
  kLabels,
};

struct LoaderOptions {
  // Samples per batch, >= 1.
  int64_t batch_size = 1;
  TargetFormat targets = TargetFormat::kLabels;
  // The network's outputs per sample: labels must be below it, float targets exactly that wide. 0: the dataset's own
  // classes or target_features.
  int64_t target_width = 0;
  // Of class labels as kLabels, one that the loss ignores; it need not be below target_width.
  absl::optional<int64_t> ignored;
  // Training only: the job's seed, whether the order is drawn anew each epoch, and the attempted step to start at.
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t first_step = 0;
  // Buffers, >= 2: batches prepared ahead and those that the caller holds.
  int depth = 3;
  // Threads that read samples which have to be decoded (DatasetInfo::decodes), >= 1. They change nothing in a batch.
  int threads = 1;
  // Of datasets with lengths, and only of those: what LengthBuckets gave. Required for them.
  std::vector<int64_t> buckets;
  // Of label sequences: they are what is to be found in the input (ctc) rather than a label for each of its steps, must
  // be classes and not `blank`. Needs TargetFormat::kLabels.
  bool spelled_labels = false;
  // Of those, where the dataset has label_lengths: places that a sample's labels get, at least the dataset's
  // label_count. 0: as many.
  int64_t label_places = 0;
  int32_t blank = 0;
  ReadAhead read_ahead = ReadAhead::kSamples;
};

// Reusable buffer owned by the loader.
struct Batch {
  // f32 [batch_size, sample shape], normalised. With buckets the sample's time is the bucket's length; steps past a
  // sample's length are zeros.
  Tensor inputs;
  // i32 [batch_size] for kLabels, else empty. Of label sequences [batch_size, labels]; with buckets, and unless
  // spelled_labels, labels go with the steps: those past a sample's length are -1.
  Tensor labels;
  // i32 [batch_size] with buckets, else empty: steps that count; 1 in places that pad an evaluation's last batch.
  Tensor lengths;
  // i32 [batch_size] where the dataset has label_lengths, else empty.
  Tensor label_lengths;
  // Index into LoaderOptions::buckets; 0 without.
  size_t bucket = 0;
  // f32 [batch_size, width] for kFloats, else empty.
  Tensor targets;
  // Index in the dataset of each of the `valid` samples.
  std::vector<int64_t> samples;
  // Training: attempted step, from 0. Evaluation: number of the batch, from 0.
  int64_t step = 0;
  // From 1; 0 in evaluation.
  int64_t epoch = 0;
  // Within the epoch or the evaluation, from 0.
  int64_t batch = 0;
  // Samples that count: batch_size, but fewer in an evaluation's last batch and in those of which a damaged sample was
  // left out; the other places are zeros.
  int64_t valid = 0;
  // How long Next() waited for it.
  double wait_seconds = 0;
  // False: the tensors are empty, but for labels that were read ahead.
  bool read = true;
};

// Next() and Release() are called from one thread at a time; destruction, from any state, stops the loader's thread and
// takes back every batch. `dataset` and `transform` outlive the loader.
//
// A damaged sample (Dataset::NoteDamage) is noted and left out. In training the next sample of the dataset takes its
// place, the first after the last, whatever was met before: so what a step sees follows from the files alone, after a
// resume too. An evaluation has fewer samples.
class Loader {
 public:
  // An endless sequence of full batches that depends on (seed, step) alone: attempted step s is batch
  // s % batches_per_epoch() of epoch s / batches_per_epoch() + 1; an epoch's partial last batch is dropped. So the
  // cursor of a training is its attempted step. With buckets the batches of an epoch are EpochBatches'.
  // INVALID_ARGUMENT when the dataset is smaller than a batch, or its samples or targets do not fit transform and
  // options; RESOURCE_EXHAUSTED when the batches do not fit the machine's memory.
  static absl::StatusOr<std::unique_ptr<Loader>> CreateTraining(const Dataset& dataset, const Transform& transform,
                                                                const LoaderOptions& options);

  // All samples once, in order (with buckets: in BucketBatches' order), without augmentation.
  static absl::StatusOr<std::unique_ptr<Loader>> CreateEvaluation(const Dataset& dataset, const Transform& transform,
                                                                  const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Waits for the next batch, which the caller holds until Release(); nullptr after the last one of an evaluation.
  // DATA_LOSS, in place of the batch concerned and of all later ones, when a sample's source is not finite: names file,
  // sample, epoch and batch; or when too many samples are damaged. RESOURCE_EXHAUSTED when there is no memory to read
  // them. FAILED_PRECONDITION when the caller holds every buffer.
  absl::StatusOr<Batch*> Next();
  void Release(Batch* batch);

  // As Next(), but with what read_ahead says alone; and reads the rest of it, unless it was. Errors are Next()'s.
  absl::StatusOr<Batch*> NextUnread();
  absl::Status Read(Batch* batch);

  // Batches of an epoch, or of the evaluation.
  int64_t batches_per_epoch() const { return batches_per_epoch_; }

 private:
  struct Prepared {
    Batch* batch = nullptr;
    absl::Status status;
  };

  Loader(const Dataset& dataset, const Transform& transform, const LoaderOptions& options, bool training);
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Dataset& dataset, const Transform& transform,
                                                        LoaderOptions options, bool training);
  void AllocateBuffers();
  void AllocateTensors(Batch& batch) const;
  void AllocateLabels(Batch& batch) const;
  void Run();
  Batch* TakeFree();
  void Publish(Prepared prepared);
  void Number(int64_t step, Batch& batch);
  absl::Status NumberAndPrepare(int64_t step, Batch& batch);
  // What is read ahead.
  absl::Status Prepare(Batch& batch);
  absl::Status Fill(Batch& batch);
  // The samples of the batch that `batch` is, and its bucket.
  void Choose(Batch& batch);
  void ChooseFromBuckets(Batch& batch);
  // Of one thread.
  struct Scratch {
    std::vector<float> values;
    std::vector<int32_t> labels;
  };
  // A sample that could not be read, and why.
  struct Refused {
    int64_t sample;
    absl::Status status;
  };
  // How reading the sample of one place of a batch went.
  struct Place {
    // In the order in which they were tried.
    std::vector<Refused> refused;
    absl::Status status;
    bool left_out = false;
  };
  absl::Status FillSamples(Batch& batch);
  // Reads the sample of a place, or the one that takes its place.
  void FillPlace(int64_t position, Batch& batch, Scratch& scratch, Place& place);
  // Whether a batch has room for a sample's steps, which one that takes another's place may lack.
  bool FitsBucket(int64_t sample, const Batch& batch) const;
  absl::Status NoteRefused(Batch& batch);
  // Closes the gaps that left-out samples made.
  void DropLeftOut(Batch& batch);
  absl::Status FillSample(int64_t sample, int64_t position, Batch& batch, Scratch& scratch);
  // Whether there is a label for each step, padded as the steps are.
  bool LabelsByStep() const;
  absl::Status FillSequence(int64_t sample, int64_t position, Batch& batch, Scratch& scratch);
  absl::Status FillTarget(int64_t sample, int64_t position, Batch& batch, Scratch& scratch);
  absl::Status FillLabels(int64_t sample, int64_t position, Batch& batch, Scratch& scratch);
  void ClearPadding(Batch& batch) const;

  const Dataset& dataset_;
  const Transform& transform_;
  const LoaderOptions options_;
  const bool training_;
  const int64_t batches_per_epoch_;
  // Set before the thread starts.
  std::vector<std::unique_ptr<Batch>> buffers_;

  // Used by the loader's thread, and what it lends to its pool's; where samples are not read ahead pool, scratch and
  // places are the caller's.
  std::vector<int64_t> order_;
  std::vector<BucketBatch> bucket_batches_;
  // What order_ or bucket_batches_ is of; -1: nothing yet.
  int64_t order_epoch_ = -1;
  WorkerPool pool_;
  std::vector<Scratch> scratch_;
  std::vector<Place> places_;
  Scratch ahead_;

  Mutex mutex_;
  CondVar changed_;
  std::vector<Batch*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Prepared> ready_ ABSL_GUARDED_BY(mutex_);
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  // Free buffers that the loader's thread waits for, unless no batch is ready: batches that are only chosen are made
  // many at a time, for waking it takes longer than making one.
  size_t wanted_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace ampd::data

#endif  // AMPD_ENGINE_DATA_LOADER_H_
