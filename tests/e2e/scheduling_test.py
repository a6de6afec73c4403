"""Scheduling with real workers: gangs, shared devices, dependencies, and what a queued job says of itself."""

from ampd.v1 import training_service_pb2

import ampd_process
from ampd_process import glyphs_job, losses_by_step, states


class SchedulingTest(ampd_process.DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon(cpu_devices=2)

    def devices(self):
        return self.ampd.api().ListDevices(training_service_pb2.ListDevicesRequest()).devices

    def test_a_gang_learns_what_one_device_does_with_as_many_micro_batches(self):
        one = glyphs_job("one", steps=30)
        one["train"]["micro_batch_size"] = 16
        gang = glyphs_job("gang", steps=30)
        gang["resources"] = {"gpus": 2, "cpu_threads": 2}
        jobs = [self.ampd.run(spec) for spec in (one, gang)]
        for job in jobs:
            self.assert_state(job, "SUCCEEDED")
        self.assertEqual(jobs[1].spec.train.micro_batch_size, 16)
        losses = [losses_by_step(self.ampd.events(job.id)) for job in jobs]
        self.assertEqual(len(losses[0]), 30)
        # To the bit: docs/decisions/0019-data-parallel.md.
        self.assertEqual(losses[0], losses[1])

    def test_a_gang_waits_for_all_its_devices_and_says_so(self):
        running = self.ampd.submit(glyphs_job("running", steps=100000))
        self.ampd.wait_for_step(running.id, 2)
        spec = glyphs_job("gang", steps=5)
        spec["resources"] = {"gpus": 2}
        gang = self.ampd.submit(spec)
        self.assertEqual(gang.queue_message, "1 of 2 devices free: of 2 that it could use 1 is held")
        # What is free is kept for it.
        small = self.ampd.submit(glyphs_job("small", steps=5))
        self.assertEqual(small.queue_position, 2)
        self.assertIn(gang.id, small.queue_message)
        why = self.ampd.ctl("why", small.id)
        self.assertIn("PRIORITY: what is free is kept for " + gang.id, why.stdout)
        self.assertIn("1 of 2 devices free", self.ampd.ctl("list").stdout)
        self.ampd.ctl("cancel", running.id)
        self.assert_state(self.ampd.wait(gang.id), "SUCCEEDED")
        self.assert_state(self.ampd.wait(small.id), "SUCCEEDED")
        starts = [self.ampd.get(job).start_time.ToNanoseconds() for job in (gang.id, small.id)]
        self.assertLess(starts[0], starts[1])

    def test_jobs_that_share_a_device_run_beside_each_other(self):
        def job(name):
            spec = glyphs_job(name, steps=100000)
            spec["resources"] = {"share": True, "cpu_threads": 1}
            return self.ampd.submit(spec)
        shared = [job("a"), job("b"), job("c")]
        for one in shared:
            self.ampd.wait_for_step(one.id, 2)
        first, second = self.devices()
        self.assertEqual(list(first.job_ids), [one.id for one in shared])
        self.assertEqual(list(second.job_ids), [])
        self.assertGreater(first.reserved_memory_bytes, 0)

    def test_an_urgent_job_stops_another_which_loses_no_step(self):
        ampd = self.daemon(config={"preemption_min_run_seconds": 0}, cpu_devices=1)
        alone = losses_by_step(ampd.events(ampd.run(glyphs_job("alone", steps=400)).id))
        spec = glyphs_job("patient", steps=400)
        spec["resources"].update(preemptible=True)
        patient = ampd.submit(spec)
        ampd.wait_for_step(patient.id, 2)
        urgent = glyphs_job("urgent", steps=5)
        urgent["resources"].update(priority=5)
        self.assert_state(ampd.run(urgent), "SUCCEEDED")
        end = ampd.wait(patient.id)
        self.assert_state(end, "SUCCEEDED")
        self.assertEqual(end.preemptions, 1)
        self.assertEqual(end.failures, 0)
        events = ampd.events(patient.id)
        self.assert_sequence(events)
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING", "PREEMPTING", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED"])
        self.assertEqual(losses_by_step(events), alone)

    def test_a_chain_of_jobs(self):
        first = self.ampd.submit(glyphs_job("first", steps=60))
        spec = glyphs_job("second", steps=5)
        second = self.ampd.submit(dict(spec, after_ok=[first.id[:24]]))
        third = self.ampd.submit(dict(spec, name="third", after=[second.id]))
        self.assert_state(self.ampd.wait(third.id), "SUCCEEDED")
        ends = [self.ampd.get(job.id) for job in (first, second, third)]
        for before, after in zip(ends, ends[1:]):
            self.assertLessEqual(before.end_time.ToNanoseconds(), after.start_time.ToNanoseconds())
        broken = self.ampd.submit(glyphs_job("broken", steps=100000))
        never = self.ampd.submit(dict(spec, name="never", after_ok=[broken.id]))
        self.ampd.ctl("cancel", broken.id)
        self.assert_state(self.ampd.wait(never.id), "CANCELLED")
        end = self.ampd.events(never.id)[-1].state_change
        self.assertIn(broken.id, end.reason)
        self.assertEqual(states(self.ampd.events(never.id)), ["QUEUED", "CANCELLED"])


if __name__ == "__main__":
    ampd_process.main()
