#include "tests/unit/server/jobs/controller_fixture.h"

namespace ampd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

v1::Device Gpu(const std::string& id, int major, int minor) {
  v1::Device device;
  device.set_id(id);
  device.set_kind(v1::Device::CUDA);
  device.set_name("NVIDIA Something");
  device.set_threads(4);
  device.mutable_gpu()->set_compute_capability_major(major);
  device.mutable_gpu()->set_compute_capability_minor(minor);
  return device;
}

v1::Device WithProcess(v1::Device device, int64_t pid) {
  device.mutable_gpu()->set_process_count(device.gpu().processes_size() + 1);
  device.mutable_gpu()->add_processes()->set_pid(pid);
  return device;
}

v1::Device WithCondition(v1::Device device, v1::DeviceCondition::Kind kind, bool blocks) {
  v1::DeviceCondition& condition = *device.add_conditions();
  condition.set_kind(kind);
  condition.set_blocks_jobs(blocks);
  return device;
}

class ControllerDevicesTest : public ControllerTest {
 protected:
  void Restart(std::vector<v1::Device> devices, bool same_pid_namespace = true) {
    StopDaemon();
    StartDaemonOn(std::move(devices), 0, same_pid_namespace);
  }
  CreateJobParams Job(v1::PrecisionSpec::Mode mode) {
    CreateJobParams params = Params();
    params.spec.mutable_precision()->set_mode(mode);
    return params;
  }
  void Update(std::vector<v1::Device> devices) {
    controller_->UpdateDevices(std::move(devices));
    Settle();
  }
  std::vector<v1::Device> Devices() {
    return Await<std::vector<v1::Device>>([&](auto done) { controller_->ListDevices(std::move(done)); }).value();
  }
  v1::Job::QueueReason ReasonOf(const std::string& id) { return Get(id)->queue_reason(); }
};

TEST_F(ControllerDevicesTest, AJobGetsADeviceThatCanDoItsMode) {
  Restart({Gpu("GPU-t4", 7, 5), Gpu("GPU-h200", 9, 0)});
  const std::string bf16 = Submit(Job(v1::PrecisionSpec::BF16));
  const FakeLauncher::Process process = launcher_.Wait(0);
  EXPECT_EQ(process.request.job_id, bf16);
  EXPECT_THAT(process.request.gpus, ElementsAre("GPU-h200"));
  const std::string fp16 = Submit(Job(v1::PrecisionSpec::FP16));
  EXPECT_THAT(launcher_.Wait(1).request.gpus, ElementsAre("GPU-t4"));
  EXPECT_EQ(Get(fp16)->devices(0), "GPU-t4");
  const v1::DaemonWelcome welcome = AttachLaunched(0)->WaitForWelcome();
  EXPECT_THAT(welcome.devices(), testing::ElementsAre("GPU-h200"));
  EXPECT_EQ(welcome.cpu_threads(), 4);
}

TEST_F(ControllerDevicesTest, AJobOnTheCpuSeesNoGpu) {
  CreateJobParams params = Job(v1::PrecisionSpec::FP32);
  params.spec.mutable_resources()->set_device("cpu-0");
  v1::Device cpu;
  cpu.set_id("cpu-0");
  cpu.set_kind(v1::Device::CPU);
  Restart({Gpu("GPU-a", 9, 0), cpu});
  Submit(std::move(params));
  EXPECT_THAT(launcher_.Wait(0).request.gpus, IsEmpty());
}

TEST_F(ControllerDevicesTest, AProcessOfOthersHoldsJobsBack) {
  const v1::Device gpu = Gpu("GPU-a", 9, 0);
  Restart({gpu});
  Update({WithProcess(gpu, 4242)});
  const v1::Device held = Devices()[0];
  ASSERT_THAT(held.conditions(), SizeIs(1));
  EXPECT_EQ(held.conditions(0).kind(), v1::DeviceCondition::FOREIGN_PROCESS);
  EXPECT_EQ(held.conditions(0).message(), "process 4242 of others computes on it");
  EXPECT_TRUE(held.conditions(0).has_since_time());
  EXPECT_EQ(held.threads(), 4);
  EXPECT_THAT(metrics_->Serialize(), HasSubstr("ampd_gpu_foreign_processes{device=\"GPU-a\"} 1"));
  const std::string id = Submit();
  EXPECT_EQ(ReasonOf(id), v1::Job::FOREIGN_PROCESS);
  // It stays since it came.
  clock_.Advance(absl::Seconds(100));
  Update({WithProcess(gpu, 4242)});
  EXPECT_EQ(Devices()[0].conditions(0).since_time().seconds(), held.conditions(0).since_time().seconds());
  EXPECT_EQ(launcher_.launches(), 0u);
  Update({gpu});
  EXPECT_EQ(launcher_.Wait(0).request.job_id, id);
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
}

