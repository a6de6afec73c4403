"""client/examples/mlp.yaml on a regression over real images, in every mode: as good as in FP32, and better than a straight line.

Features are the mean brightness of eight bands of a Fashion-MNIST image (seven of four rows, and of the left half), the target
is the share of its pixels that are brighter than half. Both are standardised, so the mean squared error of guessing the mean is 1.
"""

import gzip
import os
import unittest

import numpy as np

import ampd_process
from ampd_process import DaemonTest

DATA = ampd_process.shared_data("fashion_mnist")
JOB = os.path.join(ampd_process.SOURCE, "client/examples/mlp.yaml")
SEEDS = (1, 2, 3)
# Of the errors of the modes, over FP32's.
TOLERANCE = 0.05


def images(name):
    with gzip.open(os.path.join(DATA, name)) as file:
        return np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28).astype(np.float64) / 255


def table(pixels):
    bands = pixels.reshape(-1, 7, 4, 28).mean((2, 3))
    features = np.concatenate([bands, pixels[:, :, :14].mean((1, 2))[:, None]], 1)
    return features, (pixels > 0.5).mean((1, 2))


@unittest.skipUnless(DATA, "no ../shared/data/fashion_mnist here")
class MlpRegressionTest(DaemonTest):
    def setUp(self):
        super().setUp()
        x, y = table(images("train-images-idx3-ubyte.gz"))
        test_x, test_y = table(images("t10k-images-idx3-ubyte.gz"))
        test_x, test_y = (test_x - x.mean(0)) / x.std(0), (test_y - y.mean()) / y.std()
        x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
        for name, array in (("train_x", x), ("train_y", y), ("test_x", test_x), ("test_y", test_y)):
            np.save(os.path.join(self.folder, name + ".npy"), array.astype(np.float32))
        line = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
        self.line_error = np.mean((np.c_[test_x, np.ones(len(test_x))] @ line - test_y)**2)

    def error(self, ampd, mode, seed):
        result = ampd.ctl("submit", JOB, "-q", "--set", f"precision.mode={mode}", "--set", f"seed={seed}", "--set",
                          "train.epochs=40", "--set", "resources.cpu_threads=1", "--set", "report={max_per_second: 10}")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = ampd.wait(result.stdout.strip(), seconds=300)
        self.assert_state(job, "SUCCEEDED")
        losses = [e.evaluation.loss for e in ampd.events(job.id) if e.HasField("evaluation")]
        return losses[-1]

    def test_every_mode_regresses(self):
        ampd = self.daemon(data_roots=[self.folder])
        errors = {mode: np.mean([self.error(ampd, mode, seed) for seed in SEEDS]) for mode in ("FP32", "FP16", "BF16")}
        print(f"mean squared error on the test images: a line's {self.line_error:.4f},", errors, flush=True)
        self.assertLess(errors["FP32"], 0.8 * self.line_error)
        for mode, error in errors.items():
            self.assertLess(abs(error / errors["FP32"] - 1), TOLERANCE, mode)


if __name__ == "__main__":
    ampd_process.main()
