#include "server/jobs/job.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metrics/metrics.h"

namespace ampd {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

Job NewJob() {
  v1::JobSpec spec;
  spec.mutable_train()->set_batch_size(32);
  return Job::New("01h00000000000000000000000", 1, spec, v1::ModelPlan(), kNow);
}

Job Run(Job job) {
  job.Tick(absl::Seconds(100));
  EXPECT_TRUE(job.TransitionTo(v1::Job::STARTING, "", kNow).ok());
  EXPECT_TRUE(job.TransitionTo(v1::Job::RUNNING, "", kNow).ok());
  return job;
}

Job RunningJob() { return Run(NewJob()); }

// One that continues the training of another behind step 200.
Job ContinuedJob() {
  v1::JobSpec spec;
  spec.mutable_train()->set_batch_size(32);
  spec.mutable_start_from()->set_job_id("01h00000000000000000000000");
  spec.mutable_start_from()->set_checkpoint("step-000000200");
  spec.mutable_start_from()->set_continue_training(true);
  return Run(Job::New("01h00000000000000000000001", 2, spec, v1::ModelPlan(), kNow));
}

v1::JobEvent Step(int64_t first, int64_t last, int64_t applied, double loss) {
  v1::JobEvent event;
  event.mutable_step()->set_first_step(first);
  event.mutable_step()->set_last_step(last);
  event.mutable_step()->set_total_steps(1000);
  v1::PhaseReport& phase = *event.mutable_step()->add_phases();
  phase.set_loss(loss);
  phase.set_steps_applied(applied);
  phase.set_steps_skipped(last - applied);
  phase.set_loss_scale(1024);
  return event;
}

TEST(JobTest, AnIllegalTransitionChangesNothing) {
  Job job = NewJob();
  job.TakeWrite();
  job.WriteDone(true);
  EXPECT_EQ(job.TransitionTo(v1::Job::SUCCEEDED, "", kNow).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.state(), v1::Job::QUEUED);
  EXPECT_FALSE(job.dirty());
  EXPECT_EQ(job.proto().last_sequence(), 1u);
}

TEST(JobTest, TransitionsBecomeEvents) {
  Job job = RunningJob();
  v1::Failure failure;
  failure.set_class_(v1::Failure::DATA);
  ASSERT_TRUE(job.TransitionTo(v1::Job::FAILED, "why", kNow, &failure).ok());
  const JobWrite write = job.TakeWrite();
  EXPECT_TRUE(write.create);
  ASSERT_EQ(write.events.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(write.events[i].sequence(), i + 1);
  EXPECT_EQ(write.events[1].attempt(), 1u);
  EXPECT_EQ(write.events[3].state_change().from(), v1::Job::RUNNING);
  EXPECT_EQ(write.events[3].state_change().reason(), "why");
  EXPECT_EQ(write.events[3].state_change().failure().class_(), v1::Failure::DATA);
  EXPECT_EQ(write.counter_deltas.at(kJobsFailedCounter), 1);
  EXPECT_EQ(write.record.job.failure().class_(), v1::Failure::DATA);
  EXPECT_TRUE(write.record.job.has_end_time());
}

TEST(JobTest, AFailedWriteIsPartOfTheNext) {
  Job job = RunningJob();
  job.TakeWrite();
  job.AddWorkerEvent(Step(1, 10, 10, 1.0), 1, kNow);
  job.WriteDone(false);
  const JobWrite write = job.TakeWrite();
  EXPECT_TRUE(write.create);
  ASSERT_EQ(write.events.size(), 4u);
  EXPECT_EQ(write.events[3].sequence(), 4u);
  EXPECT_EQ(write.record.worker_number, 1u);
  EXPECT_EQ(write.counter_deltas.at(kEventsCounter), 4);
  job.WriteDone(true);
  EXPECT_FALSE(job.dirty());
  EXPECT_EQ(job.pending_events(), 0u);
}

TEST(JobTest, TheSpecIsInTheWriteThatCreatesAndInThoseThatBeginToRun) {
  Job job = NewJob();
  EXPECT_TRUE(job.TakeWrite().record.job.has_spec());
  job.WriteDone(true);
  ASSERT_TRUE(job.TransitionTo(v1::Job::STARTING, "", kNow).ok());
  EXPECT_FALSE(job.TakeWrite().record.job.has_spec());
  job.WriteDone(true);
  ASSERT_TRUE(job.TransitionTo(v1::Job::RUNNING, "", kNow).ok());
  const JobWrite write = job.TakeWrite();
  EXPECT_EQ(write.record.job.spec().train().batch_size(), 32);
  EXPECT_FALSE(write.create || write.new_spec);
  job.WriteDone(true);
  job.AddWorkerEvent(Step(1, 1, 1, 1.0), 1, kNow);
  EXPECT_FALSE(job.TakeWrite().record.job.has_spec());
  EXPECT_EQ(job.proto().spec().train().batch_size(), 32);
}

TEST(JobTest, SummaryAndCountersFollowTheEvents) {
  Job job = RunningJob();
  job.TakeWrite();
  job.WriteDone(true);
  job.AddWorkerEvent(Step(1, 10, 8, 0.5), 1, kNow);
  job.AddWorkerEvent(Step(11, 20, 18, std::numeric_limits<double>::quiet_NaN()), 2, kNow);
  v1::JobEvent evaluation;
  evaluation.mutable_evaluation()->set_step(20);
  evaluation.mutable_evaluation()->set_loss(0.25);
  evaluation.mutable_evaluation()->set_accuracy(0.75);
  job.AddWorkerEvent(evaluation, 3, kNow);
  v1::JobEvent checkpoint;
  checkpoint.mutable_checkpoint()->set_checkpoint("step-20");
  job.AddWorkerEvent(checkpoint, 4, kNow);
  const v1::JobSummary& summary = job.proto().summary();
  EXPECT_EQ(summary.step(), 20);
  EXPECT_EQ(summary.total_steps(), 1000);
  EXPECT_EQ(summary.steps_applied(), 18);
  EXPECT_EQ(summary.steps_skipped(), 2);
  EXPECT_TRUE(std::isnan(summary.loss())) << "it is the newest";
  EXPECT_EQ(summary.accuracy(), 0.75);
  EXPECT_EQ(summary.checkpoint(), "step-20");
  const JobWrite write = job.TakeWrite();
  EXPECT_EQ(write.counter_deltas.at(kStepsAppliedCounter), 18);
  EXPECT_EQ(write.counter_deltas.at(kStepsSkippedCounter), 2);
  EXPECT_EQ(write.counter_deltas.at(kSamplesCounter), 20 * 32);
  EXPECT_EQ(write.counter_deltas.at(kEventsCounter), 4);
}

// Of each step in turn: noise about a slow fall.
std::vector<double> NoisyLosses(int64_t steps) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.5, 1.5);
  std::vector<double> losses;
  for (int64_t i = 0; i < steps; ++i) losses.push_back(noise(random) * (1 + std::exp(-static_cast<double>(i) / 500)));
  return losses;
}

