#include "server/service/plan_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/spec/resolve.h"
#include "server/service/data_paths.h"
#include "server/service/file_identity.h"

namespace ampd {
namespace {

namespace fs = std::filesystem;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

v1::JobSpec GoodSpec() {
  v1::JobSpec spec;
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
  spec.mutable_model()->mutable_loss()->mutable_softmax_cross_entropy();
  spec.mutable_data()->mutable_train()->mutable_idx()->set_images("images");
  spec.mutable_data()->mutable_train()->mutable_idx()->set_labels("labels");
  return ResolveJobSpec(spec)->proto();
}

// Stands still until told.
class TestClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Duration Monotonic() const override { return now - absl::UnixEpoch(); }
  absl::Duration SinceBoot() const override { return Monotonic(); }
  absl::Time now;
};

class PlanCacheTest : public ::testing::Test {
 protected:
  PlanCacheTest() : root_(absl::StrCat(testing::TempDir(), "/plan_cache_", getpid())), pool_(2, 100) {
    fs::remove_all(root_);
    fs::create_directories(root_ + "/second");
    Write("images", "one");
    Write("labels", "two");
    // What was just written is old by then.
    clock_.now = absl::Now() + absl::Seconds(100);
    Restart({});
  }
  ~PlanCacheTest() override { fs::remove_all(root_); }

  void Restart(PlanCache::Options options) {
    cache_ = std::make_unique<PlanCache>(
        std::move(options), [this](const v1::PlanRequest& request) { return plan_(request); }, &pool_, &clock_);
  }
  void Write(const std::string& name, const std::string& text) { std::ofstream(root_ + "/" + name) << text; }

  v1::PlanRequest Request(v1::JobSpec spec) const {
    v1::PlanRequest request;
    *request.mutable_spec() = std::move(spec);
    request.add_data_roots(root_);
    request.add_data_roots(root_ + "/second");
    return request;
  }
  absl::StatusOr<v1::PlanResponse> Plan(const v1::JobSpec& spec) { return Ask(Request(spec)); }
  absl::StatusOr<v1::PlanResponse> Ask(const v1::PlanRequest& request) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<v1::PlanResponse>>>();
    cache_->Plan(request, [promise](absl::StatusOr<v1::PlanResponse> r) { promise->set_value(std::move(r)); });
    return promise->get_future().get();
  }
  // Whether planning `spec` asks the planner.
  bool Asks(const v1::JobSpec& spec) {
    const int before = asked_;
    EXPECT_TRUE(Plan(spec).ok());
    return asked_ > before;
  }

  const std::string root_;
  TestClock clock_;
  std::atomic<int> asked_ = 0;
  std::function<absl::StatusOr<v1::PlanResponse>(const v1::PlanRequest&)> plan_ = [this](const v1::PlanRequest&) {
    v1::PlanResponse response;
    response.mutable_plan()->set_parameters(++asked_);
    return response;
  };
  std::unique_ptr<PlanCache> cache_;
  WorkPool pool_;
};

TEST_F(PlanCacheTest, WhatNoPlanDependsOnMayDiffer) {
  EXPECT_TRUE(Asks(GoodSpec()));
  v1::JobSpec other = GoodSpec();
  other.set_name("another");
  other.set_seed(7);
  (*other.mutable_labels())["a"] = "b";
  other.mutable_optimizer()->mutable_adamw()->set_learning_rate(0.5);
  other.mutable_optimizer()->mutable_schedule()->mutable_cosine();
  other.mutable_train()->set_epochs(9);
  other.mutable_train()->set_eval_every_steps(7);
  other.mutable_train()->mutable_early_stopping()->set_patience(9);
  other.mutable_checkpoint()->set_keep_last(5);
  other.mutable_retry()->set_max_attempts(1);
  other.mutable_limits()->set_max_run_seconds(10);
  EXPECT_FALSE(Asks(other));
  EXPECT_EQ(Plan(other)->plan().parameters(), 1);
}

