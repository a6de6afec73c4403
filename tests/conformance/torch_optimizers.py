#!/usr/bin/env python3
"""Trains a small network with every optimizer and schedule, and from equal weights on equal batches with torch.optim.

usage: torch_optimizers.py PATH_OF_CHECKPOINT_TOOL

The reference is PyTorch in float64; what it does in float32 is the measure: ours may be off by at most SLACK times as
much. Compared are the loss of every step, the weights and running statistics at the end, and their average where one is
kept; and the learning rate of every step, to eleven digits. LAMB, which torch.optim lacks, is written out here from the
paper. Exits with 77 (skipped) where PyTorch is not installed.
"""
import copy
import fnmatch
import json
import math
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.optim import lr_scheduler
    from torch.optim.swa_utils import AveragedModel
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from torch_checkpoint_test import read_safetensors, sequential

STEPS, BATCH, SAMPLES = 120, 16, 128
FEATURES, TARGETS = 24, 4
RATE_TOLERANCE = 1e-11
# Times PyTorch's own deviation in float32, and what is never too much.
SLACK, FLOOR = 4, 1e-6

# The norm stands first: behind a biased layer it would make that bias' gradient pure rounding, which Adam and its
# kin blow up to whole steps.
LAYERS = [{"name": "bn", "batch_norm": {}}, {"name": "fc1", "dense": {"units": 16, "activation": "RELU"}},
          {"name": "head", "dense": {"units": TARGETS}}]


def network():
    return sequential(("bn", nn.BatchNorm1d(FEATURES)), ("fc1", nn.Linear(FEATURES, 16)), ("relu", nn.ReLU()),
                      ("head", nn.Linear(16, TARGETS)))


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2, with the identity for phi."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for x in group["params"]:
                state = self.state[x]
                if not state:
                    state.update(t=0, m=torch.zeros_like(x), v=torch.zeros_like(x))
                state["t"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * x.grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * x.grad ** 2
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                r = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * x
                length, step = x.norm().item(), r.norm().item()
                ratio = length / step if length > 0 and step > 0 else 1.0
                x -= group["lr"] * ratio * r


def optim(kind, **options):
    return lambda groups: kind(groups, **options)


def constant(optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)


def one_cycle(**options):
    def make(optimizer):
        rates = [group["lr"] for group in optimizer.param_groups]
        return lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS, cycle_momentum=False, **options)
    return make


def rising(warmup, rate):
    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: rate(n) * min(1.0, (n + 1) / warmup))


