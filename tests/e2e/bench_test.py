"""Measuring through a real daemon: ampctl bench, and precision mode AUTO."""

import csv
import io
import json
import os
import xml.dom.minidom

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job
from ampd.v1 import precision_pb2

Mode = precision_pb2.PrecisionSpec


def cells_of(events):
    """Cells as a watcher keeps them: those after a rewind are measured again."""
    cells = []
    for event in events:
        if event.HasField("bench_cell"):
            cells.append(event.bench_cell)
        if event.HasField("rewound"):
            cells = [cell for cell in cells if cell.index <= event.rewound.to_step]
    return cells


class BenchTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()

    def bench(self, *arguments, code=0):
        result = self.ampd.ctl("bench", *arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout

    def test_two_modes_at_two_batches(self):
        plot = os.path.join(self.folder, "bench.svg")
        text = self.bench(self.job_file(glyphs_job()), "--modes", "fp32,bf16", "--batch", "16,32", "--steps", "3",
                          "--warmup", "1", "-o", "json", "--svg", plot)
        cells = json.loads(text)
        self.assertEqual([(c["batch_size"], c["mode"]) for c in cells],
                         [(16, "FP32"), (16, "BF16"), (32, "FP32"), (32, "BF16")])
        for cell in cells:
            self.assertEqual(cell["steps"], 3)
            self.assertGreater(cell["samples_per_second"], 0)
            self.assertGreater(cell["peak_memory_bytes"], 0)
            self.assertNotIn("failure", cell)
        lines = xml.dom.minidom.parse(plot).getElementsByTagName("path")
        self.assertEqual(len(lines), 4, "a line a mode in each of the two charts")
        listed = self.ampd.ctl("list").stdout
        self.assertIn("bench", listed)
        self.assertIn("4/4", listed)

    def test_what_does_not_fit_is_marked(self):
        job = glyphs_job(data={"train": {"glyphs": {"samples": 1 << 20}}})
        rows = list(csv.DictReader(io.StringIO(self.bench(
            self.job_file(job), "--modes", "bf16", "--batch", "16,1048576", "--steps", "2", "--warmup", "0", "-o", "csv"))))
        self.assertEqual([row["failure"].split(":")[0] for row in rows], ["", "", "OUT_OF_MEMORY", "OUT_OF_MEMORY"])
        self.assertEqual(rows[2]["step_seconds"], "")
        self.assertGreater(float(rows[1]["step_seconds"]), 0)
        self.assert_healthy(self.ampd)

    def test_products_without_a_model(self):
        text = self.bench("gemm", "--sizes", "16,24", "--modes", "bf16", "--steps", "2")
        self.assertIn("GFLOP/s", text)
        self.assertEqual(len(text.splitlines()), 5, text)
        self.assertIn("3x3", self.bench("conv", "--sizes", "4", "--kernels", "3", "--image", "8", "--steps", "1"))

    def test_refusals_name_the_field(self):
        job = self.job_file(glyphs_job())
        self.assertIn("--modes: no such mode 'bf17'", self.ampd.ctl("bench", job, "--modes", "bf17").stderr)
        self.assertIn("bench.batch_sizes[0]", self.ampd.ctl("bench", job, "--batch", "0").stderr)
        self.assertIn("are for gemm and conv", self.ampd.ctl("bench", job, "--sizes", "3").stderr)
        self.bench(job, "--modes", "bf17", code=2)

    def test_a_killed_measurement_has_no_cell_twice(self):
        spec = glyphs_job(bench={"modes": ["BF16"], "batch_sizes": [8, 16, 24], "steps": 40, "warmup_steps": 1})
        job = self.ampd.submit(spec)
        for event in self.ampd.watch(job.id):
            if event.HasField("bench_cell") and event.bench_cell.index == 2:
                break
        self.ampd.kill_workers()
        events = self.ampd.events(job.id)
        self.assert_state(self.ampd.get(job.id), "SUCCEEDED")
        cells = cells_of(events)
        self.assertEqual([cell.index for cell in cells], [1, 2, 3, 4, 5, 6])
        self.assertEqual([cell.batch_size for cell in cells], [8, 8, 16, 16, 24, 24])


class AutoTest(DaemonTest):
    def test_a_killed_job_keeps_its_mode(self):
        ampd = self.daemon()
        spec = glyphs_job(steps=60, mode="AUTO", every_steps=5)
        spec["precision"]["auto"] = {"modes": ["BF16", "FP16"], "steps": 10}
        job = ampd.submit(spec)
        ampd.wait_for_step(job.id, 10)
        ampd.kill_workers()
        events = ampd.events(job.id)
        job = ampd.get(job.id)
        self.assert_state(job, "SUCCEEDED")
        chosen = [event for event in events if event.HasField("mode_chosen")]
        self.assertEqual(len(chosen), job.attempt)
        self.assertGreater(job.attempt, 1)
        first = chosen[0].mode_chosen
        self.assertEqual([Mode.Mode.Name(cell.mode) for cell in first.cells], ["FP32", "BF16", "FP16"])
        self.assertIn("BF16: ", first.reason)
        self.assertEqual(first, chosen[-1].mode_chosen, "the comparison is made once")
        self.assertEqual(job.summary.mode, first.mode)
        self.assertIn(f"{Mode.Mode.Name(first.mode)} (AUTO)", ampd.ctl("list").stdout)
        self.assertEqual(job.summary.step, 60)

    def test_a_decision_outlives_the_daemon(self):
        ampd = self.daemon()
        spec = glyphs_job(steps=30, mode="AUTO")
        spec["precision"]["auto"] = {"modes": ["BF16"], "steps": 10}
        job = ampd.submit(spec)
        eventually(lambda: ampd.get(job.id).summary.mode, "a choice")
        mode = ampd.get(job.id).summary.mode
        ampd.kill()
        ampd.start()
        self.assert_state(ampd.wait(job.id), "SUCCEEDED")
        self.assertEqual(ampd.get(job.id).summary.mode, mode)


if __name__ == "__main__":
    ampd_process.main()