// Of all of them, in which the newest weighs most.
double MeanOf(const std::vector<double>& losses) {
  double sum = 0, weights = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double weight = std::exp(-static_cast<double>(losses.size() - 1 - i) / 100);
    sum += weight * losses[i];
    weights += weight;
  }
  return sum / weights;
}

// Reports the losses in the order of the steps, `next` steps at a time; as the next daemon has it after each.
double LossOf(const std::vector<double>& losses, const std::function<int64_t()>& next) {
  Job job = RunningJob();
  const auto all = static_cast<int64_t>(losses.size());
  for (int64_t first = 1; first <= all;) {
    const int64_t last = std::min(all, first + next() - 1);
    double sum = 0;
    for (int64_t step = first; step <= last; ++step) sum += losses[static_cast<size_t>(step - 1)];
    Job again(job.record());
    again.AddWorkerEvent(Step(first, last, last, sum / static_cast<double>(last - first + 1)),
                         job.record().worker_number + 1, kNow);
    job = Job(again.record());
    first = last + 1;
  }
  return job.proto().summary().loss();
}

TEST(JobTest, TheLossIsThatOfTheStepsNotOfTheReports) {
  for (const int64_t steps : {3, 40, 150, 1001}) {
    const std::vector<double> losses = NoisyLosses(steps);
    const double mean = MeanOf(losses);
    EXPECT_NEAR(LossOf(losses, [] { return 1; }), mean, 1e-9) << steps;
    std::mt19937 random(3);
    for (const int64_t most : {7, 25, 50}) {
      const double found = LossOf(losses, [&] { return std::uniform_int_distribution<int64_t>(1, most)(random); });
      EXPECT_NEAR(found, mean, 0.02 * mean) << steps << " steps, at most " << most << " a report";
    }
  }
  EXPECT_EQ(LossOf(NoisyLosses(1), [] { return 1; }), NoisyLosses(1)[0]);
}

