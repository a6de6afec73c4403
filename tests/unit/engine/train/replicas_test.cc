// One step of several replicas: the gradients are those of one device, and are added up while others are still made.
#include "engine/train/replicas.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/runtime/gradient_reducer.h"
#include "engine/runtime/thread_collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/train/training_run.h"

namespace ampd::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 8, kFeatures = 6, kClasses = 5, kTargets = 4;

const std::string kData = "data { train { npy { inputs: 'x.npy' targets: 'y.npy' } } } ";
const std::string kDeep =
    "model { layers { name: 'a' dense { units: 12 activation: TANH } } layers { dropout { rate: 0.25 } }"
    "        layers { name: 'b' dense { units: 16 activation: RELU } } layers { dropout { rate: 0.5 } }"
    "        layers { name: 'c' dense { units: 5 } } loss { softmax_cross_entropy { ignore_index: 2 } } } ";

models::SampleInfo SampleOf(bool labels) {
  models::SampleInfo sample{.input_shape = {kFeatures}};
  labels ? sample.classes = kClasses : sample.target_features = kTargets;
  return sample;
}

// Whole numbers, if `exact`.
data::Batch MakeBatch(bool exact) {
  data::Batch batch;
  batch.step = 4;
  batch.valid = kBatch;
  batch.inputs = Tensor(DType::kF32, {kBatch, kFeatures});
  batch.labels = Tensor(DType::kI32, {kBatch});
  if (exact) batch.targets = Tensor(DType::kF32, {kBatch, kTargets});
  for (int64_t i = 0; i < kBatch * kFeatures; ++i) {
    const float value = static_cast<float>(i * i % 7) - 3;
    batch.inputs.as<float>()[i] = exact ? value : value / 5;
  }
  for (int64_t i = 0; i < kBatch; ++i) batch.labels.as<int32_t>()[i] = static_cast<int32_t>(i * 3 % kClasses);
  for (int64_t i = 0; exact && i < kBatch * kTargets; ++i) {
    batch.targets.as<float>()[i] = static_cast<float>(i % 5) - 2;
  }
  return batch;
}

// One replica's model, and its share of a step.
struct Model {
  Model(const ResolvedJobSpec& spec, bool labels, runtime::Collective* collective, int64_t bucket_bytes = 256)
      : plan(PlanModel(spec, SampleOf(labels), MakeBackend("cpu-0", 1).value(), 1).value()),
        loaded(LoadedModel::Create(*plan).value()) {
    EXPECT_TRUE(loaded->memory.Initialize(3).ok());
    if (!labels) {
      // Small whole numbers keep every product and sum exact.
      for (int64_t i = 0; i < plan->layout.arena_elements(); ++i) {
        loaded->memory.masters()[i] = static_cast<float>(i * 5 % 3) - 1;
      }
    }
    EXPECT_TRUE(loaded->memory.PublishAll().ok());
    if (collective != nullptr) {
      reducers.emplace_back(&plan->phases[0].plans[0], &loaded->memory, collective, bucket_bytes);
    }
  }
  double Run(const MicroBatches& step, const data::Batch& batch, const runtime::Executor::Hook& hook = nullptr) {
    const auto loss = step.Run(batch, {.seed = 9, .attempted_step = 4}, 8, hook, absl::MakeSpan(reducers));
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.value_or(0);
  }
  std::vector<float> gradients() const {
    const float* g = loaded->memory.gradients();
    return {g, g + plan->layout.arena_elements()};
  }

  std::unique_ptr<PlannedModel> plan;
  std::unique_ptr<LoadedModel> loaded;
  std::vector<runtime::GradientReducer> reducers;
};

ResolvedJobSpec SpecOf(const std::string& model, int64_t micro_batch) {
  return Spec({model, kData, absl::StrCat("train { batch_size: ", kBatch, " micro_batch_size: ", micro_batch, " }")});
}

struct Sums {
  double loss = 0;
  // By replica.
  std::vector<std::vector<float>> gradients;
};

Sums RunReplicas(int count, const std::string& model, int64_t micro_batch, bool labels) {
  const ResolvedJobSpec spec = SpecOf(model, micro_batch);
  const data::Batch batch = MakeBatch(!labels);
  const auto collectives = runtime::MakeThreadCollectives(count);
  Sums sums;
  sums.gradients.resize(static_cast<size_t>(count));
  std::vector<double> losses(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank, r = static_cast<size_t>(rank)] {
      Model own(spec, labels, collectives[r].get());
      losses[r] = own.Run(MicroBatches(own.plan.get(), own.loaded.get(), kBatch, micro_batch, 0, {rank, count}), batch);
      // Nobody's arena goes while others are added to.
      std::vector<int> all;
      EXPECT_TRUE(collectives[r]->group()->AllGather(rank, 0, &all).ok());
      sums.gradients[r] = own.gradients();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double loss : losses) sums.loss += loss;
  return sums;
}