# Each: the job's optimizer and schedule, PyTorch's optimizer, PyTorch's schedule.
CASES = [
    ({"sgd": {"learning_rate": 0.05, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.01},
      "schedule": {"multi_step": {"milestones": [30, 60, 61], "gamma": 0.3}}},
     optim(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.4, weight_decay=0.01),
     lambda o: lr_scheduler.MultiStepLR(o, [30, 60, 61], 0.3)),
    ({"sgd": {"learning_rate": 0.05, "momentum": 0.8, "nesterov": True}, "clip_value": 0.02,
      "schedule": {"cosine_restarts": {"period_steps": 10, "period_factor": 2, "min_ratio": 0.1}}},
     optim(torch.optim.SGD, lr=0.05, momentum=0.8, nesterov=True),
     lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10, 2, eta_min=0.005)),
    ({"rmsprop": {"learning_rate": 0.002}, "schedule": {"cosine_restarts": {"period_steps": 17}}},
     optim(torch.optim.RMSprop, lr=0.002), lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 17)),
    ({"rmsprop": {"learning_rate": 0.002, "momentum": 0.8, "smoothing": 0.9, "weight_decay": 0.02},
      "schedule": {"polynomial": {"power": 2}}},
     optim(torch.optim.RMSprop, lr=0.002, momentum=0.8, alpha=0.9, weight_decay=0.02),
     lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2)),
    ({"rmsprop": {"learning_rate": 0.002, "centered": True, "epsilon": 1e-3},
      "schedule": {"one_cycle": {"rising_share": 0.4, "start_divisor": 10, "end_divisor": 100}}},
     optim(torch.optim.RMSprop, lr=0.002, centered=True, eps=1e-3),
     one_cycle(pct_start=0.4, div_factor=10, final_div_factor=100)),
    ({"rmsprop": {"learning_rate": 0.002, "momentum": 0.5, "centered": True, "epsilon": 1e-3},
      "schedule": {"one_cycle": {"three_phase": True}}},
     optim(torch.optim.RMSprop, lr=0.002, momentum=0.5, centered=True, eps=1e-3), one_cycle(three_phase=True)),
    ({"adagrad": {"learning_rate": 0.05}, "schedule": {"one_cycle": {"shape": "LINEAR", "rising_share": 0.13}}},
     optim(torch.optim.Adagrad, lr=0.05), one_cycle(anneal_strategy="linear", pct_start=0.13)),
    ({"adagrad": {"learning_rate": 0.05, "learning_rate_decay": 0.01, "initial_accumulator": 0.1, "weight_decay": 0.01},
      "schedule": {"one_cycle": {"shape": "LINEAR", "three_phase": True, "rising_share": 0.25}}},
     optim(torch.optim.Adagrad, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1, weight_decay=0.01),
     one_cycle(anneal_strategy="linear", three_phase=True, pct_start=0.25)),
    ({"lamb": {"learning_rate": 0.01}, "schedule": {"inverse_square_root": {"warmup_steps": 20}}},
     optim(Lamb, lr=0.01), rising(20, lambda n: math.sqrt(20 / max(n + 1, 20)))),
    ({"lamb": {"learning_rate": 0.02, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1},
      "schedule": {"polynomial": {"min_ratio": 0.2, "warmup_steps": 10}}, "ema": {"decay": 0.95}},
     optim(Lamb, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
     rising(10, lambda n: 0.2 + 0.8 * (1 - max(n - 10, 0) / (STEPS - 10)))),
    ({"adam": {"learning_rate": 0.01, "weight_decay": 0.05}, "ema": {"decay": 0.9},
      "groups": [{"match": "*", "learning_rate_scale": 0.5},
                 {"match": "*.bias", "weight_decay": 0.0, "learning_rate_scale": 0.1},
                 {"match": "fc?.weight", "weight_decay": 0.2}]},
     optim(torch.optim.Adam, lr=0.01, weight_decay=0.05), constant),
    ({"adamw": {"learning_rate": 0.01, "weight_decay": 0.3}, "decay_norms_and_biases": False, "clip_value": 0.01,
      "schedule": {"multi_step": {"milestones": [50], "warmup_steps": 8}}},
     optim(torch.optim.AdamW, lr=0.01, weight_decay=0.3), rising(8, lambda n: 1.0 if n < 50 else 0.1)),
    ({"lamb": {"learning_rate": 0.01, "weight_decay": 0.3}, "decay_norms_and_biases": False,
      "groups": [{"match": "head.*", "learning_rate_scale": 0.2}]},
     optim(Lamb, lr=0.01, weight_decay=0.3), constant),
]


