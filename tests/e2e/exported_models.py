"""Small jobs whose models are taken home as ONNX, and what our engine says of their inputs."""

import json
import os
import shutil
import subprocess

import numpy as np

import ampd_process

BATCH = 8
ROWS, COLUMNS = 8, 12
FRAMES, MELS = 24, 12
# Differences between two programs' sums in FP32, as a share of the largest output.
TOLERANCE = 1e-5

CONV_LAYERS = [
    {"name": "conv1", "conv2d": {"filters": 6, "kernel": [5, 5], "stride": [2, 2], "padding": "SAME",
                                 "activation": "RELU"}},
    {"name": "bn1", "batch_norm": {}},
    {"name": "pool1", "max_pool": {"size": [2, 2]}},
    {"name": "conv2", "conv2d": {"filters": 9, "kernel": [3, 2], "bias": False}},
    {"name": "bn2", "batch_norm": {"epsilon": 0.001}},
    {"name": "relu2", "relu": {}},
    {"name": "flat", "flatten": {}},
    {"name": "fc1", "dense": {"units": 20, "activation": "RELU"}},
    {"name": "drop", "dropout": {"rate": 0.5}},
    {"name": "head", "dense": {"units": 10}},
]
GROUP_LAYERS = [
    {"name": "a", "conv2d": {"filters": 8, "kernel": [3], "stride": [2], "pads": [1]}},
    {"name": "gn", "group_norm": {"groups": 4, "epsilon": 0.001}},
    {"name": "b", "conv2d": {"filters": 6, "kernel": [3, 2], "groups": 2, "dilation": [2, 1], "pads": [1, 2],
                             "activation": "GELU"}},
    {"name": "up", "conv_transpose2d": {"filters": 4, "kernel": [4, 3], "stride": [2], "pads": [1],
                                        "output_padding": [0, 1], "groups": 2, "activation": "SILU"}},
    {"name": "in", "instance_norm": {"affine": True}},
    {"name": "in2", "instance_norm": {}},
    {"name": "far", "max_pool": {"size": [3, 2], "stride": [1], "pads": [1], "dilation": [2, 3]}},
    {"name": "counted", "avg_pool": {"size": [3], "stride": [2], "pads": [1], "count_include_pad": True}},
    {"name": "holes", "avg_pool": {"size": [2], "stride": [1], "dilation": [2]}},
    {"name": "down", "max_pool": {"size": [3], "stride": [2], "pads": [1]}},
    {"name": "flat", "flatten": {}},
    {"name": "ln", "layer_norm": {}},
    {"name": "head", "dense": {"units": 10}},
]
TRANSFORMER_LAYERS = [
    {"name": "rnn", "gru": {"units": 24}},
    {"name": "ln", "layer_norm": {}},
    {"name": "attend", "multi_head_attention": {"heads": 4, "causal": True}},
    {"name": "sum", "inputs": ["rnn", "attend"], "add": {}},
    {"name": "rms", "rms_norm": {}},
    {"name": "cross", "inputs": ["rms", "rnn"], "multi_head_attention": {"heads": 3, "bias": False}},
    {"name": "mix", "dense": {"units": 12, "activation": "ELU"}},
    {"name": "flat", "flatten": {}},
    {"name": "head", "dense": {"units": 10}},
]


def job(name, model, train, **fields):
    return {"name": name, "seed": 5, "model": model, "data": {"train": train}, "precision": {"mode": "FP32"},
            "optimizer": {"adamw": {"learning_rate": 0.01}}, "train": {"steps": 3, "batch_size": BATCH},
            "resources": {"cpu_threads": 1}, **fields}


def glyphs(name, model):
    return job(name, model, {"glyphs": {"samples": 64}})


def classified(layers):
    return {"layers": layers, "loss": {"softmax_cross_entropy": {}}}


def npy(**files):
    return {"npy": {field: f"{name}.npy" for field, name in files.items()}}


IMPORTED = "imported_"


def jobs():
    """By name. "imported_NAME" goes on with the file that NAME came home as."""
    known = own_jobs()
    for name in ("conv", "groups", "transformer", "gpt2"):
        loss = {"softmax_cross_entropy": {}}
        known[IMPORTED + name] = dict(known[name], name=IMPORTED + name,
                                      model={"onnx": {"path": f"{name}.onnx"}, "loss": loss})
    return known


