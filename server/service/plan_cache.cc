#include "server/service/plan_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/dataset_path.h"
#include "proto/spec/upload_path.h"
#include "server/jobs/credentials.h"
#include "server/service/data_paths.h"
#include "server/service/deterministic_bytes.h"
#include "server/service/file_identity.h"
#include "server/service/try_again.h"

namespace ampd {
namespace {

// For who finds too many of them.
constexpr absl::Duration kPlanDelay = absl::Seconds(1);

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Above the coarsest time stamps of local file systems.
constexpr absl::Duration kTooFresh = absl::Seconds(2);

const absl::flat_hash_set<std::string>& FieldsOfNoPlan() {
  // clang-format off
  static const auto* const fields = new absl::flat_hash_set<std::string>{
      "ampd.v1.JobSpec.name",
      "ampd.v1.JobSpec.seed",
      "ampd.v1.JobSpec.labels",
      "ampd.v1.JobSpec.checkpoint",
      "ampd.v1.JobSpec.retry",
      "ampd.v1.JobSpec.limits",
      "ampd.v1.JobSpec.not_before",
      "ampd.v1.JobSpec.after",
      "ampd.v1.JobSpec.after_ok",
      "ampd.v1.TrainSpec.epochs",
      "ampd.v1.TrainSpec.steps",
      "ampd.v1.TrainSpec.eval_every_epochs",
      "ampd.v1.TrainSpec.eval_every_steps",
      "ampd.v1.TrainSpec.early_stopping",
      "ampd.v1.ResourceSpec.priority",
      "ampd.v1.ResourceSpec.preemptible",
      "ampd.v1.ResourceSpec.device",
      "ampd.v1.ResourceSpec.selector",
      "ampd.v1.OptimizerSpec.schedule",
      "ampd.v1.SgdOptimizer.learning_rate",
      "ampd.v1.AdamOptimizer.learning_rate",
      "ampd.v1.AdamWOptimizer.learning_rate",
      "ampd.v1.RmsPropOptimizer.learning_rate",
      "ampd.v1.AdagradOptimizer.learning_rate",
      "ampd.v1.LambOptimizer.learning_rate",
  };
  // clang-format on
  return *fields;
}

void ClearFieldsOfNoPlan(Message* message) {
  const auto* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (FieldsOfNoPlan().contains(field->full_name())) {
      reflection->ClearField(message, field);
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) {
      continue;
    } else if (!field->is_repeated()) {
      ClearFieldsOfNoPlan(reflection->MutableMessage(message, field));
    } else {
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        ClearFieldsOfNoPlan(reflection->MutableRepeatedMessage(message, field, i));
      }
    }
  }
}

// A dataset's files never change: what stands for them all is the manifest, of another dataset of the name another
// file.
void AddDataset(const std::string& path, const v1::PlanRequest& request, std::vector<std::string>* files) {
  const absl::StatusOr<DatasetPath> parsed = ParseDatasetPath(path);
  for (const std::string& root : request.data_roots()) {
    const std::optional<std::string> folder = FolderOfDatasetRoot(root);
    if (folder && parsed.ok()) files->push_back(absl::StrCat(*folder, "/", parsed->name, "/MANIFEST"));
  }
}

// Every place where a file that the request names may lie.
std::vector<std::string> FilesOf(const v1::PlanRequest& request) {
  std::vector<std::string> files;
  for (const NamedPath& named : PathsOf(request.spec())) {
    // An upload's bytes are what its name says.
    if (NamesUpload(named.path)) continue;
    if (NamesDataset(named.path)) {
      AddDataset(named.path, request, &files);
    } else if (named.path[0] == '/') {
      files.push_back(named.path);
    } else {
      for (const std::string& root : request.data_roots()) files.push_back(absl::StrCat(root, "/", named.path));
    }
  }
  return files;
}

// Of all that an answer to `request` depends on outside of it.
std::optional<FileIdentity> SurroundingsOf(const v1::PlanRequest& request, std::vector<std::string> files) {
  for (std::string& file : FilesOf(request)) files.push_back(std::move(file));
  std::optional<FileIdentity> identity = IdentityOf(files);
  if (!identity || request.start_checkpoint_dir().empty()) return identity;
  // Each job that starts from it has a link of its own.
  const std::optional<FileIdentity> start =
      IdentityOf({absl::StrCat(request.start_checkpoint_dir(), "/model.safetensors")}, false);
  if (!start) return std::nullopt;
  absl::StrAppend(&identity->text, "start ", start->text);
  identity->newest = std::max(identity->newest, start->newest);
  return identity;
}

std::string KeyOf(const v1::PlanRequest& request, const FileIdentity& surroundings) {
  v1::PlanRequest part = request;
  *part.mutable_spec() = PlannedPart(request.spec());
  // The folder is the submission's own; what is in it is told by the surroundings.
  part.clear_start_checkpoint_dir();
  return Sha256(absl::StrCat(DeterministicBytes(part), surroundings.text));
}

}  // namespace

