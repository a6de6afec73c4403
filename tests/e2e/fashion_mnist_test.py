"""One epoch of a small convnet on all of Fashion-MNIST in each mode; the same job file, only precision.mode changed."""

import os
import unittest

import ampd_process
from ampd_process import DaemonTest

DATA = ampd_process.shared_data("fashion_mnist")
JOB = os.path.join(ampd_process.SOURCE, "client/examples/fashion-mnist-convnet.yaml")
# After one epoch; four epochs reach 90%.
FLOOR = 0.85


@unittest.skipUnless(DATA, "no ../shared/data/fashion_mnist here")
class FashionMnistTest(DaemonTest):
    def test_every_mode_learns(self):
        ampd = self.daemon(data_roots=[os.path.dirname(DATA)])
        accuracies = {}
        for mode in ("FP32", "FP16", "BF16"):
            result = ampd.ctl("submit", JOB, "-q", "--set", f"precision.mode={mode}", "--set", "train.epochs=1")
            self.assertEqual(result.returncode, 0, result.stderr)
            job = ampd.wait(result.stdout.strip(), seconds=600)
            self.assert_state(job, "SUCCEEDED")
            accuracies[mode] = job.summary.accuracy
        print("accuracy after one epoch:", accuracies, flush=True)
        for mode, accuracy in accuracies.items():
            self.assertGreaterEqual(accuracy, FLOOR, mode)


if __name__ == "__main__":
    ampd_process.main()