def own_jobs():
    sequences = npy(inputs="frames", targets="letters", lengths="lengths", target_lengths="letter_counts")
    return {
        "mlp": glyphs("mlp", {"preset": {"mlp": {"outputs": 10}}}),
        "convnet": glyphs("convnet", {"preset": {"convnet": {"filters": [4, 6, 8]}}}),
        "resnet20": glyphs("resnet20", {"preset": {"resnet": {"depth": 20, "width": 4}}}),
        "unet": job("unet", {"preset": {"unet": {"depth": 2, "width": 4}}}, npy(inputs="images", targets="pixels")),
        "gpt2": job("gpt2", {"preset": {"gpt2": {"vocabulary": 256, "positions": 40, "layers": 2, "heads": 2,
                                                 "features": 16}}},
                    {"text": {"path": "text.txt", "sequence_length": 32}}),
        "speech_lstm": job("speech_lstm", {"preset": {"speech": {"classes": 6, "filters": 4, "units": 8}}}, sequences),
        "speech_gru": job("speech_gru", {"preset": {"speech": {"classes": 6, "filters": 4, "units": 8,
                                                               "recurrent": "GRU"}}}, sequences),
        "conv": glyphs("conv", classified(CONV_LAYERS)),
        "groups": glyphs("groups", classified(GROUP_LAYERS)),
        "transformer": glyphs("transformer", classified(TRANSFORMER_LAYERS)),
    }


def write_data(folder):
    rng = np.random.default_rng(1)
    save = lambda name, array: np.save(os.path.join(folder, name + ".npy"), array)
    save("images", rng.normal(0, 1, (32, ROWS, COLUMNS)).astype(np.float32))
    save("pixels", rng.integers(0, 2, (32, ROWS * COLUMNS)))
    save("frames", rng.normal(0, 1, (32, FRAMES, MELS)).astype(np.float32))
    save("letters", rng.integers(1, 6, (32, 4)))
    save("lengths", rng.integers(16, FRAMES + 1, 32))
    save("letter_counts", rng.integers(1, 5, 32))
    with open(os.path.join(folder, "text.txt"), "w") as file:
        file.write("to be, or not to be: that is the question. " * 60)


def inputs_of(name):
    """A batch that the training has not seen, channels last, and the lengths of its samples or None."""
    rng = np.random.default_rng(2)
    if name.endswith("gpt2"):
        return rng.integers(0, 256, (BATCH, 32)).astype(np.float32), None
    if name.startswith("speech"):
        lengths = np.array([FRAMES, 1, 7, FRAMES, 12, 23, 2, 16], np.int32)
        return rng.normal(0, 1, (BATCH, FRAMES, MELS)).astype(np.float32), lengths
    if name == "unet":
        return rng.normal(0, 1, (BATCH, ROWS, COLUMNS, 1)).astype(np.float32), None
    return rng.uniform(0, 1, (BATCH, 28, 28, 1)).astype(np.float32), None


def channels_first(x):
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if x.ndim == 4 else x


def run_tool(*arguments):
    subprocess.run([ampd_process.program("checkpoint_tool"), *arguments], check=True, timeout=ampd_process.DEADLINE)


class Trained:
    """A job that has ended: its checkpoint, its model as ONNX, and what our engine says of the inputs."""

    def __init__(self, test, ampd, name, folder):
        self.name, self.folder, self.data = name, os.path.join(folder, name), folder
        os.makedirs(self.folder)
        spec = jobs()[name]
        ended = ampd.run(spec)
        test.assert_state(ended, "SUCCEEDED")
        self.id = ended.id
        self.spec, self.checkpoint = self.path("spec.json"), self.path("checkpoint")
        self.model = self.path("model.onnx")
        with open(self.spec, "w") as file:
            json.dump(spec, file)
        for arguments in ((self.checkpoint,), (self.model, "--form", "onnx")):
            result = ampd.ctl("download", self.id, *arguments)
            test.assertEqual(result.returncode, 0, result.stderr)
        shutil.copy(self.model, os.path.join(self.data, f"{name}.onnx"))
        self.x, self.lengths = inputs_of(name)
        self.x.tofile(self.path("x"))
        channels_first(self.x).tofile(self.path("input"))
        if self.lengths is not None:
            self.lengths.tofile(self.path("lengths"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def logits(self):
        """The engine's, laid out as the model's output."""
        lengths = [] if self.lengths is None else [self.path("lengths")]
        run_tool("logits", self.spec, self.checkpoint, self.path("x"), self.path("logits"), self.data, *lengths)
        logits = np.fromfile(self.path("logits"), np.float32)
        if self.name == "unet":
            return channels_first(logits.reshape(BATCH, ROWS, COLUMNS, 2))
        return logits.reshape(BATCH, -1)

    def imported(self):
        """What the model gives when our own importer reads it."""
        lengths = [] if self.lengths is None else ["lengths=" + self.path("lengths")]
        run_tool("onnx", self.model, str(BATCH), self.path("output"), "input=" + self.path("input"), *lengths)
        return np.fromfile(self.path("output"), np.float32)

    def assert_close(self, test, got, expected, what):
        test.assertEqual(got.size, expected.size, what)
        largest = np.abs(expected).max()
        worst = np.abs(got.reshape(expected.shape) - expected).max()
        print(f"{self.name}, {what}: largest difference {worst:.1e} of {largest:.2f}", flush=True)
        test.assertGreater(largest, 0.01, what)
        test.assertLessEqual(worst, TOLERANCE * max(largest, 1), what)
