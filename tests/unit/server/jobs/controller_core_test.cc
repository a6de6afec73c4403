// The controller's logic without its thread: what it does by itself, with nobody to wake it.
#include <deque>

#include "server/jobs/core.h"
#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

class ControllerCoreTest : public ControllerTest {
 protected:
  ControllerCoreTest() {
    controller_.reset();
    v1::Device cpu;
    cpu.set_id("cpu-0");
    cpu.set_kind(v1::Device::CPU);
    ControllerOptions options;
    options.devices = {cpu};
    options.start_root = dir_.path() + "/starts";
    core_ = std::make_unique<ControllerCore>(
        std::move(options), store_.get(), log_.get(), &launcher_, metrics_.get(), &clock_,
        [this](std::function<void()> task) { Post(std::move(task)); },
        [this](std::function<void()> task) { Post(std::move(task)); }, &draining_);
    EXPECT_TRUE(core_->Recover().ok());
    core_->Settle();
  }
  ~ControllerCoreTest() override { RunPosted(); }

  void Post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  // Until nothing is posted any more, the store's answers included.
  void RunPosted() {
    while (true) {
      store_->Flush();
      std::deque<std::function<void()>> tasks;
      {
        const std::lock_guard lock(mutex_);
        tasks.swap(posted_);
      }
      if (tasks.empty()) return;
      for (const auto& task : tasks) task();
      core_->Settle();
    }
  }
  template <typename T>
  ReplyPtr<T> Into(absl::StatusOr<T>* answer) {
    return std::make_shared<Reply<T>>([answer](absl::StatusOr<T> result) { *answer = std::move(result); });
  }
  std::string SubmitHere(CreateJobParams params) {
    absl::StatusOr<v1::Job> job;
    Post([&] { core_->CreateJob(std::move(params), Into(&job)); });
    RunPosted();
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->id() : "";
  }

  std::atomic<bool> draining_ = false;
  std::mutex mutex_;
  std::deque<std::function<void()>> posted_;
  std::unique_ptr<ControllerCore> core_;
};

TEST_F(ControllerCoreTest, AJobStartsWhenTheOneItWaitsForIsForgotten) {
  CreateJobParams params = Params();
  params.spec.mutable_not_before()->set_seconds(absl::ToUnixSeconds(clock_.Now()) + 3600);
  const std::string first = SubmitHere(params);
  params.spec.clear_not_before();
  params.spec.add_after(first);
  const std::string second = SubmitHere(params);
  EXPECT_EQ(launcher_.launches(), 0u);
  absl::StatusOr<v1::Job> cancelled;
  Post([&] { core_->CancelJob(first, false, Into(&cancelled)); });
  RunPosted();
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  ASSERT_EQ(launcher_.launches(), 1u) << "with nothing else to wake the controller";
  EXPECT_EQ(launcher_.Wait(0).request.job_id, second);
}

}  // namespace
}  // namespace ampd
