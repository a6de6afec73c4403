"""on_stop: DETACH, workers that outlive their daemon; workers that nobody wants, and those that say nothing, are ended."""

import os
import re
import signal
import subprocess

import ampd_process
from ampd_process import DaemonTest, eventually, failure_class, glyphs_job, losses_by_step, state_name, states

# More than a daemon's three stops and starts take.
STEPS = 4000


def job(name):
    return glyphs_job(name, steps=STEPS, mode="FP16", batch_size=64)


def gone(pid):
    """A zombie whose parent is this test counts as gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class DetachTest(DaemonTest):
    def test_training_loses_no_step(self):
        ampd = self.daemon(config={"on_stop": "DETACH"})
        plain = losses_by_step(ampd.events(ampd.submit(job("plain")).id))
        job_id = ampd.submit(job("detached")).id
        waiting = ampd.submit(glyphs_job("waiting", steps=3)).id
        for step in (40, 200, 400):
            ampd.wait_for_step(job_id, step)
            workers = ampd.worker_pids()
            self.assertEqual(ampd.terminate(), 0, ampd.log())
            self.assertEqual(ampd.worker_pids(), workers, "the worker trains on")
            ampd.start()
            eventually(lambda: state_name(ampd.get(job_id).state) == "RUNNING", "the worker is back")
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.assert_state(ampd.wait(waiting), "SUCCEEDED")
        events = ampd.events(job_id)
        self.assert_sequence(events)
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING"] + ["RECOVERING", "RUNNING"] * 3 + ["SUCCEEDED"])
        self.assertEqual([e for e in events if e.HasField("rewound")], [])
        reported = [e.step.last_step for e in events if e.HasField("step")]
        self.assertEqual(reported, list(range(1, STEPS + 1)), "nothing is repeated, nothing lost")
        self.assertEqual(losses_by_step(events), plain)

    def test_a_worker_that_ends_meanwhile_is_not_held_against_its_job(self):
        ampd = self.daemon(config={"on_stop": "DETACH"})
        job_id = ampd.submit(job("finishes")).id
        ampd.wait_for_step(job_id, 300)
        self.assertEqual(ampd.terminate(), 0)
        ampd.kill_workers()
        eventually(lambda: not ampd.worker_pids(), "the worker's end")
        ampd.start()
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.assertEqual(ampd.get(job_id).failures, 0)


class OrphanTest(DaemonTest):
    def totals(self, ampd):
        """Of the fleet."""
        text = ampd.http("/metrics")[1]
        return {name: float(re.search(rf"^ampd_{name}_total (\S+)$", text, re.MULTILINE)[1])
                for name in ("steps_applied", "steps_skipped", "samples", "checkpoint_bytes")}

    def test_what_a_worker_trained_alone_counts(self):
        ampd = self.daemon(config={"reattach_timeout_seconds": 10})
        # The scale is found by some forty skips.
        spec = glyphs_job("alone", steps=300, mode="FP16", precision={"mode": "FP16", "loss_scale": {"init": 2.0 ** 50}})
        plain = ampd.run(spec)
        self.assert_state(plain, "SUCCEEDED")
        once = self.totals(ampd)
        job_id = ampd.submit(spec).id
        ampd.wait_for_step(job_id, 5)
        ampd.kill()
        eventually(lambda: not ampd.worker_pids(), "the end of the worker")
        with open(os.path.join(ampd.state_dir, "checkpoints", job_id, "LEFT")) as file:
            self.assertEqual(file.read(), "1 step-000000300\n", "it trained to the end")
        ampd.start()
        job = ampd.wait(job_id)
        self.assert_state(job, "SUCCEEDED")
        for field in ("step", "total_steps", "epoch", "steps_applied", "steps_skipped", "loss_scale", "eval_loss",
                      "accuracy", "checkpoint"):
            self.assertEqual(getattr(job.summary, field), getattr(plain.summary, field), field)
        # A mean, of which only the last step of those without reports is known.
        self.assertTrue(0 < job.summary.loss < 2 * plain.summary.loss + 0.5, job.summary.loss)
        events = ampd.events(job_id)
        self.assertLess(max(event.step.last_step for event in events if event.HasField("step")), 300)
        self.assertEqual([event.checkpoint.already_written for event in events if event.HasField("checkpoint")], [True])
        both = self.totals(ampd)
        for name in ("steps_applied", "steps_skipped", "samples"):
            self.assertEqual(both[name], 2 * once[name], name)
        self.assertEqual(both["checkpoint_bytes"], once["checkpoint_bytes"])
        self.assertNotIn("ampd_checkpoint_write_seconds_count", ampd.http("/metrics")[1])

    def test_a_stopped_worker_of_no_job_is_ended_by_the_next_daemon(self):
        ampd = self.daemon()
        running = ampd.submit(job("running")).id
        ampd.wait_for_step(running, 20)
        mine = ampd.worker_pids()
        ampd.kill()
        # As the workers of this state directory, of an attempt that never was; stopped, so that it cannot end by itself.
        work = os.path.join(self.folder, "work")
        os.makedirs(work)
        stale = subprocess.Popen(
            [ampd_process.program("ampd-worker"), "--socket-dir", ampd.state_dir, "--work-dir", work, "--job", running,
             "--attempt", "7"], env={"AMPD_WORKER_TOKEN": "none"}, stderr=subprocess.DEVNULL)
        self.addCleanup(stale.kill)
        stale.send_signal(signal.SIGSTOP)
        ampd.start()
        self.assertEqual(stale.wait(timeout=60), -signal.SIGKILL)
        self.assert_state(ampd.wait(running), "SUCCEEDED")
        self.assertEqual(states(ampd.events(running)).count("STARTING"), 1, "its own worker was left alone")
        eventually(lambda: all(gone(pid) for pid in mine), "the end of the worker")

    def test_a_silent_worker_is_ended_and_classified(self):
        ampd = self.daemon(config={"heartbeat_timeout_seconds": 3})
        job_id = ampd.submit(job("silent")).id
        ampd.wait_for_step(job_id, 20)
        worker, = ampd.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.assertTrue(gone(worker))
        events = ampd.events(job_id)
        self.assert_sequence(events)
        failures = [e.state_change.failure for e in events if e.HasField("state_change") and e.state_change.HasField("failure")]
        self.assertEqual([failure_class(failure) for failure in failures], ["WORKER_CRASH"])
        self.assertIn("no sign of life from the worker for 3s", failures[0].message)


if __name__ == "__main__":
    ampd_process.main()
