"""Models taken home as ONNX give the engine's numbers in ONNX Runtime, and 16-bit ones load in PyTorch, strict."""

import collections
import os
import unittest

import numpy as np

import ampd_process
from ampd_process import DaemonTest
from exported_models import BATCH, Trained, channels_first, jobs, write_data

try:
    import onnxruntime
except ImportError:
    onnxruntime = None
try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(onnxruntime is None, "ONNX Runtime is not installed for this Python")
class OnnxRuntimeTest(DaemonTest):
    def test_outputs_are_the_engines(self):
        write_data(self.folder)
        ampd = self.daemon(data_roots=[self.folder])
        for name in jobs():
            with self.subTest(name):
                trained = Trained(self, ampd, name, self.folder)
                expected = trained.logits()
                session = onnxruntime.InferenceSession(trained.model, providers=["CPUExecutionProvider"])
                self.assertEqual([output.name for output in session.get_outputs()], ["output"])
                feed = {"input": channels_first(trained.x)}
                if session.get_inputs()[0].type == "tensor(int64)":
                    feed["input"] = feed["input"].astype(np.int64)
                if trained.lengths is not None:
                    feed["lengths"] = trained.lengths
                (whole,) = session.run(None, feed)
                self.assertEqual(whole.shape[0], BATCH)
                trained.assert_close(self, whole, expected, "ONNX Runtime")
                # The batch is open.
                (first,) = session.run(None, {key: value[:1] for key, value in feed.items()})
                trained.assert_close(self, first, expected[:1], "ONNX Runtime, one sample")


@unittest.skipIf(torch is None, "PyTorch is not installed for this Python")
class TorchTest(DaemonTest):
    DTYPES = {"fp16": "float16", "bf16": "bfloat16"}

    @staticmethod
    def network():
        nn = torch.nn
        return nn.Sequential(collections.OrderedDict([
            ("conv1", nn.Conv2d(1, 6, 5, stride=2)), ("bn1", nn.BatchNorm2d(6)),
            ("conv2", nn.Conv2d(6, 9, (3, 2), bias=False)), ("bn2", nn.BatchNorm2d(9, eps=0.001)),
            ("fc1", nn.Linear(9 * 5 * 6, 20)), ("head", nn.Linear(20, 10))]))

    @staticmethod
    def load(path):
        import json
        import struct
        with open(path, "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
        tensors = {}
        for name, entry in json.loads(data[8:8 + size]).items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            raw = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]])
            tensors[name] = raw.reshape(entry["shape"])
        return tensors

    def test_sixteen_bit_weights_load_strictly(self):
        ampd = self.daemon()
        job_id = ampd.run(jobs()["conv"]).id
        loaded = {}
        for dtype in ("fp32", "fp16", "bf16"):
            path = os.path.join(self.folder, f"{dtype}.safetensors")
            self.assertEqual(ampd.ctl("download", job_id, path, "--dtype", dtype).returncode, 0)
            loaded[dtype] = self.load(path)
        for dtype, name in self.DTYPES.items():
            network = self.network().to(getattr(torch, name))
            network.load_state_dict(loaded[dtype], strict=True)
            for key, value in loaded["fp32"].items():
                expected = value.to(getattr(torch, name)) if value.is_floating_point() else value
                self.assertTrue(torch.equal(network.state_dict()[key], expected), key)


if __name__ == "__main__":
    ampd_process.main()
