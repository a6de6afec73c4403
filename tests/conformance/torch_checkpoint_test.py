#!/usr/bin/env python3
"""Trains small networks, loads their checkpoints into PyTorch models of the same shape, strict, and compares logits.

usage: torch_checkpoint_test.py PATH_OF_CHECKPOINT_TOOL

Exits with 77 (skipped) where PyTorch is not installed.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict

try:
    import torch
    from torch import nn
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32}
SAMPLES = 64


def read_safetensors(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = f.read()
    tensors = OrderedDict()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"]).clone()
    return tensors


class SamePad(nn.Module):
    """Pads as TensorFlow's SAME: the odd pixel goes to the bottom and right."""

    def __init__(self, kernel, stride):
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x):
        pads = []
        for extent in (x.shape[3], x.shape[2]):
            out = -(-extent // self.stride)
            total = max((out - 1) * self.stride + self.kernel - extent, 0)
            pads += [total // 2, total - total // 2]
        return nn.functional.pad(x, pads)


class Add(nn.Module):
    """A residual block: the sum of a branch and its input."""

    def __init__(self, **branch):
        super().__init__()
        for name, module in branch.items():
            self.add_module(name, module)

    def forward(self, x):
        y = x
        for module in self.children():
            y = module(y)
        return x + y


def sequential(*layers):
    return nn.Sequential(OrderedDict(layers))


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


def conv_model():
    return sequential(
        ("pad1", SamePad(5, 2)), ("conv1", nn.Conv2d(1, 6, 5, stride=2)), ("relu1", nn.ReLU()),
        ("bn1", nn.BatchNorm2d(6)), ("pool1", nn.MaxPool2d(2)), ("conv2", nn.Conv2d(6, 9, (3, 2), bias=False)),
        ("bn2", nn.BatchNorm2d(9, eps=0.001)), ("relu2", nn.ReLU()), ("flat", nn.Flatten()),
        ("fc1", nn.Linear(9 * 5 * 6, 20)), ("relu3", nn.ReLU()), ("drop", nn.Dropout(0.5)), ("head", nn.Linear(20, 10)))


RESIDUAL_LAYERS = [
    {"name": "stem", "conv2d": {"filters": 4, "kernel": [3, 3], "stride": [2, 2], "activation": "RELU"}},
    {"name": "block.conv", "conv2d": {"filters": 4, "kernel": [3, 3], "padding": "SAME"}},
    {"name": "sum", "inputs": ["stem", "block.conv"], "add": {}},
    {"name": "mean", "avg_pool": {"size": [2, 2]}},
    {"name": "gap", "global_avg_pool": {}},
    {"name": "head", "dense": {"units": 10}},
]


def residual_model():
    return sequential(
        ("stem", nn.Conv2d(1, 4, 3, stride=2)), ("relu", nn.ReLU()),
        ("block", Add(conv=nn.Conv2d(4, 4, 3, padding=1))), ("mean", nn.AvgPool2d(2)),
        ("gap", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("head", nn.Linear(4, 10)))


GROUP_LAYERS = [
    {"name": "a", "conv2d": {"filters": 8, "kernel": [3], "stride": [2], "pads": [1]}},
    {"name": "gn", "group_norm": {"groups": 4, "epsilon": 0.001}},
    {"name": "b", "conv2d": {"filters": 6, "kernel": [3, 2], "groups": 2, "dilation": [2, 1], "pads": [1, 2],
                             "activation": "RELU"}},
    {"name": "up", "conv_transpose2d": {"filters": 4, "kernel": [4, 3], "stride": [2], "pads": [1],
                                        "output_padding": [0, 1], "groups": 2}},
    {"name": "in", "instance_norm": {"affine": True}},
    {"name": "in2", "instance_norm": {}},
    {"name": "down", "max_pool": {"size": [3], "stride": [4], "pads": [1]}},
    {"name": "flat", "flatten": {}},
    {"name": "ln", "layer_norm": {}},
    {"name": "head", "dense": {"units": 10}},
]


def group_model():
    return sequential(
        ("a", nn.Conv2d(1, 8, 3, stride=2, padding=1)), ("gn", nn.GroupNorm(4, 8, eps=0.001)),
        ("b", nn.Conv2d(8, 6, (3, 2), groups=2, dilation=(2, 1), padding=(1, 2))), ("relu", nn.ReLU()),
        ("up", nn.ConvTranspose2d(6, 4, (4, 3), stride=2, padding=1, output_padding=(0, 1), groups=2)),
        ("in", nn.InstanceNorm2d(4, affine=True)), ("in2", nn.InstanceNorm2d(4)),
        ("down", nn.MaxPool2d(3, stride=4, padding=1)), ("flat", nn.Flatten()), ("ln", nn.LayerNorm(4 * 6 * 9)),
        ("head", nn.Linear(4 * 6 * 9, 10)))


POOL_LAYERS = [
    {"name": "a", "conv2d": {"filters": 6, "kernel": [3]}},
    {"name": "far", "max_pool": {"size": [3, 2], "stride": [1], "pads": [1], "dilation": [2, 3]}},
    {"name": "counted", "avg_pool": {"size": [3], "stride": [2], "pads": [1], "count_include_pad": True}},
    {"name": "uneven", "avg_pool": {"size": [2], "pads": [0, 1, 1, 0], "count_include_pad": True}},
    {"name": "some", "slice": {"begin": 1, "end": -1}},
    {"name": "real", "avg_pool": {"size": [3], "stride": [2], "pads": [1]}},
    {"name": "flat", "flatten": {}},
    {"name": "head", "dense": {"units": 10}},
]


class Some(nn.Module):
    """Some of the channels."""

    def forward(self, x):
        return x[:, 1:-1]


def pool_model():
    return sequential(
        ("a", nn.Conv2d(1, 6, 3)), ("far", nn.MaxPool2d((3, 2), stride=1, padding=1, dilation=(2, 3))),
        ("counted", nn.AvgPool2d(3, stride=2, padding=1)), ("pad", nn.ZeroPad2d((1, 0, 0, 1))),
        ("uneven", nn.AvgPool2d(2)), ("some", Some()), ("real", nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
        ("flat", nn.Flatten()), ("head", nn.Linear(4 * 3 * 4, 10)))


class RmsNorm(nn.Module):
    """torch.nn.RMSNorm, which came with PyTorch 2.4."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 2**-23) * self.weight


class Transformer(nn.Module):
    """Rows of the image as a sequence, one block that attends to itself and one that attends to another layer."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(28, 24, batch_first=True)
        self.ln = nn.LayerNorm(24)
        self.attend = nn.MultiheadAttention(24, 4, batch_first=True)
        self.rms = RmsNorm(24)
        self.cross = nn.MultiheadAttention(24, 3, bias=False, batch_first=True)
        self.mix = nn.Linear(24, 12)
        self.head = nn.Linear(28 * 12, 10)

    def forward(self, images):
        x, _ = self.rnn(images[:, 0])
        y = self.ln(x)
        hidden = torch.ones(28, 28, dtype=torch.bool).triu(1)
        y = self.rms(x + self.attend(y, y, y, attn_mask=hidden)[0])
        y = torch.relu(self.mix(self.cross(y, x, x)[0]))
        return self.head(y.flatten(1))


TRANSFORMER_LAYERS = [
    {"name": "rnn", "gru": {"units": 24}},
    {"name": "ln", "layer_norm": {}},
    {"name": "attend", "multi_head_attention": {"heads": 4, "causal": True}},
    {"name": "sum", "inputs": ["rnn", "attend"], "add": {}},
    {"name": "rms", "rms_norm": {}},
    {"name": "cross", "inputs": ["rms", "rnn"], "multi_head_attention": {"heads": 3, "bias": False}},
    {"name": "mix", "dense": {"units": 12, "activation": "RELU"}},
    {"name": "flat", "flatten": {}},
    {"name": "head", "dense": {"units": 10}},
]

# The last number: largest difference of two logits, as a share of the largest logit.
CASES = [("conv", CONV_LAYERS, conv_model, "FP32", 1e-5), ("residual", RESIDUAL_LAYERS, residual_model, "FP32", 1e-5),
         ("groups", GROUP_LAYERS, group_model, "FP32", 1e-5),
         ("pools", POOL_LAYERS, pool_model, "FP32", 1e-5),
         ("transformer", TRANSFORMER_LAYERS, Transformer, "FP32", 1e-5),
         ("conv", CONV_LAYERS, conv_model, "FP16", 5e-3), ("conv", CONV_LAYERS, conv_model, "BF16", 5e-2),
         ("transformer", TRANSFORMER_LAYERS, Transformer, "BF16", 5e-2)]


def spec_of(layers, mode):
    return {
        "model": {"layers": layers, "loss": {"softmax_cross_entropy": {}}},
        "data": {"train": {"glyphs": {"samples": 640}}},
        "precision": {"mode": mode},
        "train": {"epochs": 2, "batch_size": SAMPLES},
    }


def run_case(tool, folder, layers, make_model, mode, tolerance):
    spec = os.path.join(folder, "spec.json")
    with open(spec, "w") as f:
        json.dump(spec_of(layers, mode), f)
    subprocess.run([tool, "train", spec, os.path.join(folder, "checkpoints")], check=True)
    (name,) = os.listdir(os.path.join(folder, "checkpoints"))
    checkpoint = os.path.join(folder, "checkpoints", name)

    torch.manual_seed(1)
    images = torch.rand(SAMPLES, 28, 28, 1)
    with open(os.path.join(folder, "in"), "wb") as f:
        f.write(images.numpy().tobytes())
    subprocess.run([tool, "logits", spec, checkpoint, os.path.join(folder, "in"), os.path.join(folder, "out")],
                   check=True)
    with open(os.path.join(folder, "out"), "rb") as f:
        ours = torch.frombuffer(bytearray(f.read()), dtype=torch.float32).reshape(SAMPLES, 10)

    model = make_model()
    model.load_state_dict(read_safetensors(os.path.join(checkpoint, "model.safetensors")), strict=True)
    model.eval()
    with torch.no_grad():
        theirs = model(images.permute(0, 3, 1, 2))
    worst = (ours - theirs).abs().max().item()
    print(f"{mode}: largest difference {worst:.2e}, logits up to {theirs.abs().max().item():.2f}")
    return worst <= tolerance * theirs.abs().max().item()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = []
    for name, layers, make_model, mode, tolerance in CASES:
        with tempfile.TemporaryDirectory() as folder:
            if not run_case(sys.argv[1], folder, layers, make_model, mode, tolerance):
                failed.append(f"{name} {mode}")
    if failed:
        sys.exit("logits differ: " + ", ".join(failed))


if __name__ == "__main__":
    main()
