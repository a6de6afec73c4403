#!/usr/bin/env python3
"""Trains random networks, and from equal weights on equal batches with PyTorch; compares losses and final weights.

usage: torch_random_networks.py PATH_OF_CHECKPOINT_TOOL [FIRST_SEED CASES]

A network is a random stack of layers over images, sequences or vectors, with a random loss, cut into random
micro-batches. The reference is PyTorch in float64; what it does in float32 is the measure: ours may be off by at most
SLACK times as much. Exits with 77 (skipped) where PyTorch is not installed.
"""
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from torch_checkpoint_test import read_safetensors

CASES, STEPS, RATE = 24, 3, 0.05
# Times PyTorch's own deviation in float32; and the share of the movement, and the number, that are never too much.
SLACK, SHARE, FLOOR = 16, 3e-4, 2e-6

ACTIVATIONS = {"relu": functional.relu, "leaky_relu": functional.leaky_relu, "elu": functional.elu,
               "gelu": functional.gelu, "silu": functional.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
               "softplus": functional.softplus}


class Network(nn.Module):
    """Layers as a job has them, and the same as modules and functions of PyTorch."""

    def __init__(self, rng, sample):
        super().__init__()
        self.rng, self.sample, self.layers, self.functions = rng, sample, [], []

    def add(self, kind, fields, module=None, function=None, inputs=None):
        name = f"{kind}_{len(self.layers)}"
        if module is not None:
            self.add_module(name, module)
            function = function or (lambda m, x, _: m(x))
        self.layers.append({"name": name, kind: fields, **({"inputs": inputs} if inputs else {})})
        self.functions.append((name, function))

    def forward(self, x):
        values = {}
        for name, function in self.functions:
            x = values[name] = function(getattr(self, name, None), x, values)
        return x

    def shape(self):
        """Of a sample, as PyTorch has it so far."""
        self.eval()
        with torch.no_grad():
            shape = self(self.sample).shape[1:]
        self.train()
        return tuple(shape)

    def pair(self, low, high):
        return [self.rng.randint(low, high), self.rng.randint(low, high)]

    def divisor(self, n):
        return self.rng.choice([d for d in range(1, n + 1) if n % d == 0])

    def activation(self):
        kind = self.rng.choice(sorted(ACTIVATIONS))
        self.add(kind, {}, function=lambda _, x, __: ACTIVATIONS[kind](x))

    def convolution(self, c, h, w):
        kernel, stride, dilation, pads = self.pair(1, 3), self.pair(1, 3), self.pair(1, 2), self.pair(0, 2)
        groups = self.divisor(c)
        filters, bias = groups * self.rng.randint(1, 4), self.rng.random() < 0.7
        if any(n + 2 * p < (k - 1) * d + 1 for n, p, k, d in zip((h, w), pads, kernel, dilation)):
            return
        self.add("conv2d", {"filters": filters, "kernel": kernel, "stride": stride, "dilation": dilation,
                            "groups": groups, "pads": pads, "bias": bias},
                 nn.Conv2d(c, filters, kernel, stride, pads, dilation, groups, bias))

    def transposed(self, c, h, w):
        kernel, stride, pads = self.pair(1, 3), self.pair(1, 2), self.pair(0, 1)
        output = [self.rng.randint(0, s - 1) for s in stride]
        groups = self.divisor(c)
        filters = groups * self.rng.randint(1, 3)
        if h * w > 150 or min((n - 1) * s - 2 * p + k for n, s, p, k in zip((h, w), stride, pads, kernel)) < 1:
            return
        self.add("conv_transpose2d", {"filters": filters, "kernel": kernel, "stride": stride, "groups": groups,
                                      "pads": pads, "output_padding": output},
                 nn.ConvTranspose2d(c, filters, kernel, stride, pads, output, groups))

    def pool(self, c, h, w):
        size, stride = self.pair(2, 3), self.pair(1, 3)
        pads = [self.rng.randint(0, k // 2) for k in size]
        if min(h + 2 * pads[0] - size[0], w + 2 * pads[1] - size[1]) < 0:
            return
        fields = {"size": size, "stride": stride, "pads": pads}
        if self.rng.random() < 0.5:
            return self.add("max_pool", fields, nn.MaxPool2d(size, stride, pads))
        count = self.rng.random() < 0.5
        self.add("avg_pool", {**fields, "count_include_pad": count},
                 nn.AvgPool2d(size, stride, pads, count_include_pad=count))

    def norm(self, c, h, w):
        kind, groups = self.rng.choice(["batch_norm", "group_norm", "instance_norm"]), self.divisor(c)
        if kind == "batch_norm":
            self.add(kind, {"momentum": 0.3}, nn.BatchNorm2d(c, momentum=0.3))
        elif kind == "group_norm" and c // groups * h * w > 1:
            self.add(kind, {"groups": groups}, nn.GroupNorm(groups, c))
        elif kind == "instance_norm" and h * w > 2:
            self.add(kind, {"affine": True}, nn.InstanceNorm2d(c, affine=True))

    def block(self, c, h, w):
        if not self.layers:
            return
        before = self.layers[-1]["name"]
        self.add("conv2d", {"filters": c, "kernel": [3, 3], "padding": "SAME"}, nn.Conv2d(c, c, 3, padding=1))
        inputs = [before, self.layers[-1]["name"]]
        if self.rng.random() < 0.5:
            return self.add("add", {}, function=lambda _, x, v: v[before] + x, inputs=inputs)
        self.add("mul", {}, function=lambda _, x, v: v[before] * x, inputs=inputs)

    def image(self):
        for _ in range(self.rng.randint(1, 4)):
            self.rng.choice([self.convolution, self.transposed, self.pool, self.norm, self.block,
                             lambda *_: self.activation()])(*self.shape())
        if self.rng.random() < 0.3:
            return self.add("global_avg_pool", {}, function=lambda _, x, __: x.mean((2, 3)))
        self.add("flatten", {}, nn.Flatten())

    def recurrence(self, features, last):
        kind, module = self.rng.choice([("lstm", nn.LSTM), ("gru", nn.GRU)])
        units, layers = self.rng.randint(2, 6), self.rng.randint(1, 2)
        both, bias = not last and self.rng.random() < 0.5, self.rng.random() < 0.7
        self.add(kind, {"units": units, "layers": layers, "bias": bias, "bidirectional": both,
                        "output": "LAST_STEP" if last else "ALL_STEPS"},
                 module(features, units, layers, bias=bias, batch_first=True, bidirectional=both),
                 lambda m, x, _: m(x)[0][:, -1] if last else m(x)[0])

    def attention(self, features):
        heads, causal = self.divisor(features), self.rng.random() < 0.5

        def run(module, x, _):
            mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1) if causal else None
            return module(x, x, x, attn_mask=mask, need_weights=False)[0]

        self.add("multi_head_attention", {"heads": heads, "causal": causal},
                 nn.MultiheadAttention(features, heads, batch_first=True), run)

    def sequence(self):
        self.recurrence(self.shape()[1], False)
        for _ in range(self.rng.randint(0, 3)):
            time, features = self.shape()
            kind = self.rng.choice(["recurrence", "attention", "activation", "dense", "norm", "positions"])
            if kind == "recurrence":
                self.recurrence(features, False)
            elif kind == "attention":
                self.attention(features)
            elif kind == "activation":
                self.activation()
            elif kind == "positions":
                self.add("positional_embedding", {"positions": time + 1}, nn.Embedding(time + 1, features),
                         lambda m, x, _: x + m.weight[:x.shape[1]])
            else:
                self.vector(features, ["dense" if kind == "dense" else "layer_norm"])
        if self.rng.random() < 0.5:
            return self.add("flatten", {}, nn.Flatten())
        self.recurrence(self.shape()[1], True)

    def vector(self, features, kinds=("dense", "layer_norm", "batch_norm", "activation")):
        kind, units = self.rng.choice(kinds), self.rng.randint(3, 8)
        if kind == "dense":
            self.add(kind, {"units": units}, nn.Linear(features, units))
        elif kind == "layer_norm" and features > 1:
            self.add(kind, {}, nn.LayerNorm(features))
        elif kind == "batch_norm":
            self.add(kind, {}, nn.BatchNorm1d(features))
        elif kind == "activation":
            self.activation()

    def head(self):
        for _ in range(self.rng.randint(0, 2)):
            self.vector(self.shape()[0])
        (features,) = self.shape()
        # A flattened image may be the outputs, too.
        if features < 3 or features > 60 or not list(self.parameters()) or self.rng.random() < 0.6:
            self.add("dense", {"units": 5}, nn.Linear(features, 5))
        return self.shape()[0]


def random_network(rng):
    kind = rng.choice(["image", "image", "sequence", "vector"])
    shape = {"image": (rng.randint(5, 11), rng.randint(5, 11), rng.randint(1, 4)),
             "sequence": (rng.randint(3, 9), rng.randint(2, 6)), "vector": (rng.randint(3, 12),)}[kind]
    sample = torch.randn(2, *shape)
    network = Network(rng, sample.permute(0, 3, 1, 2) if kind == "image" else sample)
    if kind != "vector":
        getattr(network, kind)()
    return network, shape, network.head()


def random_loss(rng, outputs, samples):
    """The job's loss, PyTorch's, and targets."""
    kind = rng.choice(["labels", "labels", "mean_squared_error", "l1", "smooth_l1", "sigmoid_cross_entropy"])
    if kind != "labels":
        loss = {"mean_squared_error": functional.mse_loss, "l1": functional.l1_loss,
                "smooth_l1": functional.smooth_l1_loss,
                "sigmoid_cross_entropy": functional.binary_cross_entropy_with_logits}[kind]
        return {kind: {}}, loss, (np.random.rand(samples, outputs) > 0.5).astype(np.float32)
    fields, options = {}, {}
    if rng.random() < 0.5:
        fields["label_smoothing"] = options["label_smoothing"] = 0.2
    if rng.random() < 0.5:
        fields["ignore_index"] = options["ignore_index"] = rng.randrange(outputs)
    weights = [round(rng.uniform(0.2, 3), 3) for _ in range(outputs)] if rng.random() < 0.5 else [1.0] * outputs
    fields["class_weights"] = weights

    def loss(logits, labels):
        return functional.cross_entropy(logits, labels, weight=torch.tensor(weights, dtype=logits.dtype), **options)

    return {"softmax_cross_entropy": fields}, loss, np.random.randint(0, outputs, samples).astype(np.int64)


def run_ours(tool, folder, spec, rate, steps):
    """The final weights, and the loss of every step."""
    name = os.path.join(folder, f"rate_{rate}")
    spec = {**spec, "optimizer": {**spec["optimizer"], "sgd": {"learning_rate": rate, "momentum": 0.5}},
            "train": {**spec["train"], "steps": steps}}
    with open(name + ".json", "w") as f:
        json.dump(spec, f)
    subprocess.run([tool, "train", name + ".json", name, folder, name + ".events"], check=True)
    (checkpoint,) = os.listdir(name)
    with open(name + ".events") as f:
        events = [json.loads(line) for line in f]
    losses = [float(e["step"]["phases"][0]["loss"]) for e in events if "step" in e]
    return read_safetensors(os.path.join(name, checkpoint, "model.safetensors")), losses


def run_torch(network, initial, x, y, loss, batch, clip, dtype):
    model = copy.deepcopy(network)
    fresh = {name: tensor for name, tensor in model.state_dict().items() if "running_" in name or "num_" in name}
    model.load_state_dict({**initial, **fresh}, strict=True)
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.5)
    losses = []
    for n in range(0, STEPS * batch, batch):
        targets = torch.from_numpy(y[n:n + batch])
        optimizer.zero_grad()
        value = loss(model(x[n:n + batch].to(dtype)), targets if y.dtype == np.int64 else targets.to(dtype))
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(value.item())
    return {name: tensor.double() for name, tensor in model.state_dict().items()}, losses


