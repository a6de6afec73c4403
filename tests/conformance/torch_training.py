#!/usr/bin/env python3
"""Trains small networks through the daemon and, from equal weights on equal batches, with PyTorch; compares every step.

usage: torch_training.py FOLDER_OF_THE_PROGRAMS

Compared are the loss, the learning rate and the gradient norm of each step, the evaluation at the end, and the final
weights and running statistics. Exits with 77 (skipped) where PyTorch is not installed.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from torch_checkpoint_test import Add, SamePad, read_safetensors, sequential

STEPS = 30
BATCH = 32
# Neither a multiple of the batch: training drops the rest, evaluation masks it.
TRAIN_SAMPLES, EVAL_SAMPLES = 250, 75
IMAGE = (11, 14, 3)
FEATURES, CLASSES, TARGETS = 20, 10, 4


class MaxPoolSame(nn.Module):
    """A 3x3 maximum at stride 2 over a SAME-padded image."""

    def forward(self, x):
        return functional.max_pool2d(functional.pad(x, same_pads(x, 3, 2), value=-math.inf), 3, 2)


class AvgPoolSame(nn.Module):
    """A 3x3 mean at stride 2 over the real pixels of a SAME-padded image."""

    def forward(self, x):
        pads = same_pads(x, 3, 2)
        total = functional.avg_pool2d(functional.pad(x, pads), 3, 2)
        return total / functional.avg_pool2d(functional.pad(torch.ones_like(x), pads), 3, 2)


def same_pads(x, kernel, stride):
    pads = []
    for extent in (x.shape[3], x.shape[2]):
        total = max((-(-extent // stride) - 1) * stride + kernel - extent, 0)
        pads += [total // 2, total - total // 2]
    return pads


MLP_LAYERS = [
    {"name": "fc1", "dense": {"units": 48, "activation": "RELU"}},
    {"name": "fc2", "dense": {"units": 32, "bias": False}},
    {"name": "bn", "batch_norm": {"momentum": 0.3}},
    {"name": "act", "relu": {}},
    {"name": "head", "dense": {"units": CLASSES}},
]


def mlp():
    return sequential(("fc1", nn.Linear(FEATURES, 48)), ("relu", nn.ReLU()), ("fc2", nn.Linear(48, 32, bias=False)),
                      ("bn", nn.BatchNorm1d(32, momentum=0.3)), ("act", nn.ReLU()), ("head", nn.Linear(32, CLASSES)))


CONV_LAYERS = [
    {"name": "conv1", "conv2d": {"filters": 8, "kernel": [4, 4], "stride": [2, 2], "padding": "SAME", "bias": False}},
    {"name": "bn1", "batch_norm": {}},
    {"name": "relu1", "relu": {}},
    {"name": "max", "max_pool": {"size": [3, 3], "stride": [2, 2], "padding": "SAME"}},
    {"name": "conv2", "conv2d": {"filters": 12, "kernel": [2, 3], "padding": "VALID", "activation": "RELU"}},
    {"name": "bn2", "batch_norm": {"epsilon": 0.001}},
    {"name": "avg", "avg_pool": {"size": [3, 3], "stride": [2, 2], "padding": "SAME"}},
    {"name": "flat", "flatten": {}},
    {"name": "head", "dense": {"units": CLASSES}},
]


def convnet():
    return sequential(
        ("pad1", SamePad(4, 2)), ("conv1", nn.Conv2d(3, 8, 4, stride=2, bias=False)), ("bn1", nn.BatchNorm2d(8)),
        ("relu1", nn.ReLU()), ("max", MaxPoolSame()), ("conv2", nn.Conv2d(8, 12, (2, 3))), ("relu2", nn.ReLU()),
        ("bn2", nn.BatchNorm2d(12, eps=0.001)), ("avg", AvgPoolSame()), ("flat", nn.Flatten()),
        ("head", nn.Linear(12 * 1 * 1, CLASSES)))


RESIDUAL_LAYERS = [
    {"name": "stem", "conv2d": {"filters": 8, "kernel": [3, 3], "stride": [2, 1], "activation": "RELU"}},
    {"name": "block.conv", "conv2d": {"filters": 8, "kernel": [3, 3], "padding": "SAME"}},
    {"name": "sum", "inputs": ["stem", "block.conv"], "add": {}},
    {"name": "gap", "global_avg_pool": {}},
    {"name": "head", "dense": {"units": TARGETS}},
]


def residual():
    return sequential(("stem", nn.Conv2d(3, 8, 3, stride=(2, 1))), ("relu", nn.ReLU()),
                      ("block", Add(conv=nn.Conv2d(8, 8, 3, padding=1))), ("gap", nn.AdaptiveAvgPool2d(1)),
                      ("flat", nn.Flatten()), ("head", nn.Linear(8, TARGETS)))


def warm(warmup, rate):
    """`rate` by step, after a linear rise over the first `warmup` steps."""
    return lambda n: rate(n) * min(1.0, (n + 1) / warmup)


def cosine(warmup):
    return lambda n: 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * max(n - warmup, 0) / (STEPS - warmup)))


# Each: the job's optimizer, PyTorch's, and the factor of the rate by step.
SGD = ({"sgd": {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.001}},
       lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.001), lambda n: 1.0)
PLAIN_SGD = ({"sgd": {"learning_rate": 0.2}, "schedule": {"step": {"every_steps": 8, "gamma": 0.5}}},
             lambda p: torch.optim.SGD(p, lr=0.2), lambda n: 0.5 ** (n // 8))
ADAM = ({"adam": {"learning_rate": 0.004, "beta1": 0.8, "beta2": 0.99, "weight_decay": 0.01}},
        lambda p: torch.optim.Adam(p, lr=0.004, betas=(0.8, 0.99), weight_decay=0.01), lambda n: 1.0)
ADAMW = ({"adamw": {"learning_rate": 0.01, "weight_decay": 0.1}, "clip_global_norm": 0.5,
          "schedule": {"cosine": {"warmup_steps": 6, "min_ratio": 0.1}}},
         lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), warm(6, cosine(6)))
LINEAR = ({"sgd": {"learning_rate": 0.1, "momentum": 0.5},
           "schedule": {"linear": {"warmup_steps": 4, "min_ratio": 0.2}}},
          lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
          warm(4, lambda n: 1 - 0.8 * max(n - 4, 0) / (STEPS - 1 - 4)))

# Each: the layers, the PyTorch model, the kind of data.
MLP = (MLP_LAYERS, mlp, "flat")
CONV = (CONV_LAYERS, convnet, "images")
RESIDUAL = (RESIDUAL_LAYERS, residual, "regression")

CASES = [
    ("mlp, SGD with momentum", MLP, SGD, "FP32", BATCH),
    ("mlp, plain SGD, steps", MLP, PLAIN_SGD, "FP32", BATCH),
    ("convnet, Adam", CONV, ADAM, "FP32", BATCH),
    ("convnet, AdamW, cosine, clipping", CONV, ADAMW, "FP32", BATCH),
    ("convnet, AdamW, micro-batches", CONV, ADAMW, "FP32", 8),
    ("residual, squared error, linear", RESIDUAL, LINEAR, "FP32", BATCH),
    ("residual, micro-batches", RESIDUAL, LINEAR, "FP32", 16),
    ("mlp, SGD with momentum", MLP, SGD, "FP16", BATCH),
    ("convnet, AdamW, micro-batches", CONV, ADAMW, "FP16", 8),
    ("residual, squared error, linear", RESIDUAL, LINEAR, "FP16", BATCH),
    ("mlp, SGD with momentum", MLP, SGD, "BF16", BATCH),
    ("convnet, Adam", CONV, ADAM, "BF16", BATCH),
    ("residual, squared error, linear", RESIDUAL, LINEAR, "BF16", BATCH),
]

# The largest relative differences. "early" is steps 1 to 3. Small batches under a norm make a chaotic system of the
# convnet: it multiplies a rounding by some thousands within 30 steps, so that its 16-bit weights part from any other
# implementation's, and only what comes early, and the losses, can be compared.
BOUNDS = {
    "FP32": {"rate": 1e-6, "early loss": 1e-5, "loss": 1e-4, "early norm": 1e-4, "norm": 1e-3, "evaluation": 1e-4,
             "weights": 2e-2},
    "FP16": {"rate": 1e-6, "early loss": 2e-4, "loss": 0.1, "early norm": 2e-3, "evaluation": 0.1},
    "BF16": {"rate": 1e-6, "early loss": 2e-3, "loss": 0.1, "early norm": 1e-2, "evaluation": 0.1},
}


class Data:
    """Random samples with something to learn in them, as arrays and as files beneath `folder`."""

    def __init__(self, folder, kind):
        rng = np.random.default_rng(7)
        self.kind = kind
        self.folder = folder
        shape = (FEATURES,) if kind == "flat" else IMAGE
        samples = TRAIN_SAMPLES + EVAL_SAMPLES
        self.inputs = rng.standard_normal((samples,) + shape).astype(np.float32)
        flat = self.inputs.reshape(samples, -1)
        outputs = TARGETS if kind == "regression" else CLASSES
        scores = flat @ rng.standard_normal((flat.shape[1], outputs)).astype(np.float32) / math.sqrt(flat.shape[1])
        self.targets = scores.astype(np.float32) if kind == "regression" else scores.argmax(1).astype(np.int64)
        for part, rows in (("train", slice(0, TRAIN_SAMPLES)), ("eval", slice(TRAIN_SAMPLES, None))):
            np.save(os.path.join(folder, f"{kind}_{part}_x.npy"), self.inputs[rows])
            np.save(os.path.join(folder, f"{kind}_{part}_y.npy"), self.targets[rows])

    def spec(self):
        files = {part: {"npy": {"inputs": f"{self.kind}_{part}_x.npy", "targets": f"{self.kind}_{part}_y.npy"}}
                 for part in ("train", "eval")}
        return {**files, "shuffle": False}

    def tensors(self, first, last):
        x = torch.from_numpy(self.inputs[first:last])
        return (x.permute(0, 3, 1, 2) if x.dim() == 4 else x), torch.from_numpy(self.targets[first:last])

    def loss(self, outputs, targets):
        if self.kind == "regression":
            return functional.mse_loss(outputs, targets)
        return functional.cross_entropy(outputs, targets)


class Server:
    """A daemon of its own, and what the client says about its jobs."""

    def __init__(self, programs, folder):
        self.programs = programs
        self.folder = folder
        with open(os.path.join(folder, "ampd.log"), "w") as log:
            self.process = subprocess.Popen(
                [os.path.join(programs, "ampd"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state-dir",
                 os.path.join(folder, "state"), "--data-root", folder], stdout=subprocess.PIPE, stderr=log, text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("ampd ready grpc="):
            sys.exit(f"the daemon did not start: {ready!r}")
        self.address = ready.split("grpc=")[1].split()[0]

    def client(self, *arguments):
        done = subprocess.run([os.path.join(self.programs, "ampctl"), "--server", self.address, *arguments],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"ampctl {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def train(self, spec):
        """The job's events and its last checkpoint's tensors."""
        path = os.path.join(self.folder, "job.yaml")
        with open(path, "w") as f:
            json.dump(spec, f)
        job = self.client("submit", path, "-q").strip()
        events = [json.loads(line) for line in self.client("-o", "jsonl", "watch", job).splitlines()]
        target = os.path.join(self.folder, job)
        self.client("download", job, target)
        for root, _, files in os.walk(target):
            if "model.safetensors" in files:
                return events, read_safetensors(os.path.join(root, "model.safetensors"))
        raise RuntimeError(f"no model.safetensors in {target}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


# By mode: the 16-bit type and the default loss scale.
ROUNDING = {"FP16": (torch.float16, 65536.0), "BF16": (torch.bfloat16, 1.0)}


class Round(torch.autograd.Function):
    """Rounds a value to `dtype` on the way forward, and its gradient, times the loss scale, on the way back; with a
    scale of 0 the gradient stays as it is."""

    @staticmethod
    def forward(context, x, dtype, scale):
        context.dtype, context.scale = dtype, scale
        return x.to(dtype).float()

    @staticmethod
    def backward(context, gradient):
        if context.scale == 0:
            return gradient, None, None
        return (gradient * context.scale).to(context.dtype).float() / context.scale, None, None


def forward(module, x, mode):
    """What `module` gives for x where every tensor is held in the mode's type, with fp32 inside each operation."""
    if mode == "FP32":
        return module(x)

    def rounded(value):
        return Round.apply(value, *ROUNDING[mode])

    x = rounded(x)
    if isinstance(module, Add):
        y = x
        for child in module.children():
            y = forward(child, y, mode)
        return rounded(x + y)
    if isinstance(module, nn.Sequential):
        for child in module:
            x = forward(child, x, mode)
        return x
    if isinstance(module, nn.Linear):
        # Products leave their weights' gradients in fp32.
        weight = Round.apply(module.weight, ROUNDING[mode][0], 0)
        y = rounded(functional.linear(x, weight))
        return y if module.bias is None else rounded(y + rounded(module.bias))
    if isinstance(module, nn.Conv2d):
        y = rounded(functional.conv2d(x, rounded(module.weight), None, module.stride, module.padding))
        return y if module.bias is None else rounded(y + rounded(module.bias)[:, None, None])
    return rounded(module(x))