v1::JobSpec PlannedPart(const v1::JobSpec& spec) {
  v1::JobSpec part = spec;
  ClearFieldsOfNoPlan(&part);
  // They must be metrics of the model.
  const std::string& best = spec.checkpoint().keep_best();
  if (!best.empty()) part.mutable_checkpoint()->set_keep_best(best);
  const std::string& stopping = spec.train().early_stopping().metric();
  if (!stopping.empty()) part.mutable_train()->mutable_early_stopping()->set_metric(stopping);
  if (spec.start_from().continue_training()) {
    // They must be that training's, and go beyond it.
    part.set_seed(spec.seed());
    if (spec.train().has_epochs()) part.mutable_train()->set_epochs(spec.train().epochs());
    if (spec.train().has_steps()) part.mutable_train()->set_steps(spec.train().steps());
  }
  return part;
}

struct PlanCache::Question {
  std::string key;
  v1::PlanRequest request;
  FileIdentity surroundings;
  // Files that changed after it are not relied on.
  absl::Time settled;
  Done first;
};

PlanCache::PlanCache(Options options, Planner planner, WorkPool* pool, const Clock* clock)
    : options_(std::move(options)), planner_(std::move(planner)), pool_(pool), clock_(clock) {}

std::shared_ptr<const v1::PlanResponse> PlanCache::Find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->response;
}

void PlanCache::Plan(const v1::PlanRequest& request, Done done) {
  auto question = std::make_shared<Question>();
  question->settled = clock_->Now() - kTooFresh;
  std::optional<FileIdentity> surroundings;
  if (options_.max_bytes > 0) surroundings = SurroundingsOf(request, options_.files);
  if (!surroundings) return AskAlone(request, std::move(done));
  question->key = KeyOf(request, *surroundings);
  question->surroundings = *std::move(surroundings);
  std::shared_ptr<const v1::PlanResponse> known;
  {
    const MutexLock lock(&mutex_);
    known = Find(question->key);
    const auto asked = asked_.find(question->key);
    if (known == nullptr && asked != asked_.end()) {
      asked->second.push_back({request, std::move(done)});
      return;
    }
    if (known == nullptr) asked_.try_emplace(question->key);
  }
  if (known != nullptr) return done(*known);
  question->request = request;
  question->first = std::move(done);
  Ask(std::move(question));
}

void PlanCache::Ask(std::shared_ptr<Question> question) {
  if (pool_->Post([this, question] { Answer(question); })) return;
  std::vector<std::pair<v1::PlanRequest, Done>> others;
  {
    const MutexLock lock(&mutex_);
    others = TakeOthers(question->key);
  }
  const absl::Status full = TryAgain("too many plans are being made; try again", kPlanDelay);
  question->first(full);
  for (auto& [request, done] : others) done(full);
}

void PlanCache::Answer(const std::shared_ptr<Question>& question) {
  const absl::StatusOr<v1::PlanResponse> response = planner_(question->request);
  // Unless nothing was changed while it was made, an answer is only that of who asked first.
  const std::optional<FileIdentity> now = SurroundingsOf(question->request, options_.files);
  const bool same = now && now->text == question->surroundings.text;
  const bool whole = response.ok() && response->errors().empty() && response->data_error().empty();
  std::vector<std::pair<v1::PlanRequest, Done>> others;
  {
    const MutexLock lock(&mutex_);
    others = TakeOthers(question->key);
    if (same && whole && question->surroundings.newest < question->settled) Keep(question->key, *response);
  }
  question->first(response);
  for (auto& [request, done] : others) {
    if (same) {
      done(response);
    } else {
      AskAlone(std::move(request), std::move(done));
    }
  }
}

std::vector<std::pair<v1::PlanRequest, PlanCache::Done>> PlanCache::TakeOthers(const std::string& key) {
  auto asked = asked_.extract(key);
  return std::move(asked.mapped());
}

void PlanCache::AskAlone(v1::PlanRequest request, Done done) {
  auto shared = std::make_shared<std::pair<v1::PlanRequest, Done>>(std::move(request), std::move(done));
  if (pool_->Post([this, shared] { shared->second(planner_(shared->first)); })) return;
  shared->second(TryAgain("too many plans are being made; try again", kPlanDelay));
}

void PlanCache::Keep(const std::string& key, const v1::PlanResponse& response) {
  const size_t bytes = response.ByteSizeLong() + key.size();
  if (bytes > options_.max_bytes || by_key_.count(key) > 0) return;
  kept_.push_front({key, std::make_shared<const v1::PlanResponse>(response), bytes});
  by_key_[key] = kept_.begin();
  bytes_ += bytes;
  while (bytes_ > options_.max_bytes) {
    bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace ampd