TEST_F(ControllerDevicesTest, OurOwnWorkersAreNoForeigners) {
  const v1::Device gpu = Gpu("GPU-a", 9, 0);
  Restart({gpu});
  const std::string id = Submit();
  const int64_t pid = launcher_.Wait(0).id.pid;
  auto worker = AttachLaunched(0);
  Update({WithProcess(WithProcess(gpu, pid), 5)});
  v1::Device device = Devices()[0];
  EXPECT_EQ(device.gpu().processes(0).job_id(), id);
  EXPECT_EQ(device.gpu().processes(1).job_id(), "");
  EXPECT_EQ(device.conditions(0).message(), "process 5 of others computes on it");
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING) << "what runs goes on";
  Update({WithProcess(gpu, pid)});
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
  // The driver lets go of it a little later than it is gone.
  EXPECT_TRUE(Cancel(id).ok());
  EndWorker(worker, 0);
  Settle();
  Update({WithProcess(gpu, pid)});
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
  Advance(absl::Seconds(11));
  Update({WithProcess(gpu, pid)});
  EXPECT_THAT(Devices()[0].conditions(), SizeIs(1)) << "another process with its pid";
}

TEST_F(ControllerDevicesTest, WorkersThatShareAndEndTogetherAreNoForeigners) {
  v1::Device gpu = Gpu("GPU-a", 9, 0);
  gpu.set_memory_total_bytes(int64_t{80} << 30);
  Restart({gpu});
  CreateJobParams params = Job(v1::PrecisionSpec::FP32);
  params.spec.mutable_resources()->set_share(true);
  params.plan.set_parameter_bytes(int64_t{1} << 30);
  v1::Device busy = gpu;
  for (size_t i = 0; i < 2; ++i) {
    const std::string id = Submit(params);
    busy = WithProcess(busy, launcher_.Wait(i).id.pid);
    auto worker = AttachLaunched(i);
    EXPECT_TRUE(Cancel(id).ok());
    EndWorker(worker, i);
  }
  Settle();
  Update({busy});
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
}

TEST_F(ControllerDevicesTest, PidsOfAnotherNamespaceAreNotCompared) {
  const v1::Device gpu = Gpu("GPU-a", 9, 0);
  Restart({gpu}, false);
  Update({WithProcess(gpu, 91)});
  EXPECT_THAT(Devices()[0].conditions(), SizeIs(1));
  Update({gpu});
  const std::string id = Submit();
  launcher_.Wait(0);
  Update({WithProcess(gpu, 92)});
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
  EXPECT_EQ(Devices()[0].gpu().processes(0).job_id(), id);
}

TEST_F(ControllerDevicesTest, AStepIsRatedByItsDevicesPeak) {
  v1::Device gpu = Gpu("GPU-a", 9, 0);
  gpu.set_name("NVIDIA H200");
  Restart({gpu});
  CreateJobParams params = Job(v1::PrecisionSpec::BF16);
  params.plan.set_step_flops(98.95e12);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  v1::WorkerMessage message;
  message.mutable_event()->set_number(1);
  v1::StepReport& step = *message.mutable_event()->mutable_event()->mutable_step();
  step.set_first_step(1);
  step.set_last_step(4);
  step.set_step_seconds(0.25);
  // Not for the worker to say.
  step.set_model_flops_utilization(17);
  controller_->WorkerMessage(worker, message);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_DOUBLE_EQ(LastEvent(id).step().model_flops_utilization(), 0.4);
  EXPECT_DOUBLE_EQ(Get(id)->summary().model_flops_utilization(), 0.4);
  EXPECT_DOUBLE_EQ(Get(id)->summary().step_seconds(), 0.25);
  log_->Flush();
  EXPECT_THAT(metrics_->Serialize(), HasSubstr("ampd_job_step_seconds{job_id=\"" + id + "\"} 0.25"));
  EXPECT_THAT(metrics_->Serialize(), HasSubstr("ampd_job_model_flops_utilization_ratio{job_id=\"" + id + "\"} 0.4"));
}