TEST(JobTest, ALossThatIsNotFiniteIsTheNewestUntilOneIs) {
  Job job = RunningJob();
  const v1::JobSummary& summary = job.proto().summary();
  uint64_t number = 0;
  const auto add = [&](int64_t first, int64_t last, double loss) {
    job.AddWorkerEvent(Step(first, last, last, loss), ++number, kNow);
    return summary.loss();
  };
  EXPECT_EQ(add(1, 10, 2), 2);
  EXPECT_TRUE(std::isnan(add(11, 20, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(add(21, 30, std::numeric_limits<double>::infinity())));
  EXPECT_EQ(add(31, 40, 3), 3);
}

TEST(JobTest, AFirstPhaseThatDidNotRunHasNoNewLoss) {
  v1::JobSpec spec;
  spec.add_phases()->set_every(3);
  spec.add_phases();
  Job job = Job::New("01h00000000000000000000000", 1, spec, v1::ModelPlan(), kNow);
  uint64_t number = 0;
  const double none = std::numeric_limits<double>::quiet_NaN();
  job.AddWorkerEvent(Step(1, 3, 3, 2), ++number, kNow);
  job.AddWorkerEvent(Step(4, 5, 5, none), ++number, kNow);
  EXPECT_EQ(job.proto().summary().loss(), 2);
  job.AddWorkerEvent(Step(6, 6, 6, none), ++number, kNow);
  EXPECT_TRUE(std::isnan(job.proto().summary().loss()));
}

TEST(JobTest, LastReportedStepFollowsReportsSkipsAndRewinds) {
  Job job = RunningJob();
  job.AddWorkerEvent(Step(1, 10, 10, 1), 1, kNow);
  v1::JobEvent skip;
  skip.mutable_overflow_skip()->set_step(13);
  job.AddWorkerEvent(skip, 2, kNow);
  EXPECT_EQ(job.record().last_reported_step, 13);
  v1::JobEvent rewound;
  rewound.mutable_rewound()->set_to_step(5);
  job.AddWorkerEvent(rewound, 3, kNow);
  EXPECT_EQ(job.record().last_reported_step, 5);
  EXPECT_EQ(job.proto().summary().step(), 5);
  job.AddWorkerEvent(Step(6, 8, 8, 1), 4, kNow);
  EXPECT_EQ(job.record().last_reported_step, 8);
}

v1::JobEvent EvaluationAt(int64_t step, double accuracy) {
  v1::JobEvent event;
  event.mutable_evaluation()->set_step(step);
  event.mutable_evaluation()->set_loss(1 - accuracy);
  event.mutable_evaluation()->set_accuracy(accuracy);
  return event;
}

v1::JobEvent CheckpointAt(int64_t step) {
  v1::JobEvent event;
  event.mutable_checkpoint()->set_step(step);
  event.mutable_checkpoint()->set_checkpoint(absl::StrCat("step-", step));
  return event;
}

v1::JobEvent RewoundTo(int64_t step) {
  v1::JobEvent event;
  event.mutable_rewound()->set_to_step(step);
  return event;
}

std::map<std::string, double> CountersOf(Job* job, const std::vector<v1::JobEvent>& events) {
  for (const v1::JobEvent& event : events) job->AddWorkerEvent(event, job->record().worker_number + 1, kNow);
  const auto deltas = job->TakeWrite().counter_deltas;
  job->WriteDone(true);
  return deltas;
}

TEST(JobTest, RepeatedStepsCountAsTheirSamplesDo) {
  Job job = RunningJob();
  // One step of the first ten was skipped, and two of the next.
  CountersOf(&job, {Step(1, 10, 9, 1), CheckpointAt(10), Step(11, 20, 17, 1)});
  // As the next daemon has it from the store.
  Job after(job.record());
  const auto deltas = CountersOf(&after, {RewoundTo(10), Step(11, 18, 15, 1), Step(19, 20, 17, 1)});
  EXPECT_EQ(deltas.at(kStepsAppliedCounter), 8);
  EXPECT_EQ(deltas.at(kStepsSkippedCounter), 2);
  EXPECT_EQ(deltas.at(kSamplesCounter), 10 * 32);
  const auto from_start = CountersOf(&after, {RewoundTo(0), Step(1, 3, 2, 1)});
  EXPECT_EQ(from_start.at(kStepsAppliedCounter), 2);
  EXPECT_EQ(from_start.at(kStepsSkippedCounter), 1);
}

TEST(JobTest, AContinuedJobCountsItsOwnSteps) {
  // As its worker tells: steps go on, counts begin anew.
  const auto step = [](int64_t at, int64_t applied, double loss) {
    v1::JobEvent event = Step(at, at, applied, loss);
    event.mutable_step()->mutable_phases(0)->set_steps_skipped(at - 200 - applied);
    return event;
  };
  Job job = ContinuedJob();
  const auto deltas = CountersOf(&job, {step(201, 1, 8), step(202, 1, 2), step(203, 2, 2), step(204, 3, 2)});
  EXPECT_EQ(deltas.at(kStepsAppliedCounter), 3);
  EXPECT_EQ(deltas.at(kStepsSkippedCounter), 1);
  EXPECT_EQ(deltas.at(kSamplesCounter), 4 * 32);
  EXPECT_EQ(job.proto().summary().step(), 204);
  // As of a job that began with these losses.
  EXPECT_NEAR(job.proto().summary().loss(), 3.5, 0.1);
  // It begins there again: nothing is known that would have to be undone.
  const auto anew = CountersOf(&job, {RewoundTo(200), step(201, 1, 8)});
  EXPECT_EQ(anew.at(kStepsAppliedCounter), 1);
  EXPECT_EQ(job.proto().summary().loss(), 8);
  EXPECT_EQ(job.proto().summary().steps_skipped(), 0);
  // Of reports that are missing it counts those steps that were its own.
  Job other = ContinuedJob();
  v1::JobEvent left = CheckpointAt(230);
  left.mutable_checkpoint()->set_already_written(true);
  left.mutable_checkpoint()->add_phases()->set_steps_applied(30);
  const auto unreported = CountersOf(&other, {left});
  EXPECT_EQ(unreported.at(kStepsAppliedCounter), 30);
  EXPECT_EQ(unreported.at(kSamplesCounter), 30 * 32);
}

TEST(JobTest, FiguresOfUndoneStepsDoNotStand) {
  Job job = RunningJob();
  CountersOf(&job, {Step(1, 10, 9, 2), EvaluationAt(10, 0.5), CheckpointAt(10), Step(11, 20, 17, 1),
                    EvaluationAt(20, 0.75), CheckpointAt(20)});
  const double then = job.proto().summary().loss();
  CountersOf(&job, {Step(21, 25, 22, 0.5), EvaluationAt(25, 0.875)});
  EXPECT_LT(job.proto().summary().loss(), then);
  // As the next daemon has it from the store.
  Job after(job.record());
  CountersOf(&after, {RewoundTo(20)});
  const v1::JobSummary& summary = after.proto().summary();
  EXPECT_EQ(summary.step(), 20);
  EXPECT_EQ(summary.loss(), then);
  EXPECT_EQ(summary.accuracy(), 0.75);
  EXPECT_EQ(summary.eval_loss(), 0.25);
  EXPECT_EQ(summary.steps_applied(), 17);
  EXPECT_EQ(summary.steps_skipped(), 3);
  EXPECT_EQ(summary.total_steps(), 1000);
  // To one before it.
  CountersOf(&after, {RewoundTo(10)});
  EXPECT_EQ(summary.accuracy(), 0.5);
  EXPECT_EQ(summary.steps_applied(), 9);
  EXPECT_EQ(after.record().at_checkpoints.size(), 1u);
  // To one of which nothing is known.
  CountersOf(&after, {RewoundTo(5)});
  EXPECT_FALSE(summary.has_loss() || summary.has_accuracy() || summary.has_eval_loss());
  CountersOf(&after, {Step(6, 10, 10, 3), RewoundTo(0)});
  EXPECT_FALSE(summary.has_loss());
  EXPECT_EQ(summary.steps_applied() + summary.steps_skipped() + summary.step(), 0);
}

// Of an attempt that trained on without a daemon: `applied` of the steps up to it were.
v1::JobEvent CheckpointLeftAt(int64_t step, int64_t applied, double loss) {
  v1::JobEvent event = CheckpointAt(step);
  event.mutable_checkpoint()->set_already_written(true);
  event.mutable_checkpoint()->set_size_bytes(1000);
  event.mutable_checkpoint()->set_epoch(3);
  event.mutable_checkpoint()->set_total_steps(1000);
  v1::CheckpointSaved::Phase& phase = *event.mutable_checkpoint()->add_phases();
  phase.set_loss(loss);
  phase.set_loss_scale(512);
  phase.set_steps_applied(applied);
  phase.set_steps_skipped(step - applied);
  return event;
}

TEST(JobTest, ACheckpointStandsInForReportsThatAreMissing) {
  Job job = RunningJob();
  job.MutableRecord().lost_attempts = 2;
  CountersOf(&job, {Step(1, 10, 9, 2)});
  const auto deltas = CountersOf(&job, {CheckpointLeftAt(30, 25, 0.5)});
  EXPECT_EQ(deltas.at(kStepsAppliedCounter), 16);
  EXPECT_EQ(deltas.at(kStepsSkippedCounter), 4);
  EXPECT_EQ(deltas.at(kSamplesCounter), 20 * 32);
  EXPECT_EQ(deltas.count(kCheckpointBytesCounter), 0u) << "nothing was written";
  const v1::JobSummary& summary = job.proto().summary();
  EXPECT_EQ(summary.step(), 30);
  EXPECT_EQ(summary.epoch(), 3);
  // Of ten steps before, and of the last of twenty for all of them.
  const double ten = (1 - std::exp(-0.1)) * std::exp(-0.2), twenty = 1 - std::exp(-0.2);
  const double mean = (ten * 2 + twenty * 0.5) / (ten + twenty);
  EXPECT_NEAR(summary.loss(), mean, 1e-12);
  EXPECT_EQ(summary.loss_scale(), 512);
  EXPECT_EQ(summary.steps_applied(), 25);
  EXPECT_EQ(summary.steps_skipped(), 5);
  EXPECT_EQ(job.record().lost_attempts, 0);
  // Training goes on from there, and comes back.
  const auto more = CountersOf(&job, {Step(31, 40, 34, 0.25), RewoundTo(30)});
  EXPECT_EQ(more.at(kStepsAppliedCounter), 9);
  EXPECT_EQ(more.at(kStepsSkippedCounter), 1);
  EXPECT_NEAR(summary.loss(), mean, 1e-12);
  EXPECT_EQ(summary.epoch(), 3);
  EXPECT_EQ(summary.steps_applied(), 25);
  // Told again of what was reported: it is no news.
  job.MutableRecord().lost_attempts = 2;
  CountersOf(&job, {Step(31, 40, 34, 0.25)});
  const double reported = summary.loss();
  const auto again = CountersOf(&job, {CheckpointLeftAt(40, 34, 0.125)});
  EXPECT_EQ(again.count(kStepsAppliedCounter) + again.count(kStepsSkippedCounter) + again.count(kSamplesCounter), 0u);
  EXPECT_EQ(summary.loss(), reported) << "the mean of a report";
  EXPECT_EQ(job.record().lost_attempts, 2);
}

TEST(JobTest, CountersDoNotGoBackWithACheckpointsCounts) {
  Job job = RunningJob();
  CountersOf(&job, {Step(1, 20, 19, 2)});
  // To a checkpoint of which nothing is known, which is written anew.
  v1::JobEvent anew = CheckpointLeftAt(10, 9, 1);
  anew.mutable_checkpoint()->set_already_written(false);
  const auto deltas = CountersOf(&job, {RewoundTo(10), anew, Step(11, 12, 11, 0.5)});
  EXPECT_EQ(deltas.at(kStepsAppliedCounter), 2);
  EXPECT_EQ(deltas.count(kStepsSkippedCounter), 0u);
  EXPECT_EQ(deltas.at(kCheckpointBytesCounter), 1000);
  EXPECT_EQ(job.proto().summary().steps_applied(), 11);
}

TEST(JobTest, ACheckpointOfAnEarlierBuildTellsItsStepAlone) {
  Job job = RunningJob();
  CountersOf(&job, {Step(1, 10, 9, 2)});
  const auto deltas = CountersOf(&job, {CheckpointAt(30)});
  EXPECT_EQ(deltas.count(kStepsAppliedCounter) + deltas.count(kSamplesCounter), 0u);
  EXPECT_EQ(job.proto().summary().step(), 30);
  EXPECT_EQ(job.proto().summary().steps_applied(), 9);
  EXPECT_TRUE(job.record().at_checkpoints.empty());
}

TEST(JobTest, FewCheckpointsAreRemembered) {
  Job job = RunningJob();
  for (int64_t step = 1; step <= 50; ++step) CountersOf(&job, {Step(step, step, step, 1), CheckpointAt(step)});
  EXPECT_LE(job.record().at_checkpoints.size(), 5u);
  EXPECT_EQ(job.record().at_checkpoints.rbegin()->first, 50);
}

// RunningJob() ticked 100 s.
TEST(JobTest, RunTimeAddsUpOverAttemptsWhateverTheWallClockSays) {
  Job job = RunningJob();
  const auto enter = [&](v1::Job::State to, absl::Duration monotonic, absl::Time wall) {
    job.Tick(monotonic);
    ASSERT_TRUE(job.TransitionTo(to, "", wall).ok());
  };
  enter(v1::Job::QUEUED, absl::Seconds(130), kNow - absl::Hours(1));
  job.Tick(absl::Hours(1));
  EXPECT_EQ(job.RunTime(), absl::Seconds(30));
  enter(v1::Job::STARTING, absl::Hours(1), kNow + absl::Hours(1000));
  enter(v1::Job::RUNNING, absl::Hours(2), kNow + absl::Hours(2));
  enter(v1::Job::RECOVERING, absl::Hours(2) + absl::Seconds(10), kNow + absl::Hours(50));
  enter(v1::Job::RUNNING, absl::Hours(2) + absl::Seconds(20), kNow);
  job.Tick(absl::Hours(2) + absl::Seconds(25));
  EXPECT_EQ(job.RunTime(), absl::Seconds(55));
  EXPECT_EQ(job.proto().start_time().seconds(), absl::ToUnixSeconds(kNow));
}

TEST(JobTest, RunTimeGoesOnInTheNextDaemonUnlessTheWorkerIsGone) {
  Job before = RunningJob();
  before.Tick(absl::Seconds(110));
  const JobRecord record = before.TakeWrite().record;
  Job after(record);
  after.Tick(absl::Seconds(150));
  EXPECT_EQ(after.RunTime(), absl::Seconds(50));
  Job lost(record);
  lost.StopRunClock();
  lost.Tick(absl::Seconds(150));
  EXPECT_EQ(lost.RunTime(), absl::Seconds(10));
  // The machine was started anew: its clock is behind what was counted.
  Job rebooted(record);
  rebooted.Tick(absl::Seconds(3));
  rebooted.Tick(absl::Seconds(5));
  EXPECT_EQ(rebooted.RunTime(), absl::Seconds(12));
}

}  // namespace
}  // namespace ampd
