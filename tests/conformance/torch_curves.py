#!/usr/bin/env python3
"""Fifty steps of training against PyTorch: is our arithmetic as near to the truth as PyTorch's own?

usage: torch_curves.py FOLDER_OF_THE_PROGRAMS [RESULT_FILE]
       torch_curves.py --tool CHECKPOINT_TOOL [--device DEVICE] [--torch cpu|cuda] [RESULT_FILE]

The first trains through the daemon; the second by checkpoint_tool on DEVICE (default cpu-0), with PyTorch where --torch says.

From equal weights on equal batches each network is trained by PyTorch in float64 (the truth), in float32 and under
autocast, and by the daemon in FP32, BF16 and FP16. A curve's deviation is the root mean square over steps and seeds of
its losses' distance from the float64 losses. Ours in FP32 may deviate at most twice as much as PyTorch's float32 does (of a GPU's and the CPU's
the one that deviates more: whether a rounding tips a relu over is chance, and moves a curve by several times),
and ours in 16 bits at most twice as much as PyTorch's autocast in the same type. FP16 needs a PyTorch whose CPU autocast
knows it. CURVES=text runs the networks with that in their names only. Exits with 77 (skipped) where PyTorch is not installed.
"""
import argparse
import contextlib
import datetime
import json
import math
import os
import shutil
import subprocess
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

from torch_checkpoint_test import read_safetensors, sequential
from torch_training import Server

STEPS = 50
BATCH = 32
SEEDS = (1, 2, 3)
CLASSES = 10
SCALE = 1024.0
# Where PyTorch trains.
DEVICE = "cpu"
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
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
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


# --- A DCGAN pair: z to 16x16 images and back to one logit, as Radford et al. 2015 build them, but small.

NOISE = 16


def generator():
    return sequential(("ct1", nn.ConvTranspose2d(NOISE, 32, 4, bias=False)), ("bn1", nn.BatchNorm2d(32)), ("relu1", nn.ReLU()),
                      ("ct2", nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False)), ("bn2", nn.BatchNorm2d(16)),
                      ("relu2", nn.ReLU()), ("ct3", nn.ConvTranspose2d(16, 1, 4, 2, 1)), ("tanh", nn.Tanh()))


def discriminator():
    return sequential(("c1", nn.Conv2d(1, 16, 4, 2, 1)), ("lr1", nn.LeakyReLU(0.2)),
                      ("c2", nn.Conv2d(16, 32, 4, 2, 1, bias=False)), ("bn2", nn.BatchNorm2d(32)), ("lr2", nn.LeakyReLU(0.2)),
                      ("c3", nn.Conv2d(32, 1, 4)), ("flat", nn.Flatten()))


def upsampling(name, filters, bias=False):
    return {"name": name, "conv_transpose2d": {"filters": filters, "kernel": [4], "stride": [2], "pads": [1], "bias": bias}}


def downsampling(name, filters, bias=True):
    return {"name": name, "conv2d": {"filters": filters, "kernel": [4], "stride": [2], "pads": [1], "bias": bias}}


DCGAN = {
    "networks": [
        {"name": "generator", "layers": [
            {"name": "pixel", "reshape": {"shape": [1, 1, NOISE]}},
            {"name": "ct1", "conv_transpose2d": {"filters": 32, "kernel": [4], "bias": False}},
            {"name": "bn1", "batch_norm": {}}, {"name": "relu1", "relu": {}}, upsampling("ct2", 16),
            {"name": "bn2", "batch_norm": {}}, {"name": "relu2", "relu": {}}, upsampling("ct3", 1, True),
            {"name": "tanh", "tanh": {}}]},
        {"name": "discriminator", "layers": [
            downsampling("c1", 16), {"name": "lr1", "leaky_relu": {"negative_slope": 0.2}}, downsampling("c2", 32, False),
            {"name": "bn2", "batch_norm": {}}, {"name": "lr2", "leaky_relu": {"negative_slope": 0.2}},
            {"name": "c3", "conv2d": {"filters": 1, "kernel": [4]}}, {"name": "flat", "flatten": {}}]}],
    "noise": [{"name": "z", "shape": [NOISE]}]}