TEST_F(ControllerDevicesTest, AJobOnTheCpuIsNotRated) {
  CreateJobParams params = Params();
  params.plan.set_step_flops(1e12);
  const std::string id = Submit(std::move(params));
  auto worker = AttachLaunched(0);
  SendStep(worker, 1, 1);
  EXPECT_TRUE(worker->WaitForAck(1));
  EXPECT_FALSE(LastEvent(id).step().has_model_flops_utilization());
  EXPECT_THAT(metrics_->Serialize(), Not(HasSubstr("flops_utilization")));
}

TEST_F(ControllerDevicesTest, ADeviceOutOfOrderGetsNoJob) {
  const v1::Device gpu = Gpu("GPU-a", 9, 0);
  Restart({gpu});
  v1::Device lost;
  lost.set_id("GPU-a");
  lost.set_kind(v1::Device::CUDA);
  Update({WithCondition(lost, v1::DeviceCondition::GPU_LOST, true)});
  EXPECT_THAT(metrics_->Serialize(),
              HasSubstr("ampd_device_condition{blocks_jobs=\"true\",condition=\"gpu_lost\",device=\"GPU-a\"} 1"));
  const std::string id = Submit();
  EXPECT_EQ(ReasonOf(id), v1::Job::DEVICE_UNHEALTHY);
  Update({WithCondition(gpu, v1::DeviceCondition::HARDWARE_ERROR, false)});
  EXPECT_EQ(launcher_.Wait(0).request.job_id, id);
  Update({gpu});
  EXPECT_THAT(metrics_->Serialize(), Not(HasSubstr("ampd_device_condition")));
}

class ControllerDrainDeviceTest : public ControllerDevicesTest {
 protected:
  absl::StatusOr<v1::Device> Drain(const std::string& id, const std::string& reason, bool stop_jobs = false) {
    v1::DrainDeviceRequest request;
    request.set_device_id(id);
    request.set_reason(reason);
    request.set_stop_jobs(stop_jobs);
    return Await<v1::Device>([&](auto done) { controller_->DrainDevice(request, std::move(done)); });
  }
  absl::StatusOr<v1::Device> Undrain(const std::string& id) {
    return Await<v1::Device>([&](auto done) { controller_->UndrainDevice(id, std::move(done)); });
  }
};

TEST_F(ControllerDrainDeviceTest, NoJobStartsOnADrainedDeviceUntilItIsTakenBack) {
  const v1::Device gpu = Gpu("GPU-a", 9, 0);
  Restart({gpu});
  const auto drained = Drain("GPU-a", "fan replaced");
  ASSERT_TRUE(drained.ok()) << drained.status();
  ASSERT_THAT(drained->conditions(), SizeIs(1));
  EXPECT_EQ(drained->conditions(0).kind(), v1::DeviceCondition::DRAINED);
  EXPECT_EQ(drained->conditions(0).message(), "fan replaced");
  EXPECT_TRUE(drained->conditions(0).blocks_jobs());
  const std::string id = Submit();
  EXPECT_EQ(ReasonOf(id), v1::Job::GPU_DRAINED);
  Update({gpu});
  EXPECT_EQ(ReasonOf(id), v1::Job::GPU_DRAINED) << "new figures do not take it back";
  EXPECT_EQ(Drain("GPU-a", "another")->conditions(0).message(), "another");
  Restart({gpu});
  Settle();
  EXPECT_EQ(launcher_.launches(), 0u) << "a drain outlives the daemon";
  EXPECT_EQ(Devices()[0].conditions(0).message(), "another");
  EXPECT_THAT(Undrain("GPU-a")->conditions(), IsEmpty());
  EXPECT_EQ(launcher_.Wait(0).request.job_id, id);
  EXPECT_TRUE(Undrain("GPU-a").ok()) << "harmless";
  Restart({gpu});
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
}

