"""What overflow costs and how it is told: calibration from too high a scale, a sample no scale helps, a NaN."""

import os

import numpy as np

import ampd_process
from ampd_process import DaemonTest, failure_class, glyphs_job
from safetensors_file import read_safetensors

SAMPLES = 512
BATCH = 32
BAD = 100  # Not shuffled: batch 3 of each epoch.


class OverflowTest(DaemonTest):
    def arrays(self):
        """Two classes of 8x8 images that differ in brightness on the left and on the right."""
        rng = np.random.default_rng(5)
        labels = rng.integers(0, 2, SAMPLES)
        images = rng.normal(0, 0.5, (SAMPLES, 8, 8)).astype(np.float32)
        images[np.arange(SAMPLES), :, labels * 4] += 2
        return images, labels.astype(np.int64)

    def save(self, images, labels, name="train"):
        np.save(os.path.join(self.folder, f"{name}_x.npy"), images)
        np.save(os.path.join(self.folder, f"{name}_y.npy"), labels)

    def job(self, **fields):
        spec = {
            "name": "overflow",
            "model": {
                "layers": [
                    {"name": "conv", "conv2d": {"filters": 8, "kernel": [3, 3], "padding": "SAME"}},
                    {"name": "bn", "batch_norm": {}},
                    {"name": "act", "relu": {}},
                    {"name": "flat", "flatten": {}},
                    {"name": "head", "dense": {"units": 2}},
                ],
                "loss": {"softmax_cross_entropy": {}},
            },
            "data": {
                "train": {"npy": {"inputs": "train_x.npy", "targets": "train_y.npy"}},
                "eval": {"npy": {"inputs": "eval_x.npy", "targets": "eval_y.npy"}},
                "shuffle": False,
            },
            "precision": {"mode": "FP16", "loss_scale": {"init": 1024}},
            "optimizer": {"adamw": {"learning_rate": 0.003}},
            "train": {"epochs": 4, "batch_size": BATCH},
            "report": {"every_steps": 1},
        }
        spec.update(fields)
        return spec

    def test_a_scale_far_too_high_is_halved_until_it_fits(self):
        ampd = self.daemon()
        spec = glyphs_job(steps=200, precision={"mode": "FP16", "loss_scale": {"init": 1e30}})
        job_id = ampd.submit(spec).id
        events = ampd.events(job_id)
        job = ampd.get(job_id)
        self.assert_state(job, "SUCCEEDED")

        calibration = [e.overflow_skip for e in events if e.HasField("overflow_skip") and e.overflow_skip.calibration]
        self.assertGreater(len(calibration), 40)
        scale = float(np.float32(1e30))
        for number, skip in enumerate(calibration, 1):
            self.assertEqual(skip.step, number)
            self.assertEqual((skip.scale_before, skip.scale_after), (scale, scale / 2))
            self.assertNotEqual(skip.first_tensor, "")
            scale /= 2
        reports = {e.step.last_step: e.step.phases[0] for e in events if e.HasField("step")}
        for skip in calibration:
            self.assertEqual(reports[skip.step].steps_applied, 0)
        self.assertEqual(reports[len(calibration) + 1].steps_applied, 1)
        self.assertEqual(reports[len(calibration) + 1].loss_scale, scale)
        # And training then works: better than guessing one of ten.
        self.assertGreater(job.summary.accuracy, 0.2)

    def test_a_sample_beyond_fp16_costs_one_skip_an_epoch(self):
        images, labels = self.arrays()
        self.save(images[:256], labels[:256], "eval")
        self.save(images, labels)
        ampd = self.daemon(data_roots=[self.folder])
        clean = ampd.run(self.job())
        self.assert_state(clean, "SUCCEEDED")

        images[BAD, 3, 3] = 1e6
        self.save(images, labels)
        job_id = ampd.submit(self.job()).id
        events = ampd.events(job_id)
        job = ampd.get(job_id)
        self.assert_state(job, "SUCCEEDED")
        skips = [e.overflow_skip for e in events if e.HasField("overflow_skip")]
        self.assertEqual([(s.epoch, s.batch) for s in skips], [(epoch, BAD // BATCH) for epoch in (1, 2, 3, 4)])
        for skip in skips:
            self.assertIn(skip.Stage.Name(skip.stage), ("INPUT", "FORWARD"))
            self.assertFalse(skip.calibration)
            self.assertEqual(skip.scale_before, skip.scale_after)
            self.assertNotEqual(skip.first_tensor, "")
        self.assertEqual(job.summary.steps_skipped, 4)
        self.assertEqual(job.summary.loss_scale, clean.summary.loss_scale)
        self.assertGreater(clean.summary.accuracy, 0.95)
        self.assertGreaterEqual(job.summary.accuracy, clean.summary.accuracy - 0.02)

        folder = os.path.join(self.folder, "checkpoint")
        self.assertEqual(ampd.ctl("download", job_id, folder).returncode, 0)
        model = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.assertIn("bn.running_mean", model)
        for name, values in model.items():
            self.assertTrue(np.isfinite(values).all(), name)

    def test_nan_in_the_data_fails_the_job_and_names_the_sample(self):
        images, labels = self.arrays()
        self.save(images[:256], labels[:256], "eval")
        images[BAD, 0, 0] = np.nan
        self.save(images, labels)
        ampd = self.daemon(data_roots=[self.folder])
        for mode in ("FP32", "FP16", "BF16"):
            with self.subTest(mode=mode):
                job = ampd.run(self.job(precision={"mode": mode}))
                self.assert_state(job, "FAILED")
                self.assertEqual(failure_class(job.failure), "DATA", job.failure.message)
                self.assertRegex(job.failure.message, rf"sample {BAD}\b")
        self.assert_healthy(ampd)


if __name__ == "__main__":
    ampd_process.main()