def run_case(tool, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    np.random.seed(seed)
    network, shape, outputs = random_network(rng)
    batch = rng.choice([6, 8, 12])
    has_batch_norm = any("batch_norm" in layer for layer in network.layers)
    micro = batch if has_batch_norm else rng.choice([d for d in range(1, batch + 1) if batch % d == 0])
    job_loss, loss, y = random_loss(rng, outputs, STEPS * batch)
    x = np.random.randn(STEPS * batch, *shape).astype(np.float32)
    clip = rng.choice([None, 0.3])
    spec = {"model": {"layers": network.layers, "loss": job_loss},
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "optimizer": {"clip_global_norm": clip} if clip else {}, "report": {"every_steps": 1}, "seed": seed,
            "train": {"batch_size": batch, "micro_batch_size": micro}}
    with tempfile.TemporaryDirectory() as folder:
        np.save(os.path.join(folder, "x.npy"), x)
        np.save(os.path.join(folder, "y.npy"), y)
        initial, _ = run_ours(tool, folder, spec, 0.0, 1)
        ours, our_losses = run_ours(tool, folder, spec, RATE, STEPS)
    x = torch.from_numpy(x)
    x = x.permute(0, 3, 1, 2) if len(shape) == 3 else x
    exact, exact_losses = run_torch(network, initial, x, y, loss, batch, clip, torch.float64)
    single, single_losses = run_torch(network, initial, x, y, loss, batch, clip, torch.float32)
    wrong = [f"loss {a}, {b}" for a, b, c in zip(our_losses, exact_losses, single_losses)
             if not abs(a - b) <= 1e-5 * (1 + abs(b)) + SLACK * abs(b - c)]
    for name, tensor in exact.items():
        off = (ours[name].double() - tensor).abs().max().item()
        moved = (tensor - initial[name].double()).abs().max().item()
        if not off <= SLACK * (single[name] - tensor).abs().max().item() + SHARE * moved + FLOOR:
            wrong.append(f"{name} is off by {off:.2e}, moved by {moved:.2e}")
    if wrong:
        print(f"seed {seed}:", "; ".join(wrong), json.dumps(spec))
    return not wrong


def main():
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    first, cases = (int(a) for a in sys.argv[2:]) if len(sys.argv) == 4 else (0, CASES)
    failed = [seed for seed in range(first, first + cases) if not run_case(sys.argv[1], seed)]
    if failed:
        sys.exit(f"networks of seeds {failed} differ from PyTorch's")
    print(f"{cases} networks agree with PyTorch's")


if __name__ == "__main__":
    main()
