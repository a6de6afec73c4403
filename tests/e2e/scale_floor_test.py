"""At the floor of the loss scale a job falls back to BF16 or rolls back, also across a killed worker; and what fp16 would
do to its gradients is told."""

import json
import os

import numpy as np

import ampd_process
from ampd_process import DaemonTest, failure_class

SAMPLES = 256
BATCH = 32
FLOOR = 64
# Batches of each epoch, from 0 (not shuffled), whose gradients overflow fp16 at every scale from the floor on.
BAD = (3, 4, 5)


class ScaleFloorTest(DaemonTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        x = rng.normal(0, 1, (SAMPLES, 16)).astype(np.float32)
        y = x.sum(axis=1) / 4
        # The loss is finite; its gradient, 2 * 60000 / 32 * scale, is not.
        y[[batch * BATCH + 5 for batch in BAD]] = 60000
        np.save(os.path.join(self.folder, "x.npy"), x)
        np.save(os.path.join(self.folder, "y.npy"), y.astype(np.float32))

    def job(self, on_floor, epochs=3, **fields):
        spec = {
            "name": "floor",
            "model": {
                "layers": [
                    {"name": "a", "dense": {"units": 8, "activation": "RELU"}},
                    {"name": "b", "dense": {"units": 1}},
                ],
                "loss": {"mean_squared_error": {}},
            },
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "precision": {"mode": "FP16", "loss_scale": {"init": 4 * FLOOR, "min": FLOOR, **on_floor}},
            "optimizer": {"adamw": {"learning_rate": 0.01}, "clip_global_norm": 1},
            "train": {"epochs": epochs, "batch_size": BATCH},
            "report": {"every_steps": 1},
        }
        spec.update(fields)
        return spec

    def test_fallback_is_told_and_survives_a_killed_worker(self):
        ampd = self.daemon(data_roots=[self.folder])
        # The worker is killed while the job runs in BF16.
        job_id = ampd.submit(self.job({"on_floor": "FALLBACK_BF16"}, epochs=400, checkpoint={"every_steps": 50})).id
        ampd.wait_for_step(job_id, 400)
        ampd.kill_workers()
        events = ampd.events(job_id)
        job = ampd.get(job_id)
        self.assert_state(job, "SUCCEEDED")
        changes = [e.precision_change for e in events if e.HasField("precision_change")]
        self.assertEqual(len(changes), 1)
        self.assertEqual(changes[0].step, BAD[-1] + 1)
        self.assertGreater(job.attempt, 1)
        resumed = [e.rewound.reason for e in events if e.HasField("rewound")]
        resumed += [e.log.text for e in events if e.HasField("log")]
        self.assertTrue(any("BF16" in text for text in resumed), resumed)
        self.assertEqual(job.summary.steps_skipped, len(BAD))
        self.assertEqual(job.summary.loss_scale, 1)
        text = ampd.ctl("watch", job_id).stdout
        self.assertIn("precision FP16 -> BF16 after step 6: the gradients overflow at the smallest loss scale, 64", text)

    def test_rollbacks_are_told_and_bounded(self):
        ampd = self.daemon(data_roots=[self.folder])
        job = self.job({"on_floor": "ROLLBACK", "max_rollbacks": 2}, checkpoint={"every_steps": 1, "keep_last": 9})
        job_id = ampd.submit(job).id
        events = ampd.events(job_id)
        job = ampd.get(job_id)
        self.assert_state(job, "FAILED")
        self.assertEqual(failure_class(job.failure), "DIVERGED")
        self.assertIn("after 2 rollbacks", job.failure.message)
        self.assert_sequence(events)
        rewound = [e.rewound for e in events if e.HasField("rewound")]
        self.assertEqual([r.to_step for r in rewound][:2], [BAD[0]] * 2)
        self.assertIn("rollback 1 of 2 to checkpoint step-000000003", rewound[0].reason)
        skips = [e.overflow_skip.step for e in events if e.HasField("overflow_skip")]
        self.assertEqual(skips[:9], [4, 5, 6] * 3)

    def test_gradient_diagnostics_reach_the_watcher(self):
        ampd = self.daemon(data_roots=[self.folder])
        job = self.job({"on_floor": "HOLD"}, report={"every_steps": 1, "diagnostics_every_steps": 4})
        job_id = ampd.submit(job).id
        found = [e.gradient_diagnostics for e in ampd.events(job_id) if e.HasField("gradient_diagnostics")]
        self.assert_state(ampd.get(job_id), "SUCCEEDED")
        self.assertEqual([d.step for d in found], [4, 8, 12, 16, 20, 24])
        for diagnostics in found:
            self.assertGreater(len(diagnostics.tensors), 2)
            for tensor in diagnostics.tensors:
                self.assertEqual(sum(tensor.exponent_counts), tensor.nonzero)
            smallest = min(tensor.largest_safe_scale for tensor in diagnostics.tensors)
            self.assertEqual(diagnostics.largest_safe_scale, smallest)
        # Step 4 holds a target of 60000: 2 * 60000 / 32 * 16 is finite in fp16, twice that is not.
        (outputs,) = [tensor for tensor in found[0].tensors if "squared_error" in tensor.tensor]
        self.assertEqual(outputs.largest_safe_scale, 16)
        self.assertEqual(found[0].scale, 4 * FLOOR)
        text = ampd.ctl("watch", job_id).stdout
        self.assertRegex(text, r"gradients  step 4: fp16 flushes .*% to zero without a scale, .* with 2\^8; most in ")
        events = [json.loads(line) for line in ampd.ctl("watch", job_id, "-o", "jsonl").stdout.splitlines()]
        tensors = next(e for e in events if "gradient_diagnostics" in e)["gradient_diagnostics"]["tensors"]
        for field in ("exponent_counts", "flushed_unscaled", "flushed_scaled", "max_magnitude", "largest_safe_scale"):
            self.assertIn(field, tensors[0])


if __name__ == "__main__":
    ampd_process.main()
