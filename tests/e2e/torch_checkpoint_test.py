"""A checkpoint opens in PyTorch: strict loading into the model of the same shape, and equal logits."""

import collections
import os
import unittest

import numpy as np

import ampd_process
from ampd_process import DaemonTest
from safetensors_file import read_safetensors

try:
    import torch
except ImportError:
    torch = None

CLASSES = 4


@unittest.skipIf(torch is None, "PyTorch is not installed for /usr/bin/python3")
class TorchCheckpointTest(DaemonTest):
    def job(self, label):
        """Trains the same network every time, and evaluates it on one sample with the given label."""
        return {
            "name": "for torch",
            "seed": 11,
            "model": {
                "layers": [
                    {"name": "conv1", "conv2d": {"filters": 6, "kernel": [3, 5], "padding": "SAME"}},
                    {"name": "bn1", "batch_norm": {}},
                    {"name": "relu1", "relu": {}},
                    {"name": "pool", "max_pool": {"size": [2, 2]}},
                    {"name": "conv2", "conv2d": {"filters": 5, "kernel": [3, 3], "stride": [2, 1], "bias": False}},
                    {"name": "flat", "flatten": {}},
                    {"name": "drop", "dropout": {"rate": 0.3}},
                    {"name": "fc", "dense": {"units": 16, "activation": "RELU"}},
                    {"name": "head", "dense": {"units": CLASSES}},
                ],
                "loss": {"softmax_cross_entropy": {}},
            },
            "data": {
                "train": {"npy": {"inputs": "train_x.npy", "targets": "train_y.npy"}},
                "eval": {"npy": {"inputs": "eval_x.npy", "targets": f"label{label}.npy"}},
            },
            "precision": {"mode": "FP32"},
            "train": {"epochs": 3, "batch_size": 16},
            "resources": {"cpu_threads": 1},
        }

    def network(self):
        nn = torch.nn
        return nn.Sequential(collections.OrderedDict([
            ("conv1", nn.Conv2d(3, 6, (3, 5), padding="same")),
            ("bn1", nn.BatchNorm2d(6)),
            ("relu1", nn.ReLU()),
            ("pool", nn.MaxPool2d(2)),
            ("conv2", nn.Conv2d(6, 5, 3, stride=(2, 1), bias=False)),
            ("flat", nn.Flatten()),
            ("drop", nn.Dropout(0.3)),
            ("fc", nn.Linear(5 * 2 * 4, 16)),
            ("fc_relu", nn.ReLU()),
            ("head", nn.Linear(16, CLASSES)),
        ]))

    def test_strict_loading_and_equal_logits(self):
        rng = np.random.default_rng(3)
        labels = rng.integers(0, CLASSES, 160)
        images = rng.normal(0, 1, (160, 12, 12, 3)).astype(np.float32)
        images[np.arange(160), labels * 3] += 1.5
        sample = images[:1] + 0.25
        np.save(os.path.join(self.folder, "train_x.npy"), images)
        np.save(os.path.join(self.folder, "train_y.npy"), labels)
        np.save(os.path.join(self.folder, "eval_x.npy"), sample)

        # The loss on one sample is -log softmax(logits)[label]: with each label in turn, that is every logit but for a
        # constant they share.
        ampd = self.daemon(data_roots=[self.folder])
        log_probabilities, models = [], []
        for label in range(CLASSES):
            np.save(os.path.join(self.folder, f"label{label}.npy"), np.array([label]))
            job = ampd.run(self.job(label))
            self.assert_state(job, "SUCCEEDED")
            log_probabilities.append(-job.summary.eval_loss)
            folder = os.path.join(self.folder, f"checkpoint{label}")
            self.assertEqual(ampd.ctl("download", job.id, folder).returncode, 0)
            models.append(read_safetensors(os.path.join(folder, "model.safetensors")))
        for model in models[1:]:
            for name, values in models[0].items():
                np.testing.assert_array_equal(values, model[name], name)

        network = self.network()
        network.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in models[0].items()},
                                strict=True)
        network.eval()
        with torch.no_grad():
            logits = network(torch.from_numpy(sample).permute(0, 3, 1, 2))
        expected = torch.log_softmax(logits.double(), 1)[0].numpy()
        np.testing.assert_allclose(log_probabilities, expected, rtol=1e-5, atol=1e-5)
        # The network learned something: the comparison is not one of initial weights alone.
        self.assertGreater(np.abs(models[0]["bn1.running_mean"]).max(), 0)


if __name__ == "__main__":
    ampd_process.main()