def job(network, data, optimizer, mode, micro_batch, steps):
    layers, _, kind = network
    loss = "mean_squared_error" if kind == "regression" else "softmax_cross_entropy"
    return {
        "name": "conformance", "seed": 5, "model": {"layers": layers, "loss": {loss: {}}}, "data": data.spec(),
        "precision": {"mode": mode}, "optimizer": optimizer,
        "train": {"steps": steps, "batch_size": BATCH, "micro_batch_size": micro_batch, "eval_every_epochs": 1000},
        "checkpoint": {"every_seconds": 0}, "report": {"every_steps": 1},
    }


def initial_weights(server, network, data):
    """What a job of this network starts from: the weights after a step at rate 0."""
    spec = job(network, data, {"sgd": {"learning_rate": 0.0}}, "FP32", BATCH, 1)
    return OrderedDict((name, tensor) for name, tensor in server.train(spec)[1].items()
                       if "running" not in name and "num_batches" not in name)


def train_in_torch(model, data, mode, make_optimizer, factor, clip, micro_batch):
    """Per step: (loss, rate, gradient norm)."""
    optimizer = make_optimizer(model.parameters())
    base = optimizer.param_groups[0]["lr"]
    steps = []
    model.train()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = base * factor(step)
        optimizer.zero_grad()
        begin = step % (TRAIN_SAMPLES // BATCH) * BATCH
        loss = 0.0
        for first in range(begin, begin + BATCH, micro_batch):
            x, y = data.tensors(first, first + micro_batch)
            part = data.loss(forward(model, x, mode), y) * (micro_batch / BATCH)
            part.backward()
            loss += part.item()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf).item()
        optimizer.step()
        steps.append((loss, base * factor(step), norm))
    return steps


