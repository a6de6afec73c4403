#!/usr/bin/env python3
"""Fifty steps of training against PyTorch: is our arithmetic as near to the truth as PyTorch's own?

usage: torch_curves.py FOLDER_OF_THE_PROGRAMS [RESULT_FILE]

From equal weights on equal batches each network is trained by PyTorch in float64 (the truth), in float32 and under
autocast, and by the daemon in FP32, BF16 and FP16. A curve's deviation is the root mean square over steps and seeds of
its losses' distance from the float64 losses. Ours in FP32 may deviate at most twice as much as PyTorch's float32 does,
and ours in 16 bits at most twice as much as PyTorch's autocast in the same type. FP16 needs a PyTorch whose CPU autocast
knows it; exits with 77 (skipped) where PyTorch is not installed.
"""
import datetime
import math
import os
import sys
import tempfile
import warnings
from collections import OrderedDict

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from torch_checkpoint_test import sequential
from torch_training import Server

STEPS = 50
BATCH = 32
SEEDS = (1, 2, 3)
CLASSES = 10
SCALE = 1024.0
FACTOR = 2.0


# --- Networks: our layers, PyTorch's module, the shape of a sample in our memory (channels last), our optimizer, PyTorch's.


def mlp():
    return sequential(("fc1", nn.Linear(20, 64)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(64, 64)), ("relu2", nn.ReLU()),
                      ("head", nn.Linear(64, CLASSES)))


MLP = [{"name": "fc1", "dense": {"units": 64, "activation": "RELU"}},
       {"name": "fc2", "dense": {"units": 64, "activation": "RELU"}}, {"name": "head", "dense": {"units": CLASSES}}]


def convnet():
    return sequential(("conv1", nn.Conv2d(3, 16, 3, bias=False)), ("bn1", nn.BatchNorm2d(16)), ("relu1", nn.ReLU()),
                      ("pool1", nn.MaxPool2d(2)), ("conv2", nn.Conv2d(16, 32, 3, bias=False)),
                      ("bn2", nn.BatchNorm2d(32)), ("relu2", nn.ReLU()), ("gap", nn.AdaptiveAvgPool2d(1)),
                      ("flat", nn.Flatten()), ("head", nn.Linear(32, CLASSES)))


CONVNET = [{"name": "conv1", "conv2d": {"filters": 16, "kernel": [3, 3], "bias": False}},
           {"name": "bn1", "batch_norm": {}}, {"name": "relu1", "relu": {}}, {"name": "pool1", "max_pool": {"size": [2, 2]}},
           {"name": "conv2", "conv2d": {"filters": 32, "kernel": [3, 3], "bias": False}},
           {"name": "bn2", "batch_norm": {}}, {"name": "relu2", "relu": {}}, {"name": "gap", "global_avg_pool": {}},
           {"name": "head", "dense": {"units": CLASSES}}]

class Recurrent(nn.Module):
    """A recurrent layer whose last state a dense layer classifies."""

    def __init__(self, kind, layers):
        super().__init__()
        self.rnn = kind(12, 24, num_layers=layers, batch_first=True)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def recurrent(kind, layers):
    return [{"name": "rnn", kind: {"units": 24, "layers": layers, "output": "LAST_STEP"}},
            {"name": "head", "dense": {"units": CLASSES}}]


class Block(nn.Module):
    """A pre-norm transformer block, 32 wide."""

    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = self.ln1(x)
        x = self.attn(y, y, y, attn_mask=mask, need_weights=False)[0] + x
        return self.fc2(functional.gelu(self.fc1(self.ln2(x)))) + x


