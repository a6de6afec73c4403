"""kill -9 of the worker, of the daemon, and of both, at random moments: jobs end, events stay whole, losses the same."""

import struct

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job, losses_by_step, states

STEPS = 1000
ROUNDS = 3


def job(name):
    return glyphs_job(name, steps=STEPS, mode="FP16", batch_size=64, every_steps=37, retry={"max_attempts": 20})


def bits(losses):
    return {step: struct.pack("<d", loss) for step, loss in losses.items()}


class KillTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()
        self.random = ampd_process.seeded_random()
        uninterrupted = self.ampd.submit(job("uninterrupted"))
        self.expected = bits(losses_by_step(self.ampd.events(uninterrupted.id)))
        self.assertEqual(sorted(self.expected), list(range(1, STEPS + 1)))
        self.assert_state(self.ampd.get(uninterrupted.id), "SUCCEEDED")

    def interrupted_job(self, interrupt):
        """Submits a job, calls interrupt() at random moments of it, and gives its events."""
        job_id = self.ampd.submit(job("interrupted")).id
        low = 1
        for part in range(ROUNDS):
            high = (part + 1) * STEPS * 3 // (5 * ROUNDS)
            step = self.random.randrange(low, high)
            self.ampd.wait_for_step(job_id, step)
            interrupt()
            low = high
        job_ended = self.ampd.wait(job_id)
        self.assert_state(job_ended, "SUCCEEDED")
        events = self.ampd.events(job_id)
        self.assert_sequence(events)
        return events

    def assert_same_training(self, events):
        got = bits(losses_by_step(events))
        self.assertEqual(sorted(got), sorted(self.expected))
        different = [step for step in sorted(got) if got[step] != self.expected[step]]
        self.assertEqual(different, [], "steps whose loss differs from the uninterrupted run's")

    def assert_repeats_are_marked(self, events):
        """A step report follows the one before it, or the `rewound` that leads back to it."""
        last = 0
        for event in events:
            if event.HasField("rewound"):
                self.assertLess(event.rewound.to_step, last)
                last = event.rewound.to_step
            elif event.HasField("step"):
                self.assertEqual(event.step.first_step, last + 1)
                last = event.step.last_step
        self.assertEqual(last, STEPS)

    def rewinds(self, events):
        return [e.rewound.to_step for e in events if e.HasField("rewound")]

    def kill_worker(self):
        self.assertEqual(len(eventually(self.ampd.kill_workers, "a worker to kill")), 1)

    def kill_daemon(self):
        self.ampd.kill()
        self.ampd.start()

    def kill_both(self):
        order = [self.ampd.kill, self.kill_worker]
        self.random.shuffle(order)
        for kill in order:
            kill()
        self.ampd.start()

    def test_worker(self):
        events = self.interrupted_job(self.kill_worker)
        self.assertEqual(states(events).count("RETRYING"), ROUNDS)
        self.assert_repeats_are_marked(events)
        self.assert_same_training(events)

    def test_daemon(self):
        events = self.interrupted_job(self.kill_daemon)
        self.assertEqual(self.rewinds(events), [])
        self.assertEqual(states(events).count("RECOVERING"), ROUNDS)
        self.assertEqual({event.attempt for event in events} - {0}, {1})
        reported = [event.step.last_step for event in events if event.HasField("step")]
        self.assertEqual(reported, list(range(1, STEPS + 1)), "nothing is repeated")
        self.assert_same_training(events)

    def test_both(self):
        events = self.interrupted_job(self.kill_both)
        # Neither is the job's failure.
        self.assertNotIn("RETRYING", states(events))
        self.assert_repeats_are_marked(events)
        self.assert_same_training(events)

    def test_the_worker_while_the_daemon_is_away(self):
        job_id = self.ampd.submit(job("orphaned")).id
        self.ampd.wait_for_step(job_id, 50)
        self.ampd.kill()
        self.kill_worker()
        eventually(lambda: not self.ampd.worker_pids(), "the worker's end")
        self.ampd.start()
        self.assert_state(self.ampd.wait(job_id), "SUCCEEDED")
        events = self.ampd.events(job_id)
        self.assert_sequence(events)
        self.assertEqual(len(self.rewinds(events)), 1)
        self.assert_same_training(events)


if __name__ == "__main__":
    ampd_process.main()