TEST_F(PlanCacheTest, EverythingElseIsAnotherPlan) {
  EXPECT_TRUE(Asks(GoodSpec()));
  const std::vector<std::function<void(v1::JobSpec*)>> changes = {
      [](v1::JobSpec* s) { s->mutable_train()->set_batch_size(64); },
      [](v1::JobSpec* s) { s->mutable_train()->set_micro_batch_size(16); },
      [](v1::JobSpec* s) { s->mutable_checkpoint()->set_keep_best("top5"); },
      [](v1::JobSpec* s) { s->mutable_train()->mutable_early_stopping()->set_metric("top5"); },
      [](v1::JobSpec* s) { s->mutable_precision()->set_mode(v1::PrecisionSpec::BF16); },
      [](v1::JobSpec* s) { s->mutable_model()->mutable_layers(0)->mutable_dense()->set_units(11); },
      [](v1::JobSpec* s) { s->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1); },
      [](v1::JobSpec* s) { s->mutable_optimizer()->mutable_adamw()->set_weight_decay(0.5); },
      [](v1::JobSpec* s) { s->mutable_optimizer()->mutable_ema(); },
      [](v1::JobSpec* s) { s->mutable_data()->mutable_train()->mutable_idx()->set_labels("images"); },
      [](v1::JobSpec* s) { s->mutable_report()->set_diagnostics_every_steps(10); },
      [](v1::JobSpec* s) { s->mutable_resources()->set_gpus(2); },
      [](v1::JobSpec* s) { s->mutable_resources()->set_share(true); },
      [](v1::JobSpec* s) { s->mutable_phases(0)->mutable_optimizer()->mutable_sgd()->set_momentum(0.9); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    v1::JobSpec spec = GoodSpec();
    changes[i](&spec);
    EXPECT_TRUE(Asks(spec)) << i;
    EXPECT_FALSE(Asks(spec)) << i;
  }
  v1::PlanRequest other_roots = Request(GoodSpec());
  other_roots.mutable_data_roots()->RemoveLast();
  const int before = asked_;
  EXPECT_TRUE(Ask(other_roots).ok());
  EXPECT_EQ(asked_, before + 1);
}

// They are compared with those of the training that is continued.
TEST_F(PlanCacheTest, SeedAndLengthOfAContinuedTrainingCount) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_start_from()->set_continue_training(true);
  EXPECT_TRUE(Asks(spec));
  EXPECT_FALSE(Asks(spec));
  spec.set_seed(7);
  EXPECT_TRUE(Asks(spec));
  spec.mutable_train()->set_epochs(90);
  EXPECT_TRUE(Asks(spec));
  spec.mutable_train()->clear_epochs();
  spec.mutable_train()->set_steps(90);
  EXPECT_TRUE(Asks(spec));
  spec.mutable_train()->set_steps(91);
  EXPECT_TRUE(Asks(spec));
  spec.mutable_optimizer()->mutable_adamw()->set_learning_rate(0.5);
  EXPECT_FALSE(Asks(spec));
}

TEST_F(PlanCacheTest, AChangedFileIsPlannedAnew) {
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_FALSE(Asks(GoodSpec()));
  // As long and as old as before: only the time of change tells.
  struct stat before {};
  ASSERT_EQ(stat((root_ + "/images").c_str(), &before), 0);
  Write("images", "eno");
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, (root_ + "/images").c_str(), times, 0), 0);
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_FALSE(Asks(GoodSpec()));
  fs::rename(root_ + "/images", root_ + "/second/images");
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_FALSE(Asks(GoodSpec()));
  // Now the first root has it.
  Write("images", "two");
  EXPECT_TRUE(Asks(GoodSpec()));
}

