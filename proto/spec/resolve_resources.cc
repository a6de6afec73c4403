// Where and when a job runs: devices, priority, its place in time and behind other jobs.
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/names.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int kMaxGpus = 64;
constexpr int kMaxPriority = 1000;
constexpr int kMaxDependencies = 64;
constexpr int kMaxSelectorWords = 16;
constexpr size_t kMinIdCharacters = 4;
constexpr size_t kIdCharacters = 26;
// The range of a timestamp: years 1 to 9999.
constexpr int64_t kFirstSecond = -62135596800;
constexpr int64_t kLastSecond = 253402300799;

void CheckSelector(const v1::DeviceSelector& selector, Violations* violations) {
  const std::string path = "resources.selector";
  if (selector.words_size() > kMaxSelectorWords) {
    violations->Add(absl::StrCat(path, ".words"),
                    absl::StrCat("must be at most ", kMaxSelectorWords, ", are ", selector.words_size()));
    return;
  }
  for (int i = 0; i < selector.words_size(); ++i) {
    violations->CheckText(Indexed(absl::StrCat(path, ".words"), i), selector.words(i), 200);
  }
  violations->CheckInteger(absl::StrCat(path, ".min_memory_bytes"), selector.min_memory_bytes(), 0, int64_t{1} << 50);
  violations->CheckReal(absl::StrCat(path, ".min_compute_capability"), selector.min_compute_capability(),
                        {.low = 0, .high = 1000});
}

// Each device takes an equal part of every batch, in whole micro-batches.
void CheckGang(const v1::JobSpec& spec, Violations* violations) {
  const int gpus = spec.resources().gpus();
  const v1::TrainSpec& train = spec.train();
  if (gpus <= 1 || gpus > kMaxGpus) return;
  if (spec.has_bench()) {
    return violations->Add("resources.gpus", absl::StrCat("a job with `bench` measures one device, is ", gpus));
  }
  if (spec.resources().share()) {
    violations->Add("resources.share", absl::StrCat("goes with one device; resources.gpus is ", gpus));
  }
  if (!spec.resources().device().empty()) {
    violations->Add("resources.device", absl::StrCat("names one device; resources.gpus is ", gpus));
  }
  if (train.batch_size() < 1 || train.micro_batch_size() < 1) return;
  if (train.batch_size() % gpus != 0) {
    violations->Add("train.batch_size",
                    absl::StrCat(train.batch_size(), " samples cannot be shared evenly by ", gpus, " devices"));
  } else if (train.batch_size() / gpus % train.micro_batch_size() != 0) {
    violations->Add("train.micro_batch_size",
                    absl::StrCat("each of ", gpus, " devices takes ", train.batch_size() / gpus,
                                 " samples of a batch, which is no multiple of ", train.micro_batch_size()));
  }
}

// Whether there is such a job is not known here.
void CheckDependency(const std::string& field, const std::string& id, std::set<std::string>* seen,
                     Violations* violations) {
  bool well_formed = id.size() >= kMinIdCharacters && id.size() <= kIdCharacters;
  for (const char c : id) well_formed = well_formed && (absl::ascii_isdigit(c) || absl::ascii_islower(c));
  if (!well_formed) {
    violations->Add(
        field, absl::StrCat("must be a job's id or its first characters, ", kMinIdCharacters, " to ", kIdCharacters,
                            " lower-case letters and digits, is ", Quoted(id.substr(0, 64))));
  } else if (!seen->insert(id).second) {
    violations->Add(field, absl::StrCat(id, " is named twice in `after` and `after_ok`"));
  }
}

}  // namespace

void ShareMicroBatches(v1::JobSpec* spec) {
  const int gpus = spec->resources().gpus();
  if (gpus <= 1 || gpus > kMaxGpus || spec->train().has_micro_batch_size()) return;
  v1::TrainSpec* train = spec->mutable_train();
  if (!train->has_batch_size()) train->set_batch_size(32);
  if (train->batch_size() > 0 && train->batch_size() % gpus == 0) {
    train->set_micro_batch_size(train->batch_size() / gpus);
  }
}

void ResolveResources(v1::JobSpec* spec, Violations* violations) {
  v1::ResourceSpec* resources = spec->mutable_resources();
  if (!resources->has_gpus()) resources->set_gpus(1);
  if (!resources->has_priority()) resources->set_priority(0);
  if (!resources->has_preemptible()) resources->set_preemptible(false);
  if (!resources->has_share()) resources->set_share(false);
  violations->CheckInteger("resources.gpus", resources->gpus(), 1, kMaxGpus);
  violations->CheckInteger("resources.priority", resources->priority(), -kMaxPriority, kMaxPriority);
  if (!resources->device().empty()) violations->CheckText("resources.device", resources->device(), 200);
  if (resources->has_cpu_threads()) {
    violations->CheckInteger("resources.cpu_threads", resources->cpu_threads(), 1, 4096);
  }
  if (resources->has_selector()) CheckSelector(resources->selector(), violations);
  CheckGang(*spec, violations);
}

void CheckTurn(const v1::JobSpec& spec, Violations* violations) {
  if (spec.has_not_before()) {
    violations->CheckInteger("not_before", spec.not_before().seconds(), kFirstSecond, kLastSecond);
    violations->CheckInteger("not_before", spec.not_before().nanos(), 0, 999'999'999);
  }
  const int dependencies = spec.after_size() + spec.after_ok_size();
  if (dependencies > kMaxDependencies) {
    return violations->Add(spec.after_size() > 0 ? "after" : "after_ok",
                           absl::StrCat("must be at most ", kMaxDependencies,
                                        " jobs together with the other of `after` and `after_ok`, are ", dependencies));
  }
  std::set<std::string> seen;
  for (int i = 0; i < spec.after_size(); ++i) CheckDependency(Indexed("after", i), spec.after(i), &seen, violations);
  for (int i = 0; i < spec.after_ok_size(); ++i) {
    CheckDependency(Indexed("after_ok", i), spec.after_ok(i), &seen, violations);
  }
}

}  // namespace ampd
