// Whatever a spec says, planning it ends in a plan or in an error that tells the user what is wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/train/spec_configs.h"
#include "engine/train/trainer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/spec/yaml.h"
#include "tests/support/spec_mutator.h"

namespace ampd::train {
namespace {

using testing::Random;
using testing::SpecMutator;

// AMPD_HOSTILE_SPECS in the environment: another number of cases; AMPD_HOSTILE_SEED: where they start.
uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}
uint64_t Cases(uint64_t otherwise) { return FromEnvironment("AMPD_HOSTILE_SPECS", otherwise); }
uint64_t FirstSeed() { return FromEnvironment("AMPD_HOSTILE_SEED", 1); }

volatile uint64_t current_seed = 0;

// A crash names its case.
void TellSeed(int signal) {
  char line[64];
  const int n = std::snprintf(line, sizeof line, "seed %llu\n", static_cast<unsigned long long>(current_seed));
  (void)!write(2, line, static_cast<size_t>(n));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class HostileSpec : public ::testing::Test {
 protected:
  HostileSpec() {
    for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL, SIGTERM}) std::signal(signal, TellSeed);
  }
};

models::SampleInfo RandomSample(Random* random) {
  static constexpr int64_t kExtents[] = {
      1, 2, 3, 5, 8, 28, 28, 12, 1000, int64_t{1} << 20, int64_t{1} << 31, int64_t{1} << 40};
  const auto extent = [&] { return kExtents[random->Below(random->Below(6) == 0 ? std::size(kExtents) : 8)]; };
  models::SampleInfo sample;
  if (random->Below(2) == 0) {
    sample.input_shape = {28, 28, 1};
    sample.classes = 10;
    return sample;
  }
  for (int64_t rank = 1 + random->Below(3); rank > 0; --rank) sample.input_shape.push_back(extent());
  if (random->Below(2) == 0) {
    sample.classes = extent();
    if (random->Below(3) == 0) sample.label_shape.push_back(extent());
    sample.label_lengths = !sample.label_shape.empty() && random->Below(2) == 0;
  } else {
    sample.target_features = extent();
  }
  sample.lengths = random->Below(4) == 0;
  return sample;
}

struct Tally {
  uint64_t resolved = 0, built = 0, planned = 0;
};

// The way of a spec through validation, and of a valid one through the building of its graphs and its plan.
void Plan(const v1::JobSpec& spec, Random* random, Tally* tally) {
  const auto resolved = ResolveJobSpec(spec);
  if (!resolved.ok()) {
    ASSERT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument) << resolved.status();
    ASSERT_FALSE(FieldViolationsOf(resolved.status()).empty()) << resolved.status();
    return;
  }
  ++tally->resolved;
  const auto again = ResolveJobSpec(resolved->proto());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(again->proto(), resolved->proto()));
  // Single operations are no model.
  if (resolved->proto().bench().has_sweep()) return;
  // A checkpoint of it fits it; one that measures has none. Text that is not UTF-8 gets past no parser.
  if (!resolved->proto().has_bench() && v1::JobSpec().ParseFromString(resolved->proto().SerializeAsString())) {
    const auto hash = HashOfHashedSpec(HashedSpec(*resolved));
    ASSERT_TRUE(hash.ok()) << hash.status();
    ASSERT_EQ(*hash, SpecHash(*resolved)) << HashedSpec(*resolved);
  }
  const v1::TrainSpec& train = resolved->proto().train();
  const auto model =
      models::BuildModel(*resolved, RandomSample(random), train.micro_batch_size(), train.micro_batch_size());
  if (!model.ok()) {
    ASSERT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << model.status();
    ASSERT_FALSE(FieldViolationsOf(model.status()).empty()) << model.status();
  }
  tally->built += model.ok();
  if (random->Below(8) != 0) return;
  const v1::PlanResponse response = PlanJob(*resolved, {});
  tally->planned += response.has_plan();
  const bool told = response.has_plan() || response.errors_size() > 0 || !response.data_error().empty();
  ASSERT_TRUE(told) << response.DebugString();
  for (const v1::FieldError& error : response.errors()) {
    ASSERT_NE(error.field(), "") << response.DebugString();
    ASSERT_EQ(error.description().find("[precision]"), std::string::npos) << response.DebugString();
  }
}

TEST_F(HostileSpec, TheOriginalsAreValid) {
  for (const std::string& text : testing::SpecTexts()) {
    v1::JobSpec spec;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
    const auto resolved = ResolveJobSpec(spec);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const v1::PlanResponse response = PlanJob(*resolved, {});
    EXPECT_TRUE(response.has_plan()) << response.DebugString();
  }
}

TEST_F(HostileSpec, MutatedFieldsEndInAPlanOrAnError) {
  Tally tally;
  const uint64_t cases = Cases(3000);
  for (uint64_t i = 0; i < cases; ++i) {
    current_seed = FirstSeed() + i;
    SpecMutator mutator(current_seed);
    const v1::JobSpec spec = mutator.Spec();
    Plan(spec, &mutator.random(), &tally);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << current_seed << "\n" << spec.ShortDebugString().substr(0, 5000);
  }
  // Else the mutations are too wild to get anywhere.
  EXPECT_GT(tally.resolved, cases / 8);
  EXPECT_GT(tally.built, cases / 20);
  EXPECT_GT(tally.planned, cases / 200);
  RecordProperty("resolved", static_cast<int>(tally.resolved));
  RecordProperty("built", static_cast<int>(tally.built));
  RecordProperty("planned", static_cast<int>(tally.planned));
}

std::vector<std::string> ExampleTexts() {
  std::vector<std::string> texts;
  for (const char* name : {"cifar10-convnet", "fashion-mnist-convnet", "glyphs-convnet", "mlp"}) {
    std::ifstream in(std::string("client/examples/") + name + ".yaml");
    texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    EXPECT_FALSE(texts.back().empty()) << name;
  }
  return texts;
}

TEST_F(HostileSpec, MutatedTextEndsInAPlanOrAnError) {
  const std::vector<std::string> texts = ExampleTexts();
  Tally tally;
  uint64_t parsed = 0;
  const uint64_t cases = Cases(2000);
  for (uint64_t i = 0; i < cases; ++i) {
    current_seed = FirstSeed() + i;
    SpecMutator mutator(current_seed);
    const std::string text = mutator.Text(texts[i % texts.size()]);
    v1::JobSpec spec;
    const absl::Status status = ParseYaml(text, "job.yaml", &spec);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      continue;
    }
    ++parsed;
    Plan(spec, &mutator.random(), &tally);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << current_seed << "\n" << text;
  }
  EXPECT_GT(parsed, cases / 20);
  EXPECT_GT(tally.resolved, cases / 50);
}

}  // namespace
}  // namespace ampd::train