// The gradients of each micro-batch of one sample alone.
std::vector<std::vector<float>> TermsOf(const std::string& model) {
  const ResolvedJobSpec spec = SpecOf(model, 1);
  const data::Batch batch = MakeBatch(false);
  std::vector<std::vector<float>> terms;
  for (int rank = 0; rank < kBatch; ++rank) {
    Model own(spec, true, nullptr);
    own.Run(MicroBatches(own.plan.get(), own.loaded.get(), kBatch, 1, 0, {rank, static_cast<int>(kBatch)}), batch);
    terms.push_back(own.gradients());
  }
  return terms;
}

Sums RunOne(const std::string& model, int64_t micro_batch, bool labels) {
  Model own(SpecOf(model, micro_batch), labels, nullptr);
  Sums sums;
  sums.loss = own.Run(MicroBatches(own.plan.get(), own.loaded.get(), kBatch, micro_batch), MakeBatch(!labels));
  sums.gradients = {own.gradients()};
  return sums;
}

TEST(ReplicaGradients, OfOneMicroBatchEachAreTheBitsOfOneDevice) {
  for (const int count : {1, 2, 4, 8}) {
    const Sums one = RunOne(kDeep, kBatch / count, true);
    const Sums all = RunReplicas(count, kDeep, kBatch / count, true);
    EXPECT_EQ(all.loss, one.loss) << count;
    for (const std::vector<float>& gradients : all.gradients) EXPECT_EQ(gradients, one.gradients[0]) << count;
    EXPECT_GT(*std::max_element(one.gradients[0].begin(), one.gradients[0].end()), 0);
  }
}

// A sum of n numbers in any order is within (n - 1) u of the sum of their magnitudes (Higham, "Accuracy and Stability
// of Numerical Algorithms", section 4.2, to first order): two orders are within twice that.
TEST(ReplicaGradients, OfSeveralMicroBatchesDifferByTheOrderOfSumsAlone) {
  const Sums one = RunOne(kDeep, 1, true);
  const std::vector<std::vector<float>> terms = TermsOf(kDeep);
  bool differ = false;
  for (const int count : {1, 2, 4}) {
    const Sums all = RunReplicas(count, kDeep, 1, true);
    EXPECT_NEAR(all.loss, one.loss, 1e-12);
    for (size_t i = 0; i < one.gradients[0].size(); ++i) {
      double magnitude = 0;
      for (const std::vector<float>& term : terms) magnitude += std::fabs(static_cast<double>(term[i]));
      const double bound = 2 * (static_cast<double>(kBatch) - 1) * 0x1p-24 * magnitude;
      ASSERT_NEAR(all.gradients[0][i], one.gradients[0][i], bound) << count << ", " << i;
      differ = differ || all.gradients[0][i] != one.gradients[0][i];
    }
    for (const std::vector<float>& gradients : all.gradients) EXPECT_EQ(gradients, all.gradients[0]);
  }
  EXPECT_TRUE(differ) << "nothing was rounded";
}

TEST(ReplicaGradients, OfWholeNumbersAreExactHoweverCut) {
  const std::string linear =
      "model { layers { dense { units: 8 } } layers { dense { units: 4 } } loss { mean_squared_error {} } } ";
  const Sums whole = RunOne(linear, kBatch, false);
  for (const int count : {2, 4}) {
    for (const int64_t micro_batch : {int64_t{1}, kBatch / count}) {
      const Sums all = RunReplicas(count, linear, micro_batch, false);
      EXPECT_EQ(all.loss, whole.loss);
      for (const std::vector<float>& gradients : all.gradients) EXPECT_EQ(gradients, whole.gradients[0]) << count;
    }
  }
}

TEST(GradientBuckets, HoldEveryGradientOnceAndInBackwardOrder) {
  const Model model(SpecOf(kDeep, 8), true, nullptr);
  const runtime::Plan& plan = model.plan->phases[0].plans[0];
  const runtime::ModelLayout& layout = model.plan->layout;
  for (const int64_t bytes : {int64_t{1}, int64_t{300}, int64_t{900}, int64_t{1} << 20}) {
    const auto buckets = runtime::GradientBuckets(plan, layout, bytes);
    std::vector<int> covered(static_cast<size_t>(layout.arena_elements()), 0);
    int before = -1;
    for (const runtime::GradientBucket& bucket : buckets) {
      EXPECT_GE(bucket.last_step, before);
      before = bucket.last_step;
      for (const runtime::ArenaSlot& range : bucket.ranges) {
        for (int64_t i = 0; i < range.size; ++i) ++covered[static_cast<size_t>(range.offset + i)];
      }
    }
    for (const runtime::ArenaSlot& slot : layout.slots()) {
      for (int64_t i = 0; i < slot.size; ++i) EXPECT_EQ(covered[static_cast<size_t>(slot.offset + i)], 1);
    }
    EXPECT_LE(*std::max_element(covered.begin(), covered.end()), 1);
    if (bytes == 1) {
      EXPECT_EQ(buckets.size(), layout.parameters().size());
    } else if (bytes > 900) {
      ASSERT_EQ(buckets.size(), 1u);
      EXPECT_EQ(buckets[0].ranges.size(), 1u) << "neighbours are one range";
    }
  }
}

