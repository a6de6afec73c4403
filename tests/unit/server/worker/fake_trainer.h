// A trainer whose training is a function.
#ifndef AMPD_TESTS_UNIT_SERVER_WORKER_FAKE_TRAINER_H_
#define AMPD_TESTS_UNIT_SERVER_WORKER_FAKE_TRAINER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/trainer.h"

namespace ampd {

class FakeTrainer final : public train::Trainer {
 public:
  using Body = std::function<absl::StatusOr<train::Outcome>(FakeTrainer&)>;
  FakeTrainer(Body body, train::TrainerObserver* observer) : body_(std::move(body)), observer_(observer) {}

  absl::StatusOr<train::Outcome> Run() override { return body_(*this); }
  void Request(train::Command command) override {
    const std::lock_guard lock(mutex_);
    commands_.push_back(command);
    changed_.notify_all();
  }
  void Profile(train::ProfileRequest request) override {
    const std::lock_guard lock(mutex_);
    profiles_.push_back(request);
    changed_.notify_all();
  }
  int64_t step() const override { return 5; }
  int64_t evaluated_samples() const override { return 640; }
  std::string end_reason() const override { return reason; }
  absl::Status DropHeldCheckpoint() override {
    if (on_drop) on_drop();
    return absl::OkStatus();
  }
  absl::Status LeaveCheckpoint() override {
    if (on_leave) on_leave();
    return absl::OkStatus();
  }
  // May be set by the body.
  std::function<void()> on_drop, on_leave;
  std::string reason;

  absl::Status Emit(const std::string& text) {
    v1::JobEvent event;
    event.mutable_log()->set_text(text);
    return Emit(event);
  }
  absl::Status Emit(const v1::JobEvent& event) { return observer_->OnEvent(event); }
  // Waits for `count` commands in all.
  std::vector<train::Command> AwaitCommands(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return commands_.size() >= count; });
    return commands_;
  }
  // Waits for `count` profiles that were asked for.
  std::vector<train::ProfileRequest> AwaitProfiles(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return profiles_.size() >= count; });
    return profiles_;
  }

 private:
  const Body body_;
  train::TrainerObserver* const observer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<train::Command> commands_;
  std::vector<train::ProfileRequest> profiles_;
};

}  // namespace ampd

#endif  // AMPD_TESTS_UNIT_SERVER_WORKER_FAKE_TRAINER_H_
