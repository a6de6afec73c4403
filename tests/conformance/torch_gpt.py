#!/usr/bin/env python3
"""Trains the gpt2 preset, whose head is tied to its embedding, and from equal weights on equal batches with PyTorch.

usage: torch_gpt.py PATH_OF_CHECKPOINT_TOOL

PyTorch trains torch.nn's modules in float64; what it does in float32 is the measure: ours may be off by at most SLACK times
as much, and in BF16 by what BF16_LOSS says. Compared are the loss of every step, and the weights at the end, which are
loaded strictly once "lm_head.weight" is given the embedding's. Exits with 77 (skipped) where PyTorch is not installed.
"""
import os
import sys
import tempfile

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, gelu
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from tool_training import train_by_tool

# A vocabulary that is no multiple of 8, and sequences shorter than the table of positions.
VOCABULARY, POSITIONS, LAYERS, HEADS, FEATURES = 61, 40, 2, 2, 24
TIME, BATCH, STEPS, RATE = 24, 8, 30, 0.003
SLACK, FLOOR = 4, 2e-6
BF16_LOSS = 0.01


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc = nn.Linear(FEATURES, 4 * FEATURES)
        self.c_proj = nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        return self.c_proj(gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(FEATURES)
        self.attn = nn.MultiheadAttention(FEATURES, HEADS, batch_first=True)
        self.ln_2 = nn.LayerNorm(FEATURES)
        self.mlp = Mlp()

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, attn_mask=later, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, FEATURES)
        self.wpe = nn.Embedding(POSITIONS, FEATURES)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(FEATURES)
        self.lm_head = nn.Linear(FEATURES, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def make_model(weights):
    model = Gpt()
    model.load_state_dict({**weights, "lm_head.weight": weights["wte.weight"]}, strict=True)
    return model


def train(tool, folder, rate, steps, mode):
    """Losses and weights of our own training."""
    preset = {"vocabulary": VOCABULARY, "positions": POSITIONS, "layers": LAYERS, "heads": HEADS, "features": FEATURES,
              "dropout": 0}
    spec = {
        "model": {"preset": {"gpt2": preset}},
        "data": {"train": {"tokens": {"path": "tokens", "sequence_length": TIME, "vocabulary": VOCABULARY, "stride": 7}},
                 "shuffle": False},
        "precision": {"mode": mode},
        "optimizer": {"adamw": {"learning_rate": rate, "weight_decay": 0.1}, "clip_global_norm": 1.0},
        "train": {"steps": steps, "batch_size": BATCH, "micro_batch_size": BATCH // 2},
        "report": {"every_steps": 1},
    }
    return train_by_tool(tool, folder, spec)


def batch_of(tokens, step):
    """Inputs and labels: consecutive windows, an epoch's partial last batch left out."""
    windows = (len(tokens) - TIME - 1) // 7 + 1
    first = step % (windows // BATCH) * BATCH
    places = (first + np.arange(BATCH))[:, None] * 7 + np.arange(TIME)
    return torch.tensor(tokens[places]), torch.tensor(tokens[places + 1])


def train_in_torch(weights, tokens, dtype):
    model = make_model(weights).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        ids, labels = batch_of(tokens, step)
        optimizer.zero_grad()
        loss = cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def deviation(losses, weights, exact):
    worst = max(abs(a - b) for a, b in zip(losses, exact[0])) / max(exact[0])
    apart = max((weights[name].double() - e).norm().item() / max(e.norm().item(), 1e-3)
                for name, e in exact[1].items() if name != "lm_head.weight")
    return worst, apart


def check_start(weights):
    """Deviations as GPT-2's: 0.02, on the residual stream divided by the root of how many branches add to it."""
    wanted = {"wte.weight": 0.02, "h.0.attn.in_proj_weight": 0.02, "h.1.mlp.c_fc.weight": 0.02, "wpe.weight": 0.02,
              "h.0.attn.out_proj.weight": 0.02 / (2 * LAYERS) ** 0.5, "h.1.mlp.c_proj.weight": 0.02 / (2 * LAYERS) ** 0.5}
    # Eight standard errors of a deviation.
    return all(abs(weights[name].std().item() / deviation - 1) < 8 / (2 * weights[name].numel()) ** 0.5
               for name, deviation in wanted.items())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(3)
        # A walk, which can be learned.
        tokens = np.cumsum(rng.integers(-2, 4, 900)) % VOCABULARY
        tokens.astype("<u2").tofile(os.path.join(folder, "tokens"))
        _, weights = train(sys.argv[1], folder, 0.0, 1, "FP32")
        if not check_start(weights):
            sys.exit("weights do not start as GPT-2's do")
        losses, ours = train(sys.argv[1], folder, RATE, STEPS, "FP32")
        rounded, _ = train(sys.argv[1], folder, RATE, STEPS, "BF16")
    exact, single = (train_in_torch(weights, tokens, dtype) for dtype in (torch.float64, torch.float32))
    make_model(ours)
    mine, theirs = deviation(losses, ours, exact), deviation(*single, exact)
    bf16 = max(abs(a - b) / b for a, b in zip(rounded, exact[0]))
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; from float64, ours and PyTorch's float32: loss {mine[0]:.1e} "
          f"{theirs[0]:.1e}, weights {mine[1]:.1e} {theirs[1]:.1e}; BF16's loss {bf16:.1e}")
    if len(losses) != STEPS or len(rounded) != STEPS or losses[-1] > 0.9 * losses[0]:
        sys.exit("did not train")
    if not all(a <= max(SLACK * b, FLOOR) for a, b in zip(mine, theirs)) or bf16 > BF16_LOSS:
        sys.exit("differs from PyTorch")


if __name__ == "__main__":
    main()