// Nothing adds to a bucket's gradients after its last step, whatever the buckets are.
TEST(GradientBuckets, AreCompleteAtTheirLastStep) {
  Model model(SpecOf(kDeep, 8), true, nullptr);
  const runtime::Plan& plan = model.plan->phases[0].plans[0];
  const auto buckets = runtime::GradientBuckets(plan, model.plan->layout, 1);
  std::vector<std::vector<float>> at_last_step(buckets.size());
  const auto values = [&model](const runtime::GradientBucket& bucket) {
    std::vector<float> all;
    for (const runtime::ArenaSlot& range : bucket.ranges) {
      const float* from = model.loaded->memory.gradients() + range.offset;
      all.insert(all.end(), from, from + range.size);
    }
    return all;
  };
  model.Run(MicroBatches(model.plan.get(), model.loaded.get(), kBatch, kBatch), MakeBatch(false),
            [&](const runtime::PlanStep& step, absl::Span<const TensorView>) {
              for (size_t b = 0; b < buckets.size(); ++b) {
                if (&step == &plan.steps[static_cast<size_t>(buckets[b].last_step)])
                  at_last_step[b] = values(buckets[b]);
              }
              return absl::OkStatus();
            });
  for (size_t b = 0; b < buckets.size(); ++b) EXPECT_EQ(at_last_step[b], values(buckets[b])) << b;
}

// Each replica waits, in the middle of its backward pass, for the sums begun so far: they come without its end.
TEST(GradientReducer, ABucketIsAddedUpBeforeTheBackwardPassEnds) {
  const ResolvedJobSpec spec = SpecOf(kDeep, 4);
  const data::Batch batch = MakeBatch(false);
  const auto collectives = runtime::MakeThreadCollectives(2);
  std::vector<int> waits(2, 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank, r = static_cast<size_t>(rank)] {
      Model own(spec, true, collectives[r].get(), 1);
      const std::vector<runtime::GradientBucket>& buckets = own.reducers[0].buckets();
      ASSERT_GE(buckets.size(), 3u);
      const runtime::PlanStep* steps = own.plan->phases[0].plans[0].steps.data();
      own.Run(MicroBatches(own.plan.get(), own.loaded.get(), kBatch, 4, 0, {rank, 2}), batch,
              [&](const runtime::PlanStep& step, absl::Span<const TensorView>) {
                const auto index = static_cast<int>(&step - steps);
                if (index < buckets.front().last_step || index >= buckets.back().last_step) return absl::OkStatus();
                ++waits[r];
                const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
                while (!collectives[r]->Done()) {
                  if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError("no sum came");
                  std::this_thread::yield();
                }
                return absl::OkStatus();
              });
      std::vector<int> all;
      EXPECT_TRUE(collectives[r]->group()->AllGather(rank, 0, &all).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(waits[0], 0);
  EXPECT_EQ(waits[0], waits[1]);
}

// Adds up nothing, and so sees no difference either.
class BlindCollective : public runtime::Collective {
 public:
  using Collective::Collective;
  absl::Status AllReduceSum(float*, absl::Span<const runtime::ArenaSlot>) override { return absl::OkStatus(); }
  absl::Status Finish() override { return absl::OkStatus(); }
  bool Done() override { return true; }
};

TEST(GradientReducer, ReplicasThatCutTheirGradientsOtherwiseAreNotAddedUp) {
  const ResolvedJobSpec spec = SpecOf(kDeep, 4);
  for (const bool alike : {true, false}) {
    const auto group = std::make_shared<runtime::ReplicaGroup>(2);
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        BlindCollective collective(rank, group);
        Model own(spec, true, &collective, rank == 0 || alike ? 1 : 1 << 20);
        runtime::GradientReducer& reducer = own.reducers[0];
        for (int pass = 0; pass < 2 && statuses[static_cast<size_t>(rank)].ok(); ++pass) {
          reducer.Begin();
          statuses[static_cast<size_t>(rank)] = reducer.After(own.plan->phases[0].plans[0].steps[0]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), alike ? absl::StatusCode::kOk : absl::StatusCode::kInternal) << status;
    }
  }
}

TEST(Replicas, NeedWholeSharesOfABatch) {
  v1::TrainSpec train;
  train.set_batch_size(12);
  train.set_micro_batch_size(3);
  EXPECT_TRUE(CheckShares(train, 1).ok());
  EXPECT_TRUE(CheckShares(train, 2).ok());
  EXPECT_TRUE(CheckShares(train, 4).ok());
  EXPECT_THAT(std::string(CheckShares(train, 5).message()), HasSubstr("train.batch_size: 12 samples"));
  EXPECT_THAT(std::string(CheckShares(train, 3).message()), HasSubstr("train.micro_batch_size"));
  EXPECT_EQ(CheckShares(train, 6).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ampd::train
