#!/usr/bin/env python3
"""Trains model presets, and the same networks written in PyTorch, from equal weights on equal batches; compares both.

usage: torch_presets.py PATH_OF_CHECKPOINT_TOOL [NAME]

Compared are the names and numbers of parameters, the losses of a few steps and the weights after them, which move by
the gradients. The reference is PyTorch in float64; what it does in float32 is the measure. FP16 and BF16 are held
against FP32. Exits with 77 (skipped) where PyTorch is not installed.
"""
import math
import os
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

import torch_random_networks as networks

STEPS, RATE = networks.STEPS, networks.RATE


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden_1, self.hidden_2, self.output = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.output(functional.relu(self.hidden_2(functional.relu(self.hidden_1(x)))))


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (inputs, filters, kernel) in enumerate(((3, 32, 5), (32, 64, 7), (64, 128, 11)), 1):
            self.add_module(f"conv{i}", nn.Conv2d(inputs, filters, kernel, 2, kernel // 2))
            self.add_module(f"bn{i}", nn.BatchNorm2d(filters))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        for i in (1, 2, 3):
            x = getattr(self, f"bn{i}")(functional.relu(getattr(self, f"conv{i}")(x)))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self, inputs, filters, stride, bottleneck):
        super().__init__()
        outputs = 4 * filters if bottleneck else filters
        # Filters, kernel and stride of each convolution; the stride in the 3x3 one.
        shapes = ([(filters, 1, 1), (filters, 3, stride), (outputs, 1, 1)] if bottleneck else
                  [(filters, 3, stride), (outputs, 3, 1)])
        self.count, channels = len(shapes), inputs
        for i, (n, kernel, s) in enumerate(shapes, 1):
            self.add_module(f"conv{i}", nn.Conv2d(channels, n, kernel, s, kernel // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(n))
            channels = n
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = functional.relu(y) if i < self.count else y
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class Resnet(nn.Module):
    def __init__(self, blocks, small=False, bottleneck=False, classes=10):
        super().__init__()
        channels = width = 16 if small else 64
        self.small, self.stages = small, len(blocks)
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if small else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        for stage, count in enumerate(blocks):
            layers = []
            for block in range(count):
                layers.append(Block(channels, width << stage, 2 if stage and not block else 1, bottleneck))
                channels = (width << stage) * (4 if bottleneck else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        x = x if self.small else functional.max_pool2d(x, 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Unet(nn.Module):
    def __init__(self, depth=3, width=16, classes=2):
        super().__init__()
        self.depth = depth
        for level in range(depth + 1):
            self.add_module(f"down{level}", self.two(width << level >> 1 if level else 3, width << level))
        for level in range(depth):
            up = self.two(width << (level + 1), width << level)
            up.add_module("conv", nn.ConvTranspose2d(width << (level + 1), width << level, 2, 2))
            self.add_module(f"up{level}", up)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def two(inputs, filters):
        module = nn.Module()
        for i, channels in enumerate((inputs, filters), 1):
            module.add_module(f"conv{i}", nn.Conv2d(channels, filters, 3, padding=1, bias=False))
            module.add_module(f"bn{i}", nn.BatchNorm2d(filters))
        return module

    @staticmethod
    def run(module, x):
        x = functional.relu(module.bn1(module.conv1(x)))
        return functional.relu(module.bn2(module.conv2(x)))

    def forward(self, x):
        skips = []
        for level in range(self.depth + 1):
            x = self.run(getattr(self, f"down{level}"), functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for level in reversed(range(self.depth)):
            up = getattr(self, f"up{level}")
            x = self.run(up, torch.cat([skips[level], up.conv(x)], 1))
        return self.head(x).flatten(2)


class Ssd(nn.Module):
    def __init__(self, classes=3, width=4):
        super().__init__()
        channels, self.outputs = 3, 5 + classes
        for stage in range(6):
            for i in (1, 2):
                self.add_module(f"conv{stage}_{i}", nn.Conv2d(channels, width << min(stage, 3), 3, padding=1))
                channels = width << min(stage, 3)
            if stage >= 3:
                self.add_module(f"head{stage - 3}", nn.Conv2d(channels, 4 * self.outputs, 3, padding=1))

    def forward(self, x):
        predictions = []
        for stage in range(6):
            x = functional.max_pool2d(x, 2) if stage else x
            for i in (1, 2):
                x = functional.relu(getattr(self, f"conv{stage}_{i}")(x))
            if stage >= 3:
                y = getattr(self, f"head{stage - 3}")(x)
                predictions.append(y.permute(0, 2, 3, 1).reshape(len(x), -1, self.outputs))
        return torch.cat(predictions, 1)


def ssd_priors(size):
    """float64 [priors, 4]: centers and sides."""
    rows = []
    for i, scale in enumerate((0.2, 0.55, 0.9)):
        cells, extra = size >> (3 + i), math.sqrt(scale * (scale + 0.35))
        sides = [(scale * math.sqrt(r), scale / math.sqrt(r)) for r in (1, 2, 0.5)] + [(extra, extra)]
        rows += [((x + 0.5) / cells, (y + 0.5) / cells, w, h) for y in range(cells) for x in range(cells)
                 for w, h in sides]
    return np.float64(np.float32(rows))


def overlap_matrix(boxes, priors):
    """float64 [boxes, priors]: Jaccard overlaps."""
    low, high = priors[:, :2] - priors[:, 2:] / 2, priors[:, :2] + priors[:, 2:] / 2
    shared = (np.minimum(boxes[:, None, 2:], high) - np.maximum(boxes[:, None, :2], low)).clip(0).prod(2)
    return shared / ((boxes[:, 2:] - boxes[:, :2]).prod(1)[:, None] + (high - low).prod(1) - shared)


def match(boxes, priors):
    """By prior, the box that it stands for, or -1: Liu et al. 2016, section 2.2."""
    overlaps = overlap_matrix(boxes, priors)
    box_of = np.where(overlaps.max(0) > 0.5, overlaps.argmax(0), -1)
    left = overlaps.copy()
    for _ in boxes:
        box, prior = np.unravel_index(left.argmax(), left.shape)
        box_of[prior], left[box, :], left[:, prior] = box, -1, -1
    return box_of


def multibox_loss(predictions, targets):
    priors, losses = ssd_priors(32), []
    for prediction, target in zip(predictions, targets):
        boxes = target.detach().double().numpy()
        boxes = boxes[boxes[:, 0] >= 0]
        box_of = match(boxes[:, 1:], priors)
        matched = box_of >= 0
        classes = torch.from_numpy(np.where(matched, boxes[box_of, 0] + 1, 0).astype(np.int64))
        entropies = functional.cross_entropy(prediction[:, 4:], classes, reduction="none")
        negative = entropies.detach().masked_fill(torch.from_numpy(matched), -1)
        hardest = torch.argsort(negative, descending=True, stable=True)[:min(3 * matched.sum(), (~matched).sum())]
        box, prior = boxes[box_of[matched], 1:], priors[matched]
        offsets = np.concatenate([((box[:, :2] + box[:, 2:]) / 2 - prior[:, :2]) / prior[:, 2:] / 0.1,
                                  np.log((box[:, 2:] - box[:, :2]) / prior[:, 2:]) / 0.2], 1)
        location = functional.smooth_l1_loss(prediction[matched, :4], torch.from_numpy(offsets).to(prediction.dtype),
                                             reduction="sum")
        losses.append((location + entropies[matched].sum() + entropies[hardest].sum()) / matched.sum())
    return torch.stack(losses).mean()


# By name: the preset, PyTorch's model, the shape of a sample, the batch, the number of parameters (None: PyTorch's).
CASES = {
    "mlp": ({"mlp": {}}, Mlp, (8,), 512, 433),
    "convnet": ({"convnet": {}}, Convnet, (32, 32, 3), 8, None),
    "resnet20": ({"resnet": {"depth": 20}}, lambda: Resnet((3, 3, 3), small=True), (16, 16, 3), 8, 272474),
    "resnet18": ({"resnet": {"depth": 18, "classes": 10}}, lambda: Resnet((2, 2, 2, 2)), (40, 40, 3), 6,
                 11689512 - 990 * 513),
    "resnet50": ({"resnet": {"depth": 50, "classes": 10}}, lambda: Resnet((3, 4, 6, 3), bottleneck=True),
                 (40, 40, 3), 6, 25557032 - 990 * 2049),
    "unet": ({"unet": {}}, Unet, (16, 24, 3), 4, None),
    "ssd": ({"ssd": {"classes": 3, "size": 32, "width": 4}}, Ssd, (32, 32, 3), 4, None),
}


def make_data(name, shape, samples):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((samples,) + shape).astype(np.float32)
    if name == "mlp":
        return x, rng.standard_normal((samples, 1)).astype(np.float32), functional.mse_loss
    if name == "ssd":
        low, sides = rng.uniform(0, 0.4, (samples, 3, 2)), rng.uniform(0.15, 0.6, (samples, 3, 2))
        classes = np.where(rng.random((samples, 3, 1)) < 0.3, -1, rng.integers(0, 3, (samples, 3, 1)))
        classes[:, 0] = rng.integers(0, 3, (samples, 1))
        return x, np.concatenate([classes, low, low + sides], 2).astype(np.float32), multibox_loss
    labels = (samples, shape[0] * shape[1]) if name == "unet" else (samples,)
    y = rng.integers(0, 2 if name == "unet" else 10, labels)
    # Every class, so that the data has as many as the head.
    y.flat[:10] = np.arange(10) % (2 if name == "unet" else 10)
    return x, y.astype(np.int64), functional.cross_entropy


def train_ours(tool, data, spec, mode, rate, steps):
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip("xy", data):
            np.save(os.path.join(folder, name + ".npy"), array)
        return networks.run_ours(tool, folder, {**spec, "precision": {"mode": mode}}, rate, steps)


def run_case(tool, name):
    preset, build, shape, batch, count = CASES[name]
    x, y, loss = make_data(name, shape, STEPS * batch)
    spec = {"model": {"preset": preset}, "seed": 3, "optimizer": {}, "report": {"every_steps": 1},
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "train": {"batch_size": batch}}
    data = (x, y)
    initial, _ = train_ours(tool, data, spec, "FP32", 0.0, 1)
    ours, losses = train_ours(tool, data, spec, "FP32", RATE, STEPS)
    half = {mode: train_ours(tool, data, spec, mode, RATE, 1)[1][0] for mode in ("FP16", "BF16")}
    model = build()
    x = torch.from_numpy(x)
    x = x.permute(0, 3, 1, 2) if len(shape) == 3 else x
    run = [networks.run_torch(model, initial, x, y, loss, batch, None, t) for t in (torch.float64, torch.float32)]
    (exact, exact_losses), (single, single_losses) = run
    numbers = sum(p.numel() for p in model.parameters())
    wrong = [] if count in (None, numbers) else [f"has {numbers} parameters, published are {count}"]
    wrong += [f"loss {a}, {b}" for a, b, c in zip(losses, exact_losses, single_losses)
              if not abs(a - b) <= 1e-5 * (1 + abs(b)) + networks.SLACK * abs(b - c)]
    wrong += [f"first loss of {mode} is {a}, of FP32 {losses[0]}" for mode, a in half.items()
              if not abs(a - losses[0]) <= {"FP16": 5e-3, "BF16": 3e-2}[mode] * (1 + losses[0])]
    for key, tensor in exact.items():
        off = (ours[key].double() - tensor).norm().item()
        moved = (tensor - initial[key].double()).norm().item()
        rounding = (single[key] - tensor).norm().item()
        if not off <= networks.SLACK * rounding + networks.SHARE * moved + networks.FLOOR * tensor.numel() ** 0.5:
            wrong.append(f"{key} is off by {off:.2e}, moved by {moved:.2e}, PyTorch in float32 is off by {rounding:.2e}")
    print(f"{name}: {numbers} parameters, losses {losses}, first in 16 bit {half}", "; ".join(wrong[:20]))
    return not wrong


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    names = sys.argv[2:] or list(CASES)
    failed = [name for name in names if not run_case(sys.argv[1], name)]
    if failed:
        sys.exit(f"presets {failed} differ from PyTorch's")


if __name__ == "__main__":
    main()
