"""/metrics, /healthz and /readyz of a daemon that works."""

import re
import shutil
import subprocess
import time

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job


def samples(text):
    """{(name, labels): value} of the text exposition format."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(\{.*\})? (\S+)', line, re.I)
        if match and not line.startswith("#"):
            found[match[1], match[2] or ""] = float(match[3])
    return found


class MetricsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()

    def scrape(self):
        status, text = self.ampd.http("/metrics")
        self.assertEqual(status, 200)
        return samples(text)

    def promtool(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus)")
        text = self.ampd.http("/metrics")[1]
        result = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_promtool_has_nothing_to_say_before_during_and_after_a_job(self):
        self.promtool()
        job_id = self.ampd.submit(glyphs_job(steps=400, mode="FP16")).id
        self.ampd.wait_for_step(job_id, 20)
        self.promtool()
        self.ampd.wait(job_id)
        self.promtool()

    def test_a_running_job_is_seen(self):
        job_id = self.ampd.submit(glyphs_job(steps=100000, mode="FP16")).id
        waiting = self.ampd.submit(glyphs_job("waiting", steps=2)).id
        self.ampd.wait_for_step(job_id, 20)
        now = self.scrape()
        main = f'{{job_id="{job_id}",phase="main"}}'
        one = f'{{job_id="{job_id}"}}'
        for name, labels in [("ampd_job_loss", main), ("ampd_job_loss_scale", main), ("ampd_job_learning_rate", main),
                             ("ampd_job_gradient_norm", main), ("ampd_job_steps_applied_total", main),
                             ("ampd_job_steps_skipped_total", main), ("ampd_job_samples_total", one),
                             ("ampd_job_input_wait_seconds_total", one), ("ampd_job_samples_per_second", one),
                             ("ampd_job_step_seconds", one), ("ampd_job_last_progress_timestamp_seconds", one)]:
            self.assertIn((name, labels), now)
        self.assertLess(abs(now["ampd_job_last_progress_timestamp_seconds", one] - time.time()), 60)
        self.assertEqual(now["ampd_jobs_queued", '{reason="resources"}'], 1)
        self.assertLess(now["ampd_oldest_queued_seconds", ""], 60)
        self.assertEqual(now["ampd_rpcs_total", '{code="OK",method="CreateJob"}'], 2)
        self.assertEqual(now["ampd_rpc_seconds_count", '{method="CreateJob"}'], 2)
        self.assertGreater(now["ampd_state_dir_free_bytes", ""], 1e6)
        self.assertEqual(now["ampd_job_queue_seconds_count", ""], 1)
        self.assertGreater(now["ampd_event_lag_seconds_count", ""], 0)
        # A CPU's peak is not known.
        self.assertNotIn(("ampd_job_model_flops_utilization_ratio", one), now)
        self.assertGreater(now["ampd_job_loss", main], 0)
        self.assertGreaterEqual(now["ampd_job_loss_scale", main], 1)
        applied, skipped = now["ampd_job_steps_applied_total", main], now["ampd_job_steps_skipped_total", main]
        self.assertGreaterEqual(applied + skipped, 20)
        self.assertEqual(now["ampd_job_samples_total", one], 32 * (applied + skipped))
        self.assertEqual(now["ampd_jobs", '{state="running"}'], 1)
        self.assertEqual(now["ampd_queue_depth", ""], 1)
        self.assertEqual(now["ampd_device_busy", '{device="cpu-0"}'], 1)
        self.assertGreater(now["ampd_device_memory_size_bytes", '{device="cpu-0"}'], 0)
        eventually(lambda: self.scrape()["ampd_device_utilization_ratio", '{device="cpu-0"}'] > 0, "a busy device")
        for job in (job_id, waiting):
            self.ampd.ctl("cancel", job)
            self.ampd.wait(job)
        self.assertEqual(self.scrape()["ampd_queue_depth", ""], 0)

    def test_totals_agree_with_the_jobs_and_survive_a_restart(self):
        self.assert_state(self.ampd.run(glyphs_job(steps=30)), "SUCCEEDED")
        before = self.scrape()
        self.assertEqual(before["ampd_steps_applied_total", ""], 30)
        self.assertEqual(before["ampd_samples_total", ""], 30 * 32)
        self.assertEqual(before["ampd_jobs", '{state="succeeded"}'], 1)
        self.assertEqual(before["ampd_jobs_succeeded_total", ""], 1)
        # Free once the worker's process is gone, a moment after the job's end.
        eventually(lambda: self.scrape()["ampd_device_busy", '{device="cpu-0"}'] == 0, "a free device")
        self.ampd.kill()
        self.ampd.start()
        after = self.scrape()
        for name in ("ampd_steps_applied_total", "ampd_samples_total", "ampd_jobs_succeeded_total"):
            self.assertEqual(after[name, ""], before[name, ""])
        self.assertEqual(after["ampd_jobs", '{state="succeeded"}'], 1)

    def test_counters_of_a_job_do_not_go_back_with_its_steps(self):
        job_id = self.ampd.submit(glyphs_job("lost", steps=1000000)).id
        self.ampd.wait_for_step(job_id, 200)
        series = ("ampd_job_steps_applied_total", f'{{job_id="{job_id}",phase="main"}}')
        before = self.scrape()[series]
        self.assertGreaterEqual(before, 200)
        # The worker as well, before its first checkpoint: all steps are lost.
        self.ampd.kill()
        self.ampd.kill_workers()
        self.ampd.start()
        after = eventually(lambda: self.scrape().get(series), "steps of the next attempt")
        self.assertGreaterEqual(after, before)
        self.ampd.ctl("cancel", job_id)
        self.assertEqual([event.rewound.to_step for event in self.ampd.events(job_id) if event.HasField("rewound")], [0])

    def test_health(self):
        self.assertEqual(self.ampd.http("/healthz")[0], 200)
        self.assertEqual(self.ampd.http("/readyz")[0], 200)
        self.assertEqual(self.ampd.http("/no-such-page")[0], 404)


if __name__ == "__main__":
    ampd_process.main()
