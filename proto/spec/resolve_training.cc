#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/spec/limits.h"
#include "proto/spec/resolve_internal.h"

namespace ampd {
namespace {

constexpr int64_t kMaxEpochs = 1 << 20;
constexpr int64_t kMaxBatch = 1 << 20;

void ResolveLength(v1::TrainSpec* train, Violations* violations) {
  if (train->has_epochs() && train->has_steps()) {
    violations->Add("train", "exactly one of epochs and steps may be set; both are");
  }
  if (!train->has_epochs() && !train->has_steps()) train->set_epochs(1);
  if (train->has_epochs()) violations->CheckInteger("train.epochs", train->epochs(), 1, kMaxEpochs);
  if (train->has_steps()) violations->CheckInteger("train.steps", train->steps(), 1, kMaxSteps);
}

void ResolveBatch(v1::TrainSpec* train, Violations* violations) {
  if (!train->has_batch_size()) train->set_batch_size(32);
  if (!train->has_micro_batch_size()) train->set_micro_batch_size(train->batch_size());
  const int64_t batch = train->batch_size(), micro = train->micro_batch_size();
  violations->CheckInteger("train.batch_size", batch, 1, kMaxBatch);
  if (micro == batch) return;  // One error is enough.
  violations->CheckInteger("train.micro_batch_size", micro, 1, kMaxBatch);
  if (micro >= 1 && batch >= 1 && batch % micro != 0) {
    violations->Add("train.micro_batch_size", absl::StrCat("must divide batch_size, ", batch, ", is ", micro));
  }
}

}  // namespace

void ResolveTrain(bool has_eval, v1::TrainSpec* train, Violations* violations) {
  ResolveLength(train, violations);
  ResolveBatch(train, violations);
  if (train->has_eval_every_steps()) {
    violations->CheckInteger("train.eval_every_steps", train->eval_every_steps(), 1, kMaxSteps);
    if (!has_eval) violations->Add("train.eval_every_steps", "needs data.eval");
    if (train->has_eval_every_epochs()) {
      violations->Add("train.eval_every_steps", "goes instead of train.eval_every_epochs: remove that one");
    }
  }
  if (train->has_eval_every_epochs()) {
    violations->CheckInteger("train.eval_every_epochs", train->eval_every_epochs(), 1, kMaxEpochs);
    if (!has_eval) violations->Add("train.eval_every_epochs", "needs data.eval");
  } else if (has_eval && !train->has_eval_every_steps()) {
    train->set_eval_every_epochs(1);
  }
}

}  // namespace ampd
