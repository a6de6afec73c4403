"""A detector without norms, on counts of a sensor, with the mean over a large batch: its activation gradients are below what
fp16 holds. At a loss scale of 1 nothing reaches its trunk, at 8 the larger part does, with dynamic scaling all of it.

Whole trainings of this network are recorded in tests/bench/results/2026-11-22-ssd-loss-scale.md.
"""

import math
import os

import numpy as np

import ampd_process
import drawn_scenes
from ampd_process import DaemonTest
from safetensors_file import read_safetensors

SIZE, CLASSES, WIDTH, BITS = 32, 3, 4, 13
BATCH, STEPS = 2048, 4
# Heads stay in FP32: counts in the thousands make their weights' gradients too large for fp16 at any scale that helps.
FP16 = {"mode": "FP16", "rules": [{"match": "head*", "dtype": "FP32"}]}
MODES = {
    "FP32": {"mode": "FP32"},
    "FP16, scale 1": {**FP16, "loss_scale": {"kind": "STATIC", "init": 1}},
    "FP16, scale 8": {**FP16, "loss_scale": {"kind": "STATIC", "init": 8}},
    "FP16, dynamic": FP16,
}


def network():
    """The ssd preset's maps and heads on a trunk of one convolution a stage; heads begin small, as features are large."""
    layers, maps, heads = [], [], []
    for stage in range(6):
        if stage:
            layers.append({"name": f"pool{stage}", "max_pool": {"size": [2, 2]}})
        layers.append({"name": f"conv{stage}_1", "conv2d": {"filters": WIDTH << min(stage, 3), "kernel": [3, 3], "pads": [1],
                                                          "activation": "RELU", "init": {"he_fan_in": True}}})
        if stage >= 3:
            maps.append(f"conv{stage}_1")
    for i, name in enumerate(maps):
        layers.append({"name": f"head{i}", "inputs": [name],
                       "conv2d": {"filters": 4 * (5 + CLASSES), "kernel": [3, 3], "pads": [1], "init": {"normal": 3e-6}}})
        layers.append({"name": f"head{i}_rows", "reshape": {"shape": [-1, 5 + CLASSES]}})
        heads.append(f"head{i}_rows")
    layers.append({"name": "boxes", "inputs": heads, "concat": {"axis": 1}})
    priors = [{"height": SIZE >> (3 + i), "width": SIZE >> (3 + i), "scale": scale,
               "extra_scale": math.sqrt(scale * (scale + 0.35))} for i, scale in enumerate((0.2, 0.55, 0.9))]
    return {"layers": layers, "loss": {"multibox": {"maps": priors}}}


def job(mode, batch, train):
    return {
        "name": "detector",
        "seed": 1,
        "model": network(),
        "data": {"train": {"npy": {"inputs": "train.npz"}}},
        "precision": MODES[mode],
        "train": {"batch_size": batch, "micro_batch_size": 256, **train},
        "resources": {"cpu_threads": 1},
    }


class DetectorScaleTest(DaemonTest):
    def setUp(self):
        super().setUp()
        drawn_scenes.save(os.path.join(self.folder, "train.npz"), BATCH, SIZE, 2, 1, BITS)
        self.ampd = self.daemon(data_roots=[self.folder])

    def weights(self, mode, learning_rate):
        """Of the trunk's convolutions after STEPS steps whose heads do not move, and how many steps were applied."""
        spec = job(mode, BATCH, {"steps": STEPS})
        spec["optimizer"] = {"sgd": {"learning_rate": learning_rate},
                             "groups": [{"match": "head*", "learning_rate_scale": 0}]}
        job_id = self.ampd.submit(spec).id
        done = self.ampd.wait(job_id, seconds=300)
        self.assert_state(done, "SUCCEEDED")
        folder = os.path.join(self.folder, job_id)
        self.assertEqual(self.ampd.ctl("download", job_id, folder).returncode, 0)
        (path,) = [os.path.join(at, "model.safetensors") for at, _, files in os.walk(folder) if "model.safetensors" in files]
        tensors = read_safetensors(path)
        names = [name for name in sorted(tensors) if name.startswith("conv") and name.endswith("weight")]
        values = np.concatenate([tensors[name].astype(np.float64).ravel() for name in names])
        return values, done.summary.step - done.summary.steps_skipped

    def test_what_reaches_the_trunk(self):
        begin, _ = self.weights("FP32", 0)
        moved = {}
        for mode in MODES:
            end, applied = self.weights(mode, 1e-4)
            self.assertGreater(applied, 0, mode)
            moved[mode] = (end - begin) / applied
        whole = np.linalg.norm(moved["FP32"])
        self.assertGreater(whole, 0)
        share = {mode: np.linalg.norm(m) / whole for mode, m in moved.items()}
        error = {mode: np.linalg.norm(m - moved["FP32"]) / whole for mode, m in moved.items()}
        print("size of the trunk's movement over FP32's:", share, "error:", error, flush=True)
        self.assertLess(share["FP16, scale 1"], 0.05)
        self.assertGreater(share["FP16, scale 8"], 0.3)
        self.assertLess(error["FP16, scale 8"], 0.75)
        self.assertLess(error["FP16, dynamic"], 0.03)


if __name__ == "__main__":
    ampd_process.main()