class Transformer(nn.Module):
    """Two blocks over 12 steps of 16 features."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.b0, self.b1 = Block(), Block()
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(12 * 32, CLASSES)

    def forward(self, x):
        return self.head(self.norm(self.b1(self.b0(self.embed(x.view(-1, 12, 16))))).flatten(1))


def block(name, before):
    return [{"name": name + ".ln1", "inputs": [before], "layer_norm": {}},
            {"name": name + ".attn", "multi_head_attention": {"heads": 4, "causal": True}},
            {"name": name + ".sum1", "inputs": [name + ".attn", before], "add": {}},
            {"name": name + ".ln2", "layer_norm": {}},
            {"name": name + ".fc1", "dense": {"units": 64, "activation": "GELU"}},
            {"name": name + ".fc2", "dense": {"units": 32}},
            {"name": name + ".sum2", "inputs": [name + ".fc2", name + ".sum1"], "add": {}}]


TRANSFORMER = [{"name": "steps", "reshape": {"shape": [12, 16]}}, {"name": "embed", "dense": {"units": 32}},
               *block("b0", "embed"), *block("b1", "b0.sum2"), {"name": "norm", "layer_norm": {}},
               {"name": "flat", "reshape": {"shape": [12 * 32]}}, {"name": "head", "dense": {"units": CLASSES}}]

SGD = ({"sgd": {"learning_rate": 0.1, "momentum": 0.9}}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
ADAM = ({"adam": {"learning_rate": 0.003}}, lambda p: torch.optim.Adam(p, lr=0.003))
ADAMW = ({"adamw": {"learning_rate": 0.003, "weight_decay": 0.01}},
         lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.01))

NETWORKS = {
    "MLP, SGD": (MLP, mlp, (20,), SGD),
    "convnet with BN, Adam": (CONVNET, convnet, (14, 14, 3), ADAM),
    "GRU, Adam": (recurrent("gru", 1), lambda: Recurrent(nn.GRU, 1), (16, 12), ADAM),
    "2-layer transformer, AdamW": (TRANSFORMER, Transformer, (12 * 16,), ADAMW),
    "2-layer LSTM, Adam": (recurrent("lstm", 2), lambda: Recurrent(nn.LSTM, 2), (16, 12), ADAM),
}


class Data:
    """Samples with something to learn in them, as arrays and as files beneath `folder`."""

    def __init__(self, folder, shape, seed):
        rng = np.random.default_rng(seed)
        self.inputs = rng.standard_normal((BATCH * 4,) + shape).astype(np.float32)
        flat = self.inputs.reshape(len(self.inputs), -1)
        self.labels = (flat @ rng.standard_normal((flat.shape[1], CLASSES))).argmax(1).astype(np.int64)
        np.save(os.path.join(folder, "x.npy"), self.inputs)
        np.save(os.path.join(folder, "y.npy"), self.labels)

    def batch(self, step, dtype):
        rows = slice(step % 4 * BATCH, step % 4 * BATCH + BATCH)
        x = torch.from_numpy(self.inputs[rows]).to(dtype)
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), torch.from_numpy(self.labels[rows])


def job(layers, optimizer, mode, seed, steps):
    precision = {"mode": mode, **({"loss_scale": {"init": SCALE}} if mode == "FP16" else {})}
    return {"name": "curve", "seed": seed, "model": {"layers": layers, "loss": {"softmax_cross_entropy": {}}},
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "precision": precision, "optimizer": optimizer, "train": {"steps": steps, "batch_size": BATCH},
            "checkpoint": {"every_seconds": 0}, "report": {"every_steps": 1}}


def our_curve(server, layers, optimizer, mode, seed):
    events, _ = server.train(job(layers, optimizer, mode, seed, STEPS))
    return [event["step"]["phases"][0]["loss"] for event in events if "step" in event]


def initial_weights(server, layers, seed):
    """What a job of this network starts from: the weights after a step at rate 0."""
    tensors = server.train(job(layers, {"sgd": {"learning_rate": 0.0}}, "FP32", seed, 1))[1]
    return OrderedDict((name, t) for name, t in tensors.items() if "running" not in name and "num_batches" not in name)


def torch_curve(build, weights, data, make_optimizer, dtype, autocast):
    model = build()
    model.load_state_dict(weights, strict=False)
    model = model.to(dtype).train()
    optimizer = make_optimizer(model.parameters())
    scale = SCALE if autocast == torch.float16 else 1.0
    losses = []
    for step in range(STEPS):
        x, y = data.batch(step, dtype)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            logits = model(x)
        loss = functional.cross_entropy(logits if autocast is None else logits.float(), y)
        (loss * scale).backward()
        for p in model.parameters():
            p.grad /= scale
        optimizer.step()
        losses.append(loss.item())
    return losses


def knows_fp16():
    warnings.filterwarnings("ignore", "In CPU autocast")
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float16
    except RuntimeError:
        return False


def deviation(curves, truths):
    squares = [(a - b) ** 2 for curve, truth in zip(curves, truths) for a, b in zip(curve, truth)]
    return math.sqrt(sum(squares) / len(squares))


def run_network(server, folder, name):
    """Rows of (network, mode, our deviation, PyTorch's)."""
    layers, build, shape, (optimizer, make_optimizer) = NETWORKS[name]
    modes = {"FP32": None, "BF16": torch.bfloat16, **({"FP16": torch.float16} if knows_fp16() else {})}
    truths, ours, theirs = [], {mode: [] for mode in modes}, {mode: [] for mode in modes}
    for seed in SEEDS:
        data = Data(folder, shape, seed)
        weights = initial_weights(server, layers, seed)
        truths.append(torch_curve(build, weights, data, make_optimizer, torch.float64, None))
        for mode, autocast in modes.items():
            try:
                curve = torch_curve(build, weights, data, make_optimizer, torch.float32, autocast)
            except RuntimeError as error:
                print(f"SKIPPED: {name}, {mode}: this PyTorch cannot: {str(error).splitlines()[0]}")
                continue
            theirs[mode].append(curve)
            ours[mode].append(our_curve(server, layers, optimizer, mode, seed))
            if len(ours[mode][-1]) != STEPS:
                raise RuntimeError(f"{name}, {mode}, seed {seed}: {len(ours[mode][-1])} losses")
    return [(name, mode, deviation(ours[mode], truths), deviation(theirs[mode], truths)) for mode in modes
            if len(ours[mode]) == len(SEEDS)]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], folder)
        try:
            for name in NETWORKS:
                rows += run_network(server, folder, name)
        finally:
            server.stop()
    lines = ["| network | mode | our deviation | PyTorch's | ours / PyTorch's |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {mode} | {a:.2e} | {b:.2e} | {a / b:.2f} |" for name, mode, a, b in rows]
    print("\n".join(lines))
    if len(sys.argv) == 3:
        with open(sys.argv[2], "w") as file:
            file.write(f"# Training curves against PyTorch\n\n{datetime.date.today()}, PyTorch {torch.__version__}, {STEPS} "
                       f"steps, seeds {SEEDS}. Root mean square distance of the losses from PyTorch's in float64; "
                       "`tests/conformance/torch_curves.py`.\n\n" + "\n".join(lines) + "\n")
    wrong = [f"{name}, {mode}" for name, mode, a, b in rows if not a <= FACTOR * b]
    if wrong:
        sys.exit(f"deviates from float64 more than {FACTOR} times what PyTorch does: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
