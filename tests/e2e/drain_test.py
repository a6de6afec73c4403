"""SIGTERM: the daemon checkpoints, requeues and exits 0; the next one goes on where it stopped."""

import os
import pty
import signal
import struct
import subprocess

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job, losses_by_step, program, state_name, states

STEPS = 800


def job(name):
    return glyphs_job(name, steps=STEPS, mode="FP16", batch_size=64)


class DrainTest(DaemonTest):
    def test_a_drained_job_goes_on_as_if_nothing_had_happened(self):
        ampd = self.daemon()
        plain = losses_by_step(ampd.events(ampd.submit(job("plain")).id))
        drained = ampd.submit(job("drained")).id
        waiting = ampd.submit(glyphs_job("waiting", steps=3)).id
        for step in (40, 200):
            # One that the attempt before reported says nothing of this one.
            ampd.wait_for_step(drained, max(step, ampd.get(drained).summary.step + 1))
            self.assertEqual(ampd.terminate(), 0, ampd.log())
            self.assertEqual(ampd.worker_pids(), [])
            ampd.start()
        self.assert_state(ampd.wait(drained), "SUCCEEDED")
        self.assert_state(ampd.wait(waiting), "SUCCEEDED")

        events = ampd.events(drained)
        self.assert_sequence(events)
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING"] * 3 + ["SUCCEEDED"])
        self.assertEqual([e for e in events if e.HasField("rewound")], [])
        reported = [e.step.last_step for e in events if e.HasField("step")]
        self.assertEqual(reported, list(range(1, STEPS + 1)), "nothing is repeated")
        again = losses_by_step(events)
        different = [s for s in plain if struct.pack("<d", plain[s]) != struct.pack("<d", again[s])]
        self.assertEqual(different, [])
        # A drain is no failure of the job.
        self.assertEqual(ampd.get(drained).failures, 0)

    def test_a_drain_with_nothing_to_do_exits_at_once(self):
        ampd = self.daemon()
        ampd.process.send_signal(signal.SIGINT)
        self.assertEqual(ampd.process.wait(timeout=30), 0)

    def test_a_hangup_is_no_end(self):
        """Of a daemon without a terminal, who is asked to read its configuration anew."""
        ampd = self.daemon()
        ampd.process.send_signal(signal.SIGHUP)
        eventually(lambda: "SIGHUP: nothing is reloaded" in ampd.log(), "its answer")
        self.assert_state(ampd.run(glyphs_job(steps=3)), "SUCCEEDED")
        self.assertEqual(ampd.terminate(), 0)

    def test_a_lost_terminal_drains(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        command = [program("ampd"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                   "--state-dir", os.path.join(self.folder, "by_hand")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as ampd:
            os.close(theirs)
            self.assertIn(b"ampd ready", ampd.stdout.readline())
            ampd.send_signal(signal.SIGHUP)
            self.assertEqual(ampd.wait(timeout=30), 0)
        self.assertIn(b"drained", os.read(ours, 1 << 16))

    def test_a_queued_job_survives(self):
        ampd = self.daemon()
        running = ampd.submit(glyphs_job("running", steps=100000)).id
        queued = ampd.submit(glyphs_job("queued", steps=2)).id
        ampd.wait_for_step(running, 2)
        self.assertEqual(ampd.terminate(), 0)
        ampd.start()
        job = ampd.get(queued)
        self.assertEqual(state_name(job.state), "QUEUED")
        self.assertEqual(ampd.ctl("cancel", running).returncode, 0)
        self.assert_state(ampd.wait(queued), "SUCCEEDED")


if __name__ == "__main__":
    ampd_process.main()