TEST_F(ControllerDrainDeviceTest, JobsRunOnOrMoveAway) {
  Restart({Gpu("GPU-a", 9, 0)});
  const std::string id = Submit();
  auto worker = AttachLaunched(0);
  WaitFor(id, v1::Job::RUNNING);
  EXPECT_TRUE(Drain("GPU-a", "soon").ok());
  Settle();
  EXPECT_EQ(Get(id)->state(), v1::Job::RUNNING);
  EXPECT_TRUE(Drain("GPU-a", "now", true).ok());
  EXPECT_TRUE(worker->WaitForStop());
  WaitFor(id, v1::Job::PREEMPTING);
  // Also over a restart.
  const std::string key = worker->WaitForWelcome().session_key();
  Restart({Gpu("GPU-a", 9, 0)});
  auto again = Attach(Hello(id, 1, key, launcher_.Wait(0).id.pid));
  EXPECT_TRUE(again->WaitForStop());
  SendFinished(again, v1::WorkerFinished::STOPPED, 0);
  WaitFor(id, v1::Job::QUEUED);
  EndWorker(again, 0);
  Settle();
  EXPECT_EQ(ReasonOf(id), v1::Job::GPU_DRAINED);
  EXPECT_EQ(Get(id)->failures(), 0u);
  EXPECT_EQ(launcher_.launches(), 1u);
}

TEST_F(ControllerDrainDeviceTest, AJobThatDoesNotStopInItsTimeIsKilledAndMovesOn) {
  // It has ten minutes to write a checkpoint, also after a restart, and then a minute, as for another job, or more
  // where its checkpoints take longer.
  for (const double seconds : {0.0, 60.0}) {
    Restart({Gpu("GPU-a", 9, 0)});
    const size_t launch = launcher_.launches();
    const std::string id = Submit();
    auto worker = AttachLaunched(launch);
    WaitFor(id, v1::Job::RUNNING);
    const std::string key = worker->WaitForWelcome().session_key();
    EXPECT_TRUE(Drain("GPU-a", "now", true).ok());
    EXPECT_TRUE(worker->WaitForStop());
    Restart({Gpu("GPU-a", 9, 0)});
    auto again = Attach(Hello(id, 1, key, launcher_.Wait(launch).id.pid));
    EXPECT_TRUE(again->WaitForStop());
    for (int i = 0; i < 19; ++i) {
      SendHeartbeat(again);
      Advance(absl::Seconds(30));
    }
    EXPECT_FALSE(launcher_.WasKilled(launch)) << "it may evaluate for ten graces";
    v1::WorkerMessage message;
    message.mutable_event()->set_number(1);
    v1::CheckpointSaved& saved = *message.mutable_event()->mutable_event()->mutable_checkpoint();
    saved.set_checkpoint("step-1");
    saved.set_write_seconds(seconds);
    controller_->WorkerMessage(again, message);
    EXPECT_TRUE(again->WaitForAck(1));
    for (int i = 0; i < (seconds > 0 ? 3 : 2); ++i) {
      SendHeartbeat(again);
      EXPECT_FALSE(launcher_.WasKilled(launch)) << seconds;
      Advance(absl::Seconds(30));
    }
    EXPECT_TRUE(launcher_.WasKilled(launch)) << seconds;
    controller_->WorkerDisconnected(again);
    EXPECT_EQ(WaitFor(id, v1::Job::QUEUED).failures(), 0u);
    EXPECT_EQ(ReasonOf(id), v1::Job::GPU_DRAINED);
    EXPECT_TRUE(Cancel(id).ok());
    EXPECT_TRUE(Undrain("GPU-a").ok());
  }
}

TEST_F(ControllerDrainDeviceTest, SaysWhatIsWrong) {
  EXPECT_EQ(Drain("cpu-9", "why").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Undrain("cpu-9").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Drain("cpu-0", "").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status long_reason = Drain("cpu-0", std::string(201, 'x')).status();
  EXPECT_THAT(std::string(long_reason.message()), HasSubstr("reason: must be at most 200 bytes, is 201"));
  EXPECT_THAT(Devices()[0].conditions(), IsEmpty());
}

}  // namespace
}  // namespace ampd