TEST_F(PlanCacheTest, AFileInAFolderCounts) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_data()->mutable_train()->mutable_image_folder()->set_path("folder");
  fs::create_directories(root_ + "/folder/cats");
  Write("folder/cats/a.png", "a");
  EXPECT_TRUE(Asks(spec));
  EXPECT_FALSE(Asks(spec));
  Write("folder/cats/a.png", "ab");
  EXPECT_TRUE(Asks(spec));
  Write("folder/cats/b.png", "b");
  EXPECT_TRUE(Asks(spec));
  EXPECT_FALSE(Asks(spec));
  // Behind it anything may change unseen.
  fs::create_directory_symlink(root_ + "/second", root_ + "/folder/dogs");
  EXPECT_TRUE(Asks(spec));
  EXPECT_TRUE(Asks(spec));
}

TEST_F(PlanCacheTest, WhatChangedJustNowIsNotReliedOn) {
  clock_.now = absl::Now();
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_TRUE(Asks(GoodSpec()));
}

TEST_F(PlanCacheTest, WhatChangesMeanwhileIsNotKept) {
  plan_ = [this](const v1::PlanRequest&) {
    Write("images", absl::StrCat("change ", ++asked_));
    return v1::PlanResponse();
  };
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_TRUE(Asks(GoodSpec()));
}

TEST_F(PlanCacheTest, TheProgramThatPlansCounts) {
  Write("worker", "1");
  Restart({.files = {root_ + "/worker"}});
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_FALSE(Asks(GoodSpec()));
  Write("worker", "2");
  EXPECT_TRUE(Asks(GoodSpec()));
}

TEST_F(PlanCacheTest, ErrorsAreNotKept) {
  plan_ = [this](const v1::PlanRequest&) -> absl::StatusOr<v1::PlanResponse> {
    v1::PlanResponse response;
    switch (++asked_) {
      case 1:
        return absl::UnavailableError("no planner");
      case 2:
        response.add_errors()->set_field("model");
        return response;
      case 3:
        response.set_data_error("no such file");
        return response;
      default:
        return response;
    }
  };
  EXPECT_FALSE(Plan(GoodSpec()).ok());
  EXPECT_EQ(Plan(GoodSpec())->errors_size(), 1);
  EXPECT_EQ(Plan(GoodSpec())->data_error(), "no such file");
  EXPECT_TRUE(Asks(GoodSpec()));
  EXPECT_FALSE(Asks(GoodSpec()));
}

TEST_F(PlanCacheTest, EqualQuestionsAtTheSameTimeAreAskedOnce) {
  std::promise<void> go;
  plan_ = [this, gone = go.get_future().share()](const v1::PlanRequest&) {
    gone.wait();
    v1::PlanResponse response;
    response.mutable_plan()->set_parameters(++asked_);
    return response;
  };
  std::vector<std::future<int64_t>> answers;
  for (int i = 0; i < 50; ++i) {
    auto promise = std::make_shared<std::promise<int64_t>>();
    answers.push_back(promise->get_future());
    v1::JobSpec spec = GoodSpec();
    spec.set_seed(static_cast<uint64_t>(i));
    cache_->Plan(Request(spec), [promise](absl::StatusOr<v1::PlanResponse> r) {
      promise->set_value(r.ok() ? r->plan().parameters() : -1);
    });
  }
  go.set_value();
  for (auto& answer : answers) EXPECT_EQ(answer.get(), 1);
  EXPECT_EQ(asked_, 1);
}

TEST_F(PlanCacheTest, TheLeastRecentlyUsedGoesFirst) {
  plan_ = [this](const v1::PlanRequest&) {
    ++asked_;
    v1::PlanResponse response;
    response.mutable_plan()->add_layers()->set_name(std::string(1000, 'x'));
    return response;
  };
  Restart({.max_bytes = 2500});
  const auto spec = [](int64_t batch) {
    v1::JobSpec s = GoodSpec();
    s.mutable_train()->set_batch_size(batch);
    return s;
  };
  EXPECT_TRUE(Asks(spec(1)));
  EXPECT_TRUE(Asks(spec(2)));
  EXPECT_FALSE(Asks(spec(1)));
  EXPECT_TRUE(Asks(spec(3)));
  EXPECT_FALSE(Asks(spec(1)));
  EXPECT_TRUE(Asks(spec(2)));
}