class Data:
    def __init__(self, folder):
        rng = np.random.default_rng(11)
        self.x = rng.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
        self.y = np.tanh(self.x @ rng.standard_normal((FEATURES, TARGETS)) / 4).astype(np.float32)
        self.folder = folder
        np.save(os.path.join(folder, "x.npy"), self.x)
        np.save(os.path.join(folder, "y.npy"), self.y)

    def batch(self, step, dtype):
        rows = slice(step % (SAMPLES // BATCH) * BATCH, (step % (SAMPLES // BATCH) + 1) * BATCH)
        return torch.from_numpy(self.x[rows]).to(dtype), torch.from_numpy(self.y[rows]).to(dtype)


class Tool:
    def __init__(self, path, data):
        self.path = path
        self.data = data
        self.jobs = 0

    def train(self, optimizer, steps):
        """The reports of every step, the weights, and their average or None."""
        self.jobs += 1
        folder = os.path.join(self.data.folder, f"job{self.jobs}")
        os.mkdir(folder)
        spec = {
            "seed": 3, "model": {"layers": LAYERS, "loss": {"mean_squared_error": {}}}, "optimizer": optimizer,
            "data": {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}, "shuffle": False},
            "train": {"steps": steps, "batch_size": BATCH}, "report": {"every_steps": 1},
        }
        with open(os.path.join(folder, "spec.json"), "w") as f:
            json.dump(spec, f)
        checkpoints, events = os.path.join(folder, "checkpoints"), os.path.join(folder, "events")
        subprocess.run([self.path, "train", f.name, checkpoints, self.data.folder, events], check=True)
        with open(events) as f:
            reports = [event["step"]["phases"][0] for event in map(json.loads, f) if "step" in event]
        (name,) = os.listdir(checkpoints)
        average = os.path.join(checkpoints, name, "ema.safetensors")
        return (reports, read_safetensors(os.path.join(checkpoints, name, "model.safetensors")),
                read_safetensors(average) if os.path.exists(average) else None)


def parameter_groups(model, spec):
    """The spec's groups as PyTorch's, a group for each parameter."""
    groups = []
    for name, parameter in model.named_parameters():
        group = {"params": [parameter], "scale": 1.0}
        if spec.get("decay_norms_and_biases", True) is False and parameter.dim() < 2:
            group["weight_decay"] = 0.0
        matching = [rule for rule in spec.get("groups", []) if fnmatch.fnmatchcase(name, rule["match"])]
        if matching:
            group["scale"] = matching[-1].get("learning_rate_scale", 1.0)
            if "weight_decay" in matching[-1]:
                group["weight_decay"] = matching[-1]["weight_decay"]
        groups.append(group)
    return groups


def train_in_torch(data, weights, case, dtype):
    """As Tool.train: (loss, rate) of every step, weights, average."""
    spec, make_optimizer, make_schedule = case
    model = network()
    model.load_state_dict(weights, strict=True)
    model.to(dtype).train()
    groups = parameter_groups(model, spec)
    optimizer = make_optimizer(groups)
    for group in optimizer.param_groups:
        group["lr"] = optimizer.defaults["lr"] * group["scale"]
    schedule = make_schedule(optimizer)
    decay = spec.get("ema", {}).get("decay")
    average = AveragedModel(model, avg_fn=lambda a, p, n: decay * a + (1 - decay) * p) if decay else None
    if average:
        average.update_parameters(model)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = data.batch(step, dtype)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if "clip_value" in spec:
            nn.utils.clip_grad_value_(model.parameters(), spec["clip_value"])
        steps.append((loss.item(), schedule.get_last_lr()[0] / groups[0]["scale"]))
        optimizer.step()
        if average:
            average.update_parameters(model)
        if step + 1 < STEPS:
            schedule.step()
    averaged = None
    if average:
        averaged = {**model.state_dict(), **dict(average.module.named_parameters())}
    return steps, model.state_dict(), averaged


def deviation(tensors, reference):
    """The largest L2 distance over all tensors, each relative to the tensor's norm.

    Not the largest element: where a gradient is all but zero, rules that divide it by its own size make a step of its
    rounding error, and which elements those are differs between any two programs.
    """
    worst = 0.0
    for name, expected in reference.items():
        expected = expected.detach().double()
        difference = (tensors[name].detach().double() - expected).norm().item()
        worst = max(worst, difference / max(expected.norm().item(), 1e-3))
    return worst


def run_case(tool, data, weights, case):
    """What differs too much."""
    reports, ours, our_average = tool.train(case[0], STEPS)
    losses, exact, exact_average = train_in_torch(data, weights, case, torch.float64)
    single_losses, single, single_average = train_in_torch(data, weights, case, torch.float32)
    if len(reports) != STEPS or set(ours) != set(exact):
        return [f"{len(reports)} reports, tensors {sorted(ours)}, PyTorch's {sorted(exact)}"]
    rate = max(abs(report["learning_rate"] - r) / max(r, 1e-9) for report, (_, r) in zip(reports, losses))
    top = max(loss for loss, _ in losses)
    pairs = {
        "loss": (max(abs(report["loss"] - loss) for report, (loss, _) in zip(reports, losses)) / top,
                 max(abs(a - b) for (a, _), (b, _) in zip(single_losses, losses)) / top),
        "weights": (deviation(ours, exact), deviation(single, exact)),
    }
    if (our_average is None) != (exact_average is None):
        return ["only one keeps an average"]
    if exact_average is not None:
        pairs["average"] = (deviation(our_average, exact_average), deviation(single_average, exact_average))
    print(f"{' '.join(case[0])}: loss {losses[0][0]:.3f} to {losses[-1][0]:.3f}; rate {rate:.0e}; ours against "
          "PyTorch's float32: " + ", ".join(f"{key} {a:.1e} {b:.1e}" for key, (a, b) in pairs.items()))
    wrong = [f"rate: {rate:.1e} > {RATE_TOLERANCE:.0e}"] if not rate <= RATE_TOLERANCE else []
    return wrong + [f"{key}: {a:.2e}, PyTorch's float32 {b:.2e}" for key, (a, b) in pairs.items()
                    if not a <= max(SLACK * b, FLOOR)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        data = Data(folder)
        tool = Tool(sys.argv[1], data)
        # What a job starts from: the weights after a step at rate 0, the running statistics of before.
        weights = network().state_dict()
        for name, tensor in tool.train({"sgd": {"learning_rate": 0.0}}, 1)[1].items():
            if "running" not in name and "num_batches" not in name:
                weights[name] = tensor
        for case in CASES:
            failed += [f"{' '.join(case[0])}: {what}" for what in run_case(tool, data, copy.deepcopy(weights), case)]
    if failed:
        sys.exit("differs from PyTorch:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
