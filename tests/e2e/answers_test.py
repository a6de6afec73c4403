"""plan, why, cost, histogram and diff against a real daemon."""

import json
import os
import re
import select
import subprocess
import unittest
import xml.etree.ElementTree

from ampd.v1 import job_pb2

from ampd_process import DEADLINE, DaemonTest, glyphs_job, program

MISALIGNED = {
    "name": "misaligned",
    "model": {
        "layers": [
            {"name": "stem", "conv2d": {"filters": 30, "kernel": [3, 3], "padding": "SAME", "activation": "RELU"}},
            {"name": "conv", "conv2d": {"filters": 30, "kernel": [3, 3], "padding": "SAME", "activation": "RELU"}},
            {"name": "pool", "max_pool": {"size": [4, 4]}},
            {"name": "flat", "flatten": {}},
            {"name": "hidden", "dense": {"units": 100, "activation": "RELU"}},
            {"name": "head", "dense": {"units": 50257}},
        ],
        "loss": {"softmax_cross_entropy": {}},
    },
    "data": {"train": {"glyphs": {"samples": 256}}},
    "precision": {"mode": "FP16"},
    "train": {"steps": 1, "batch_size": 33},
}


class AnswersTest(DaemonTest):
    def ctl(self, ampd, code, *arguments):
        result = ampd.ctl(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result.stdout if code == 0 else result.stderr

    def plan(self, ampd, spec, *arguments):
        return json.loads(self.ctl(ampd, 0, "plan", self.job_file(spec), "-o", "json", *arguments))

    def test_plan_for_a_gpu_that_is_not_here(self):
        ampd = self.daemon()
        text = self.ctl(ampd, 0, "plan", self.job_file(MISALIGNED), "--gpu", "a100-sxm-40gb", "--modes", "fp16,bf16")
        rows = text[:text.index("Advice")].splitlines()
        self.assertLessEqual(max(map(len, rows)), 120, text)
        for part in ("A100-SXM-40GB:", "C 30->32, F 30->32", "MAX BATCH", "SPEED-UP", "Advice", "50264"):
            self.assertIn(part, text)
        self.assertNotIn("TF32  ", text)
        self.assertIn("no tensor cores", self.ctl(ampd, 0, "plan", self.job_file(MISALIGNED), "--gpu", "P100"))

    def test_a_plan_says_what_runs_as_one_and_who_was_asked(self):
        ampd = self.daemon()
        # The planner asks the library from within its sandbox.
        linked = subprocess.run(["ldd", program("ampd-worker")], capture_output=True, text=True, check=True).stdout
        text = self.ctl(ampd, 0, "plan", self.job_file(glyphs_job()), "--gpu", "H200")
        report = self.plan(ampd, glyphs_job(), "--gpu", "H200")
        self.assertIn("RUNS AS ONE", text)
        if "libcudnn" in linked:
            self.assertEqual(report["library_not_asked"], "")
            self.assertRegex(report["library"], r"^cuDNN 9\.")
            self.assertIn(f"as {report['library']} plans them for H200", text)
        else:
            self.assertEqual(report["library"], "")
            self.assertIn("built without", report["library_not_asked"])
            self.assertIn(report["library_not_asked"], text)

    def test_advice_that_is_followed_helps(self):
        ampd = self.daemon()
        before = self.plan(ampd, MISALIGNED, "--gpu", "A100-SXM-40GB", "--modes", "FP16")
        self.assertGreaterEqual(len(before["advice"]), 3)
        followed = [a for a in before["advice"] if a["field"] and a["kind"] in ("ALIGN", "PAD_VOCABULARY")]
        self.assertTrue(followed)
        sets = [part for a in followed for part in ("--set", f"{a['field']}={a['value']}")]
        after = self.plan(ampd, MISALIGNED, "--gpu", "A100-SXM-40GB", "--modes", "FP16", *sets)

        def seconds_a_sample(report):
            floor = next(m for m in report["modes"] if m["mode"] == "FP16")["step_seconds"]
            return floor / int(report["spec"]["train"]["batch_size"])

        self.assertLess(seconds_a_sample(after), seconds_a_sample(before))

    def test_a_plan_for_this_machine_tells_memory_and_invents_no_times(self):
        ampd = self.daemon()
        report = self.plan(ampd, glyphs_job(mode="BF16"))
        self.assertEqual(report["device_model"]["name"], "CPU")
        self.assertGreater(int(report["device_model"]["memory_bytes"]), 0)
        bf16 = next(m for m in report["modes"] if m["mode"] == "BF16")
        self.assertEqual(int(bf16["total_bytes"]) // 4096 > 0, True)
        self.assertGreater(int(bf16["largest_batch"]), 32)
        self.assertEqual(bf16["step_seconds"], 0)
        self.assertIn("is not known", self.ctl(ampd, 0, "plan", self.job_file(glyphs_job())))

    def test_what_cannot_be_planned_is_told_by_field(self):
        ampd = self.daemon()
        error = self.ctl(ampd, 2, "plan", self.job_file(glyphs_job()), "--gpu", "Abacus")
        self.assertIn("no kind of device is called 'Abacus'; there are", error)
        self.ctl(ampd, 2, "plan", self.job_file(glyphs_job()), "--modes", "fp12")
        self.assertIn("train.batch_size", self.ctl(ampd, 2, "plan", self.job_file(glyphs_job()), "--set", "train.batch_size=0"))

    def test_why_cost_and_diff(self):
        ampd = self.daemon(config={"device_models": [{"name": "CPU", "usd_per_hour": 7.2}]})
        first = ampd.run(glyphs_job(steps=20, mode="FP16")).id
        second = ampd.run(glyphs_job(steps=20, mode="FP32", batch_size=16)).id
        self.assertIn("succeeded", self.ctl(ampd, 0, "why", first))
        long = ampd.submit(glyphs_job(steps=1000000)).id
        waiting = ampd.submit(glyphs_job(steps=1)).id
        ampd.wait_for_step(long, 5)
        why = self.ctl(ampd, 0, "why", waiting)
        self.assertIn("queued", why)
        self.assertIn(f"{long} glyphs holds cpu-0", why)
        # What bounds it depends on the machine and its load.
        self.assertRegex(self.ctl(ampd, 0, "why", long), r"glyphs: RUNNING\n(slow|speed)")
        json.loads(self.ctl(ampd, 0, "why", long, "-o", "json"))
        # What explains them is taken from the events of a job that has ended, and holds no device any more.
        self.assertRegex(self.ctl(ampd, 0, "why", first), "the peaks of its device, CPU, are not|slow: input-bound")
        self.assert_one_price(ampd, first)
        cost = self.cost(ampd, first)
        self.assertEqual(cost["useful_samples"], (20 - cost["steps_skipped"]) * 32)
        text = self.ctl(ampd, 0, "cost", first)
        self.assertIn("$7.20 an hour of CPU", text)
        total = re.search(r"cost: +(\$\S+), of which (\$\S+) ", text).groups()
        self.assertIn("cost:       {}, of which {} ".format(*total), self.ctl(ampd, 0, "get", first))
        self.assertIn("It has held no device yet", self.ctl(ampd, 0, "cost", waiting))
        diff = json.loads(self.ctl(ampd, 0, "diff", first, second, "-o", "json"))
        self.assertIn({"field": "precision.mode", "a": "FP16", "b": "FP32"}, diff["fields"])
        self.assertEqual(diff["curves"]["main"][-1][0], 20)
        text = self.ctl(ampd, 0, "diff", first, second)
        self.assertIn("train.batch_size", text)
        self.assertRegex(text, r"\ndevice +cpu-0 +cpu-0\n")
        self.ctl(ampd, 0, "cancel", long)

    def test_diff_tells_whether_equal_bits_can_be_expected(self):
        ampd = self.daemon()
        first, second = (ampd.run(glyphs_job(steps=20, mode="FP16")).id for _ in range(2))
        told = [event for event in ampd.events(first) if event.HasField("environment")]
        self.assertEqual(len(told), 1)
        version = subprocess.check_output([program("ampd-worker"), "--version"], text=True).strip()
        self.assertRegex(version, r"^\d+\.\d+\.\d+(\+g[0-9a-f]{7}(\.dirty)?)?$")
        self.assertEqual(told[0].environment.engine_version, version)
        diff = json.loads(self.ctl(ampd, 0, "diff", first, second, "-o", "json"))
        self.assertEqual({"part": "engine", "a": version, "b": version}, diff["environment"][0])
        # A working tree with changes, and one without git, has an engine of unknown code.
        known = "+g" in version and not version.endswith(".dirty")
        self.assertEqual(diff["deterministic"], known, diff["deterministic_reason"])
        losses = diff["curves"]["main"]
        self.assertGreater(len(losses), 0)
        self.assertEqual([a for _, a, _ in losses], [b for _, _, b in losses])
        if known:
            self.assertIn("\nboth computed with the same: equal specs", self.ctl(ampd, 0, "diff", first, second))
        more = glyphs_job(steps=20, mode="FP16")
        more["resources"]["cpu_threads"] = told[0].environment.cpu_threads + 1
        threads = json.loads(self.ctl(ampd, 0, "diff", first, ampd.run(more).id, "-o", "json"))
        self.assertFalse(threads["deterministic"])
        self.assertIn("other threads", threads["deterministic_reason"])
        self.assertIn("computes with  engine " + version, self.ctl(ampd, 0, "logs", first))

    def cost(self, ampd, job_id):
        return json.loads(self.ctl(ampd, 0, "cost", job_id, "-o", "json"))

    def assert_one_price(self, ampd, job_id, dollars_an_hour=7.2):
        """What `cost` tells is what the daemon charged, and agrees with the device time that the events tell."""
        # The worker holds its device until it is gone, a moment after its job's last event, and that is charged.
        before, cost, after = ampd.get(job_id), self.cost(ampd, job_id), ampd.get(job_id)
        for name in ("cost_usd", "wasted_usd"):
            told = cost[name.replace("cost_", "")]
            self.assertTrue(getattr(before, name) <= told <= getattr(after, name), (name, before, cost, after))
        self.assertAlmostEqual(cost["usd"] * 3600 / dollars_an_hour, cost["device_seconds"], delta=2)

    def test_nobody_pays_for_the_time_that_nobody_ran(self):
        ampd = self.daemon(config={"device_models": [{"name": "CPU", "usd_per_hour": 7.2}]})
        # What is told after the step that is waited for stays short of the next checkpoint, which leaves nothing to rewind.
        job = ampd.submit(glyphs_job(steps=1000000, every_steps=400)).id
        ampd.wait_for_step(job, 410)
        ampd.kill()
        # One that is being torn down has no command line, and is alive to the daemon.
        worker = os.pidfd_open(ampd.worker_pids()[0])
        ampd.kill_workers()
        self.assertTrue(select.select([worker], [], [], DEADLINE)[0])
        os.close(worker)
        ampd.start()
        next(e for e in ampd.watch(job) if e.attempt == 2 and e.HasField("step"))
        self.ctl(ampd, 0, "cancel", job)
        ampd.wait(job)
        events = ampd.events(job)
        at = [event.time.ToNanoseconds() * 1e-9 for event in events]
        back, = [i for i, e in enumerate(events) if "was lost" in e.state_change.reason]
        first, second = [i for i, e in enumerate(events) if e.state_change.to == job_pb2.Job.STARTING]
        cost = self.cost(ampd, job)
        self.assertGreater(at[back], at[back - 1])
        self.assertAlmostEqual(cost["device_seconds"], at[back - 1] - at[first] + at[-1] - at[second], places=4)
        self.assert_one_price(ampd, job)
        self.assertGreater(cost["steps_rewound"], 0)
        self.assertAlmostEqual(cost["skipped_usd"] + cost["rewound_usd"], cost["wasted_usd"])

    def test_why_knows_the_floor_of_the_mode_that_auto_took(self):
        peaks = {f"{mode}_flops": 1e12 for mode in ("fp32", "tf32", "fp16", "bf16", "fp8")}
        ampd = self.daemon(config={"device_models": [{"name": "CPU", "memory_bandwidth": 1e10, **peaks}]})
        spec = glyphs_job(steps=30, mode="AUTO")
        spec["precision"]["auto"] = {"modes": ["BF16"], "steps": 10}
        job = ampd.run(spec).id
        text = self.ctl(ampd, 0, "why", job)
        self.assertRegex(text, "times the floor of|waited for batches")
        self.assertNotIn("is not known", text)

    def test_why_names_what_failed(self):
        ampd = self.daemon()
        spec = glyphs_job(steps=20, mode="FP16")
        spec["optimizer"] = {"sgd": {"learning_rate": 1e30}}
        spec["retry"] = {"max_attempts": 1}
        spec["limits"] = {"max_skip_ratio": 0.1, "skip_window_steps": 10}
        job = ampd.run(spec)
        self.assert_state(job, "FAILED")
        why = self.ctl(ampd, 0, "why", job.id)
        self.assertRegex(why, "failed\n  (DIVERGED|LIMIT): ")
        self.assertIn("  -> ", why)

    def test_histogram(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job(steps=4, mode="FP16", report={"diagnostics_every_steps": 2})).id
        picture = os.path.join(self.folder, "gradients.svg")
        text = self.ctl(ampd, 0, "histogram", job, "--svg", picture)
        self.assertIn("step 4: ", text)
        self.assertIn("- normal", text)
        self.assertRegex(text, r"loss_scale: \{kind: STATIC, init: \d+\}")
        self.assertEqual(xml.etree.ElementTree.parse(picture).getroot().attrib["width"], "960")
        # One tensor is looked at, and the whole job's scale told.
        suggestion = re.search(r"Of all the job's gradients in .*\n.*\n", text).group()
        self.assertIn(suggestion, self.ctl(ampd, 0, "histogram", job, "--tensor", "head*"))
        self.assertIn("no tensor matches", self.ctl(ampd, 2, "histogram", job, "--tensor", "nothing*"))
        self.assertEqual(json.loads(self.ctl(ampd, 0, "histogram", job, "-o", "json"))["step"], 4)
        other = ampd.run(glyphs_job(steps=1)).id
        self.assertIn("diagnostics_every_steps", self.ctl(ampd, 2, "histogram", other))


if __name__ == "__main__":
    unittest.main(verbosity=2)