CROSS_ENTROPY = {"sigmoid_cross_entropy": {}}
DCGAN_PHASES = [
    {"name": "discriminator", "trains": ["discriminator"],
     "calls": [{"name": "fake", "network": "generator", "inputs": ["z"]},
               {"name": "on_real", "network": "discriminator", "inputs": ["data"]},
               {"name": "on_fake", "network": "discriminator", "inputs": ["fake"]}],
     "losses": [{"input": "on_real", "loss": CROSS_ENTROPY, "target": 1},
                {"input": "on_fake", "loss": CROSS_ENTROPY, "target": 0}]},
    {"name": "generator", "trains": ["generator"],
     "calls": [{"name": "fake", "network": "generator", "inputs": ["z"]},
               {"name": "on_fake", "network": "discriminator", "inputs": ["fake"]}],
     "losses": [{"input": "on_fake", "loss": CROSS_ENTROPY, "target": 1}]}]


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011) over arrays of counters [4, n]."""
    c = [x.astype(np.uint64) for x in counter]
    low, mask = [key & 0xFFFFFFFF, key >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(low[0]), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(low[1]), p0 & mask]
        low = [(low[0] + 0x9E3779B9) & 0xFFFFFFFF, (low[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c)


def noise(seed, step, source):
    """What docs/ops.md says random_normal draws for a batch: [BATCH, NOISE] in float64, rounded to float32."""
    stream = 0xCBF29CE484222325
    for byte in (source + ".noise").encode():
        stream = (stream ^ byte) * 0x100000001B3 % 2**64
    blocks = np.arange(NOISE // 2)
    counter = np.zeros((4, BATCH, len(blocks)), np.uint64)
    counter[0], counter[1] = blocks, np.arange(BATCH)[:, None]
    counter[2], counter[3] = step, stream & 0xFFFFFFFF
    words = philox(counter, seed)
    u = (words >> np.uint64(8)).astype(np.float64) * 2.0**-24
    even = np.sqrt(-2 * np.log(1 - u[0])) * np.cos(2 * np.pi * u[1])
    odd = np.sqrt(-2 * np.log(1 - u[2])) * np.cos(2 * np.pi * u[3])
    return np.stack([even, odd], -1).reshape(BATCH, NOISE).astype(np.float32)


def gan_job(optimizer, mode, seed, steps):
    spec = job([], optimizer, mode, seed, steps)
    return {**spec, "model": DCGAN, "phases": DCGAN_PHASES}


class Gan:
    """The pair, as run_network wants it."""

    adam = ({"adam": {"learning_rate": 0.001, "beta1": 0.5}}, lambda p: torch.optim.Adam(p, lr=0.001, betas=(0.5, 0.999)))
    losses_a_step = 2

    def data(self, folder, seed):
        return Data(folder, (16, 16, 1), seed)

    def weights(self, server, seed):
        tensors = server.train(gan_job({"sgd": {"learning_rate": 0.0}}, "FP32", seed, 1))[1]
        return OrderedDict((name, t) for name, t in tensors.items() if "running" not in name and "num_batches" not in name)

    def our_curve(self, server, mode, seed):
        events, _ = server.train(gan_job(self.adam[0], mode, seed, STEPS))
        return [phase["loss"] for event in events if "step" in event for phase in event["step"]["phases"]]

    def torch_curve(self, weights, data, seed, dtype, autocast):
        nets = {"generator": generator(), "discriminator": discriminator()}
        for name, net in nets.items():
            own = OrderedDict((key[len(name) + 1:], t) for key, t in weights.items() if key.startswith(name + "."))
            net.load_state_dict(own, strict=False)
            nets[name] = net.to(DEVICE, dtype).train()
        optimizers = {name: self.adam[1](net.parameters()) for name, net in nets.items()}
        losses = []
        for step in range(STEPS):
            z = torch.from_numpy(noise(seed, step, "z")).to(DEVICE, dtype)[:, :, None, None]
            real, _ = data.batch(step, dtype)
            for name in ("discriminator", "generator"):
                losses.append(self.update(nets, optimizers[name], name, real, z, autocast))
        return losses

    @staticmethod
    def update(nets, optimizer, name, real, z, autocast):
        for net in nets.values():
            net.zero_grad()
        critic, scale = nets["discriminator"], SCALE if autocast == torch.float16 else 1.0
        with torch.autocast(DEVICE, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            fake = nets["generator"](z)
            judged = [(critic(real), 1.0), (critic(fake.detach()), 0.0)] if name == "discriminator" else [(critic(fake), 1.0)]
        loss = 0
        for logits, target in judged:
            logits = logits if autocast is None else logits.float()
            loss = loss + functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))
        (loss * scale).backward()
        for p in nets[name].parameters():
            p.grad /= scale
        optimizer.step()
        return loss.item()


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
        x = torch.from_numpy(self.inputs[rows]).to(DEVICE, dtype)
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), torch.from_numpy(self.labels[rows]).to(DEVICE)


def job(layers, optimizer, mode, seed, steps):
    precision = {"mode": mode, **({"loss_scale": {"init": SCALE}} if mode == "FP16" else {})}
    return {"name": "curve", "seed": seed, "model": {"layers": layers, "loss": {"softmax_cross_entropy": {}}},
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "precision": precision, "optimizer": optimizer, "train": {"steps": steps, "batch_size": BATCH},
            "checkpoint": {"every_seconds": 0}, "report": {"every_steps": 1}}


class Classifier:
    """One of NETWORKS, as run_network wants it."""

    losses_a_step = 1

    def __init__(self, layers, build, shape, optimizer):
        self.layers, self.build, self.shape = layers, build, shape
        self.optimizer, self.make_optimizer = optimizer

    def data(self, folder, seed):
        return Data(folder, self.shape, seed)

    def weights(self, server, seed):
        """What a job of this network starts from: the weights after a step at rate 0."""
        tensors = server.train(job(self.layers, {"sgd": {"learning_rate": 0.0}}, "FP32", seed, 1))[1]
        return OrderedDict((name, t) for name, t in tensors.items() if "running" not in name and "num_batches" not in name)

    def our_curve(self, server, mode, seed):
        events, _ = server.train(job(self.layers, self.optimizer, mode, seed, STEPS))
        return [event["step"]["phases"][0]["loss"] for event in events if "step" in event]

    def torch_curve(self, weights, data, seed, dtype, autocast):
        del seed  # nothing random
        model = self.build()
        model.load_state_dict(weights, strict=False)
        model = model.to(DEVICE, dtype).train()
        optimizer = self.make_optimizer(model.parameters())
        scale = SCALE if autocast == torch.float16 else 1.0
        losses = []
        for step in range(STEPS):
            x, y = data.batch(step, dtype)
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                logits = model(x)
            loss = functional.cross_entropy(logits if autocast is None else logits.float(), y)
            (loss * scale).backward()
            for p in model.parameters():
                p.grad /= scale
            optimizer.step()
            losses.append(loss.item())
        return losses


class Tool:
    """What Server is, by a program that trains a job by itself."""

    def __init__(self, program, device, folder):
        self.command, self.folder = [program, f"--device={device}", "train"], folder

    def train(self, spec):
        path, target, events = (os.path.join(self.folder, name) for name in ("job.json", "checkpoints", "events.jsonl"))
        shutil.rmtree(target, ignore_errors=True)
        if os.path.exists(events):
            os.remove(events)
        with open(path, "w") as f:
            json.dump(spec, f)
        subprocess.run([*self.command, path, target, self.folder, events], check=True)
        with open(events) as f:
            told = [json.loads(line) for line in f]
        for root, _, files in sorted(os.walk(target)):
            if "model.safetensors" in files:
                return told, read_safetensors(os.path.join(root, "model.safetensors"))
        raise RuntimeError(f"no model.safetensors in {target}")

    def stop(self):
        pass


def knows_fp16():
    warnings.filterwarnings("ignore", "In CPU autocast")
    try:
        with torch.autocast(DEVICE, dtype=torch.float16):
            return torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE)).dtype == torch.float16
    except RuntimeError:
        return False


@contextlib.contextmanager
def on_cpu():
    global DEVICE
    before, DEVICE = DEVICE, "cpu"
    try:
        yield
    finally:
        DEVICE = before


def deviation(curves, truths):
    squares = [(a - b) ** 2 for curve, truth in zip(curves, truths) for a, b in zip(curve, truth)]
    return math.sqrt(sum(squares) / len(squares))


def run_network(server, folder, name, network):
    """Rows of (network, mode, our deviation, PyTorch's)."""
    modes = {"FP32": None, "BF16": torch.bfloat16, **({"FP16": torch.float16} if knows_fp16() else {})}
    truths, ours, theirs, by_cpu = [], {mode: [] for mode in modes}, {mode: [] for mode in modes}, []
    for seed in SEEDS:
        data = network.data(folder, seed)
        weights = network.weights(server, seed)
        truths.append(network.torch_curve(weights, data, seed, torch.float64, None))
        for mode, autocast in modes.items():
            try:
                curve = network.torch_curve(weights, data, seed, torch.float32, autocast)
            except RuntimeError as error:
                print(f"SKIPPED: {name}, {mode}: this PyTorch cannot: {str(error).splitlines()[0]}")
                continue
            theirs[mode].append(curve)
            if mode == "FP32" and DEVICE != "cpu":
                with on_cpu():
                    by_cpu.append(network.torch_curve(weights, data, seed, torch.float32, None))
            ours[mode].append(network.our_curve(server, mode, seed))
            if len(ours[mode][-1]) != STEPS * network.losses_a_step:
                raise RuntimeError(f"{name}, {mode}, seed {seed}: {len(ours[mode][-1])} losses")
    return [(name, mode, deviation(ours[mode], truths),
             max(deviation(c, truths) for c in (theirs[mode], by_cpu if mode == "FP32" else []) if c)) for mode in modes
            if len(ours[mode]) == len(SEEDS)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--tool")
    parser.add_argument("--device", default="cpu-0")
    parser.add_argument("--torch", default="cpu")
    parser.add_argument("paths", nargs="*")
    arguments = parser.parse_args()
    paths = arguments.paths[:] if arguments.tool else arguments.paths[1:]
    if len(paths) > 1 or (not arguments.tool and not arguments.paths):
        sys.exit(__doc__)
    global DEVICE
    DEVICE = arguments.torch
    torch.backends.cudnn.allow_tf32 = False
    networks = {name: Classifier(*network) for name, network in NETWORKS.items()}
    networks["DCGAN pair, Adam (both losses)"] = Gan()
    wanted = os.environ.get("CURVES", "")
    networks = {name: network for name, network in networks.items() if wanted in name}
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = Tool(arguments.tool, arguments.device, folder) if arguments.tool else Server(arguments.paths[0], folder)
        try:
            for name, network in networks.items():
                rows += run_network(server, folder, name, network)
        finally:
            server.stop()
    lines = ["| network | mode | our deviation | PyTorch's | ours / PyTorch's |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {mode} | {a:.2e} | {b:.2e} | {a / b:.2f} |" for name, mode, a, b in rows]
    print("\n".join(lines))
    if paths:
        with open(paths[0], "w") as file:
            file.write(f"# Training curves against PyTorch\n\n{datetime.date.today()}, PyTorch {torch.__version__}, {STEPS} "
                       f"steps, seeds {SEEDS}. Root mean square distance of the losses from PyTorch's in float64; "
                       "`tests/conformance/torch_curves.py`.\n\n" + "\n".join(lines) + "\n")
    wrong = [f"{name}, {mode}" for name, mode, a, b in rows if not a <= FACTOR * b]
    if wrong:
        sys.exit(f"deviates from float64 more than {FACTOR} times what PyTorch does: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
