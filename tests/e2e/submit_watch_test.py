"""A client of another language submits and watches: everything goes through stubs generated from the protos."""

import threading
import uuid

import grpc

from ampd.v1 import training_service_pb2

import ampd_process
from ampd_process import DaemonTest, glyphs_job, losses_by_step, state_name, states

# grpc.health.v1.HealthCheckResponse{status: SERVING}.
HEALTH_SERVING = b"\x08\x01"


class SubmitWatchTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()

    def refuses(self, code, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception

    def test_a_job_is_submitted_watched_and_succeeds(self):
        job = self.ampd.submit(glyphs_job("first light", steps=40, mode="FP16"))
        self.assertRegex(job.id, "^[0-9a-z]{26}$")
        self.assertEqual(state_name(job.state), "QUEUED")
        # Defaults are filled in.
        self.assertEqual(job.spec.precision.loss_scale.init, 65536)
        self.assertGreater(job.plan.parameters, 0)

        events = self.ampd.events(job.id)
        self.assert_sequence(events)
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"])
        self.assertEqual(sorted(losses_by_step(events)), list(range(1, 41)))
        evaluations = [e.evaluation for e in events if e.HasField("evaluation")]
        self.assertEqual(evaluations[-1].samples, 256)
        self.assertTrue(any(e.HasField("checkpoint") and e.checkpoint.step == 40 for e in events))

        done = self.ampd.get(job.id)
        self.assert_state(done, "SUCCEEDED")
        self.assertEqual(done.last_sequence, events[-1].sequence)
        self.assertEqual(done.summary.step, 40)
        self.assertEqual(done.summary.steps_applied + done.summary.steps_skipped, 40)
        self.assertEqual(done.summary.accuracy, evaluations[-1].accuracy)

    def test_watchers_see_the_same_events_whenever_they_come(self):
        job = self.ampd.submit(glyphs_job(steps=120))
        live = []
        follower = threading.Thread(target=lambda: live.extend(self.ampd.events(job.id)))
        follower.start()
        self.ampd.wait_for_step(job.id, 30)
        tail = list(self.ampd.watch(job.id, after=20))
        follower.join()
        replay = self.ampd.events(job.id)
        self.assertEqual(live, replay)
        self.assertEqual(tail, replay[20:])
        self.assertEqual(list(self.ampd.watch(job.id, after=replay[-1].sequence)), [])
        self.refuses(grpc.StatusCode.OUT_OF_RANGE,
                     lambda: list(self.ampd.watch(job.id, after=replay[-1].sequence + 1)))

    def test_a_repeated_request_is_one_job(self):
        request_id = str(uuid.uuid4())
        first = self.ampd.submit(glyphs_job("once", steps=2), request_id=request_id)
        again = self.ampd.submit(glyphs_job("once", steps=2), request_id=request_id)
        self.assertEqual(first.id, again.id)
        self.refuses(grpc.StatusCode.ALREADY_EXISTS,
                     lambda: self.ampd.submit(glyphs_job("other", steps=2), request_id=request_id))

    def test_validate_only_creates_nothing(self):
        job = self.ampd.submit(glyphs_job(steps=2), validate_only=True)
        self.assertEqual(job.id, "")
        self.assertEqual([layer.name for layer in job.plan.layers][-1], "head")
        self.assertEqual(len(self.ampd.api().ListJobs(training_service_pb2.ListJobsRequest()).jobs), 0)

    def test_one_device_runs_jobs_in_order_of_submission(self):
        ids = [self.ampd.submit(glyphs_job(f"job {i}", steps=150 if i == 0 else 3)).id for i in range(3)]
        ampd_process.eventually(lambda: self.ampd.get(ids[0]).state == self.ampd.get(ids[0]).RUNNING or
                                self.ampd.get(ids[0]).state in ampd_process.TERMINAL, "the first job's start")
        waiting = self.ampd.get(ids[2])
        if waiting.state == waiting.QUEUED:
            self.assertGreaterEqual(waiting.queue_position, 1)
        ends = [self.ampd.wait(job_id) for job_id in ids]
        for before, after in zip(ends, ends[1:]):
            self.assertLessEqual(before.end_time.ToNanoseconds(), after.start_time.ToNanoseconds())

    def test_a_running_job_is_cancelled_with_a_checkpoint(self):
        job = self.ampd.submit(glyphs_job(steps=100000))
        self.ampd.wait_for_step(job.id, 5)
        self.ampd.api().CancelJob(training_service_pb2.CancelJobRequest(job_id=job.id))
        events = self.ampd.events(job.id)
        self.assert_sequence(events)
        self.assertEqual(states(events)[-2:], ["CANCELLING", "CANCELLED"])
        self.assertTrue(any(e.HasField("checkpoint") for e in events))
        again = self.ampd.api().CancelJob(training_service_pb2.CancelJobRequest(job_id=job.id))
        self.assert_state(again, "CANCELLED")

    def test_jobs_are_listed_newest_first_page_by_page(self):
        ids = [self.ampd.submit(glyphs_job(f"job {i}", steps=1)).id for i in range(5)]
        for job_id in ids:
            self.ampd.wait(job_id)
        listed, token = [], ""
        while True:
            page = self.ampd.api().ListJobs(training_service_pb2.ListJobsRequest(page_size=2, page_token=token))
            listed += [job.id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break
        self.assertEqual(listed, ids[::-1])

    def test_unknown_jobs_devices_info_health(self):
        self.refuses(grpc.StatusCode.NOT_FOUND, lambda: self.ampd.get("01hzzzzzzzzzzzzzzzzzzzzzzz"))
        devices = self.ampd.api().ListDevices(training_service_pb2.ListDevicesRequest()).devices
        self.assertEqual([device.id for device in devices], ["cpu-0"])
        self.assertGreaterEqual(devices[0].threads, 1)
        info = self.ampd.api().GetServerInfo(training_service_pb2.GetServerInfoRequest())
        self.assertEqual(list(info.apis), ["ampd.v1"])
        check = self.ampd.channel.unary_unary("/grpc.health.v1.Health/Check")
        self.assertEqual(check(b"", timeout=30), HEALTH_SERVING)
        # HealthCheckRequest{service: "ampd.v1.TrainingService"}.
        name = b"ampd.v1.TrainingService"
        self.assertEqual(check(b"\x0a" + bytes([len(name)]) + name, timeout=30), HEALTH_SERVING)

    def test_reflection_names_the_service(self):
        self.ampd.api()
        reflect = self.ampd.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        # ServerReflectionRequest{list_services: "*"}.
        answer = next(reflect(iter([b"\x3a\x01*"]), timeout=30))
        self.assertIn(b"ampd.v1.TrainingService", answer)
        self.assertNotIn(b"ampd.v1.WorkerLink", answer)


if __name__ == "__main__":
    ampd_process.main()