def evaluate(model, data, mode):
    model.eval()
    x, y = data.tensors(TRAIN_SAMPLES, TRAIN_SAMPLES + EVAL_SAMPLES)
    with torch.no_grad():
        outputs = forward(model, x, mode)
        right = None if data.kind == "regression" else (outputs.argmax(1) == y).float().mean().item()
        return data.loss(outputs, y).item(), right


def relative(a, b):
    return abs(float(a) - b) / max(abs(b), 1e-6)


def differences(mode, reports, theirs):
    worst = {"rate": 0.0, "early loss": 0.0, "loss": 0.0, "early norm": 0.0, "norm": 0.0}
    for n, (report, (loss, rate, norm)) in enumerate(zip(reports, theirs)):
        (phase,) = report["phases"]
        # Before a maximum or a relu that differs by a rounding sends gradients elsewhere.
        early = "early " if n < 3 else ""
        for key, ours, value in (("rate", phase["learning_rate"], rate), (early + "loss", phase["loss"], loss),
                                 (early + "norm", phase["gradient_norm"], norm)):
            worst[key] = max(worst[key], relative(ours, value))
    return worst


def run_case(server, folder, case):
    """The list of what differs too much."""
    name, network, (spec, make_optimizer, factor), mode, micro_batch = case
    data = Data(folder, network[2])
    model = network[1]()
    model.load_state_dict(initial_weights(server, network, data), strict=False)
    events, ours = server.train(job(network, data, spec, mode, micro_batch, STEPS))
    theirs = train_in_torch(model, data, mode, make_optimizer, factor, spec.get("clip_global_norm"), micro_batch)

    reports = [event["step"] for event in events if "step" in event]
    skipped = sum("overflow_skip" in event for event in events)
    if len(reports) != STEPS or skipped:
        return [f"{len(reports)} reports, {skipped} skipped steps"]
    worst = differences(mode, reports, theirs)

    (evaluation,) = [event["evaluation"] for event in events if "evaluation" in event]
    loss, accuracy = evaluate(model, data, mode)
    worst["evaluation"] = relative(evaluation["loss"], loss)
    wrong = []
    # One sample may lie on the border of two classes.
    if accuracy is not None and mode == "FP32" and abs(evaluation["accuracy"] - accuracy) > 1.5 / EVAL_SAMPLES:
        wrong.append(f"accuracy {evaluation['accuracy']}, PyTorch's {accuracy}")
    state = {key: tensor.double() for key, tensor in model.state_dict().items()}
    if set(state) != set(ours):
        return wrong + [f"tensors {sorted(ours)}, PyTorch's {sorted(state)}"]
    worst["weights"] = max(((ours[key].double() - tensor).norm() / tensor.norm().clamp(min=1e-3)).item()
                           for key, tensor in state.items())
    print(f"{mode} {name}: loss {theirs[0][0]:.3f} to {theirs[-1][0]:.3f}; differences: " +
          ", ".join(f"{key} {value:.1e}" for key, value in worst.items()))
    return wrong + [f"{key}: {worst[key]:.2e} > {bound:.0e}" for key, bound in BOUNDS[mode].items()
                    if not worst[key] <= bound]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], folder)
        try:
            for case in CASES:
                failed += [f"{case[3]} {case[0]}: {what}" for what in run_case(server, folder, case)]
        finally:
            server.stop()
    if failed:
        sys.exit("differs from PyTorch:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