// Strings in the messages that name data that are no paths. A field that is neither here nor among PathsOf() must be
// put into one of the two lists: plans would not see its file change.
const std::set<std::string>& NoPaths() {
  static const auto* const fields = new std::set<std::string>{"NpyDataset.inputs_key",
                                                              "NpyDataset.targets_key",
                                                              "NpyDataset.lengths_key",
                                                              "NpyDataset.target_lengths_key",
                                                              "ImageFolderDataset.classes",
                                                              "QuickDrawDataset.classes",
                                                              "CsvDataset.inputs",
                                                              "CsvDataset.label",
                                                              "CsvDataset.targets",
                                                              "CsvDataset.delimiter",
                                                              "WavFolderDataset.include",
                                                              "WavFolderDataset.exclude",
                                                              "WavFolderDataset.alphabet",
                                                              "SafetensorsDataset.inputs_key",
                                                              "SafetensorsDataset.targets_key",
                                                              "OnnxModel.outputs",
                                                              "OnnxModel.input",
                                                              "OnnxModel.freeze",
                                                              "WeightSource.job_id",
                                                              "WeightSource.checkpoint"};
  return *fields;
}

// Sets every string of `message`'s own fields and of the messages below to its name, one member of a oneof at a time.
void CollectStrings(const Descriptor* type, std::set<const Descriptor*>* seen, std::set<std::string>* names) {
  if (!seen->insert(type).second) return;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_map()) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) CollectStrings(field->message_type(), seen, names);
    if (field->type() == FieldDescriptor::TYPE_STRING) names->insert(type->name() + "." + field->name());
  }
}

TEST_F(PlanCacheTest, EveryPathOfASpecIsKnown) {
  std::set<const Descriptor*> seen;
  std::set<std::string> names;
  CollectStrings(v1::DatasetSpec::descriptor(), &seen, &names);
  CollectStrings(v1::OnnxModel::descriptor(), &seen, &names);
  CollectStrings(v1::WeightSource::descriptor(), &seen, &names);
  v1::JobSpec spec;
  spec.mutable_model()->mutable_onnx()->set_path("p");
  spec.mutable_start_from()->set_path("p");
  size_t paths = PathsOf(spec).size();
  // One of each kind: PathsOf() tells as many paths as the kind has strings that name files.
  for (int i = 0; i < v1::DatasetSpec::descriptor()->field_count(); ++i) {
    const FieldDescriptor* field = v1::DatasetSpec::descriptor()->field(i);
    if (field->real_containing_oneof() == nullptr) continue;
    v1::DatasetSpec dataset;
    google::protobuf::Message* kind = dataset.GetReflection()->MutableMessage(&dataset, field);
    const Descriptor* type = kind->GetDescriptor();
    for (int j = 0; j < type->field_count(); ++j) {
      const FieldDescriptor* string = type->field(j);
      if (string->type() != FieldDescriptor::TYPE_STRING) continue;
      if (string->is_repeated()) {
        kind->GetReflection()->AddString(kind, string, "p");
      } else {
        kind->GetReflection()->SetString(kind, string, "p");
      }
    }
    v1::JobSpec of_kind;
    *of_kind.mutable_data()->mutable_train() = dataset;
    paths += PathsOf(of_kind).size();
  }
  for (const std::string& known : NoPaths()) EXPECT_EQ(names.erase(known), 1u) << known;
  EXPECT_EQ(names.size(), paths) << "a string field is neither a path nor known not to be one";
}

}  // namespace
}  // namespace ampd
