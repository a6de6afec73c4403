"""The peer of bench_steps: times whole training steps of one workload in PyTorch.

usage: torch_steps.py WORKLOAD MODE VARIANT THREADS

WORKLOAD: a name of WORKLOADS. MODE: FP32, BF16 or FP16 (autocast; FP16 with a GradScaler). VARIANT: words joined by '+':
compile (torch.compile), channels_last. Answers each line "N" with {"median": seconds a step, "lowest": ..., "steps": N}.
"""
import json
import sys
import time

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, inputs, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.down = nn.Identity()
        if stride != 1:
            self.down = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.down(x))


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(Residual(width, filters, 2 if stage > 0 and block == 0 else 1))
            width = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def convnet():
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2), nn.BatchNorm2d(32), nn.Conv2d(32, 64, 7, 2, 3), nn.BatchNorm2d(64),
        nn.Conv2d(64, 128, 11, 2, 5), nn.BatchNorm2d(128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    """Pre-norm blocks, 256 wide, 4 heads, a feed-forward of 1024, over 128 tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        block = lambda: nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, activation="gelu", batch_first=True,
                                                   norm_first=True)
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 1000)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(128))

    def forward(self, x):
        y = self.embed(x)
        for block in self.blocks:
            y = block(y, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(y))


ADAM = lambda p: torch.optim.Adam(p, lr=0.001, fused=True)
ADAMW = lambda p: torch.optim.AdamW(p, lr=0.001, fused=True)
SGD = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.0001, fused=True)


def images(batch, size):
    return lambda: (torch.rand(batch, 3, size, size) * 2 - 1, torch.randint(0, 10, (batch,)))


# name: (model, batch, optimizer, loss)
WORKLOADS = {
    "mlp": (mlp, lambda: (torch.rand(512, 8) * 2 - 1, torch.rand(512, 1)), ADAM, nn.functional.mse_loss),
    "convnet64": (convnet, images(32, 64), ADAM, nn.functional.cross_entropy),
    "convnet256": (convnet, images(32, 256), ADAM, nn.functional.cross_entropy),
    "resnet20": (resnet20, images(128, 32), SGD, nn.functional.cross_entropy),
    "lstm": (Lstm, lambda: (torch.rand(32, 64, 256) * 2 - 1, torch.randint(0, 10, (32,))), ADAM,
             nn.functional.cross_entropy),
    "transformer": (Transformer, lambda: (torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))), ADAMW,
                    lambda y, t: nn.functional.cross_entropy(y.flatten(0, 1), t.flatten())),
}


def stepper(workload, mode, variant):
    build, draw, make_optimizer, loss_of = WORKLOADS[workload]
    torch.manual_seed(1)
    model, (x, target) = build(), draw()
    if "channels_last" in variant:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=mode == "FP16")
    dtype = {"FP32": None, "BF16": torch.bfloat16, "FP16": torch.float16}[mode]

    def forward(x, target):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            y = model(x)
        return loss_of(y.float(), target)

    if "compile" in variant:
        forward = torch.compile(forward)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def main():
    workload, mode, variant, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    step = stepper(workload, mode, variant.split("+"))
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        times.sort()
        print(json.dumps({"median": times[len(times) // 2], "lowest": times[0], "steps": len(times)}), flush=True)


if __name__ == "__main__":
    main()
