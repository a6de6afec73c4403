#!/usr/bin/env python3
"""Trains networks over samples of different lengths, and from equal weights on equal batches with PyTorch.

usage: torch_sequences.py PATH_OF_CHECKPOINT_TOOL

PyTorch gets the samples of a batch with no padding but what the longest of them needs, packed (pack_padded_sequence) or
with a key_padding_mask, and computes in float64; what it does in float32 is the measure: ours may be off by at most SLACK
times as much. Compared are the loss of every step and the weights at the end, loaded strictly. Exits with 77 (skipped)
where PyTorch is not installed.
"""
import os
import sys
import tempfile

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, ctc_loss, log_softmax
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
except ImportError:
    print("SKIPPED: PyTorch is not installed for", sys.executable)
    sys.exit(77)

from tool_training import train_by_tool

SAMPLES, TIME, FEATURES, CLASSES, LABELS, BATCH, EPOCHS = 44, 45, 6, 7, 4, 8, 8
BUCKETS = [16, 24, 48]
SMOOTHING = 0.1
# Times PyTorch's own deviation in float32, and what is never too much.
SLACK, FLOOR = 4, 2e-6


class Recurrent(nn.Module):
    """lstm or gru, then a linear layer on every step or on the last states."""

    def __init__(self, kind, last=False, **options):
        super().__init__()
        self.rnn = kind(FEATURES, 9, batch_first=True, bidirectional=True, **options)
        self.head = nn.Linear(18, CLASSES)
        self.last = last

    def forward(self, x, lengths):
        y, state = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        if self.last:
            state = state[0] if isinstance(state, tuple) else state
            return self.head(torch.cat([state[-2], state[-1]], 1))
        return self.head(pad_packed_sequence(y, batch_first=True)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(FEATURES, 8)
        self.where = nn.Embedding(48, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x, lengths):
        x = self.start(x)
        x = x + self.where(torch.arange(x.shape[1]))
        hidden = torch.arange(x.shape[1])[None, :] >= lengths[:, None]
        return self.head(x + self.attend(x, x, x, key_padding_mask=hidden, need_weights=False)[0])


HEAD = {"name": "head", "dense": {"units": CLASSES}}


def rnn(kind, **options):
    return [{"name": "rnn", kind: {"units": 9, "bidirectional": True, **options}}, HEAD]


ATTENTION = [{"name": "start", "dense": {"units": 8}}, {"name": "where", "positional_embedding": {"positions": 48}},
             {"name": "attend", "multi_head_attention": {"heads": 2}}, {"name": "sum", "inputs": ["where", "attend"],
                                                                       "add": {}}, HEAD]
# Name, layers, network, loss, targets.
CASES = [("lstm steps", rnn("lstm", layers=2), lambda: Recurrent(nn.LSTM, num_layers=2), "softmax_cross_entropy", "steps"),
         ("lstm last", rnn("lstm", layers=2, output="LAST_STEP"), lambda: Recurrent(nn.LSTM, last=True, num_layers=2),
          "softmax_cross_entropy", "one"),
         ("gru ctc", rnn("gru", layers=2), lambda: Recurrent(nn.GRU, num_layers=2), "ctc", "spelled"),
         ("gru last, no bias", rnn("gru", bias=False, output="LAST_STEP"),
          lambda: Recurrent(nn.GRU, last=True, bias=False), "softmax_cross_entropy", "one"),
         ("gru last, distributions", rnn("gru", output="LAST_STEP"), lambda: Recurrent(nn.GRU, last=True),
          "softmax_cross_entropy", "distributions"),
         ("attention steps", ATTENTION, Attention, "softmax_cross_entropy", "steps"),
         ("attention ctc", ATTENTION, Attention, "ctc", "spelled")]


def batches(lengths):
    """Samples of the batches of an epoch, as engine/data/length_buckets.h says for data that are not shuffled."""
    left, result = [], []
    order = range(len(lengths) // BATCH * BATCH)
    for low, high in zip([0] + BUCKETS, BUCKETS):
        left = sorted(left + [i for i in order if low < lengths[i] <= high])
        while len(left) >= BATCH:
            result.append(left[:BATCH])
            left = left[BATCH:]
    assert not left
    return result


def make_data(folder):
    rng = np.random.default_rng(4)
    lengths = rng.integers(2 * LABELS + 1, TIME + 1, SAMPLES)
    shares = rng.random((SAMPLES, CLASSES)).astype(np.float32) ** 4
    data = {"distributions": shares / shares.sum(1, keepdims=True), "x": rng.standard_normal((SAMPLES, TIME, FEATURES)).astype(np.float32), "lengths": lengths,
            "one": rng.integers(0, CLASSES, SAMPLES), "steps": rng.integers(0, CLASSES, (SAMPLES, TIME)),
            "spelled": rng.integers(0, CLASSES - 1, (SAMPLES, LABELS)),
            "target_lengths": rng.integers(1, LABELS + 1, SAMPLES)}
    np.savez(os.path.join(folder, "data.npz"), **data)
    return data


def train(tool, folder, layers, loss, targets, rate, steps):
    """Losses and weights of our own training."""
    npz = {"inputs": "data.npz", "targets_key": targets, "lengths_key": "lengths"}
    if loss == "ctc":
        npz["target_lengths_key"] = "target_lengths"
    options = {"blank": CLASSES - 1} if loss == "ctc" else {}
    if targets == "distributions":
        options["label_smoothing"] = SMOOTHING
    spec = {
        "model": {"layers": layers, "loss": {loss: options}},
        "data": {"train": {"npy": npz}, "shuffle": False, "length_buckets": BUCKETS},
        "optimizer": {"sgd": {"learning_rate": rate, "momentum": 0.5}},
        "train": {"steps": steps, "batch_size": BATCH, "micro_batch_size": BATCH // 2},
        "report": {"every_steps": 1},
    }
    return train_by_tool(tool, folder, spec)


def loss_of(model, data, samples, loss, targets, dtype):
    lengths = torch.tensor(data["lengths"][samples])
    longest = int(lengths.max())
    logits = model(torch.tensor(data["x"][samples][:, :longest]).to(dtype), lengths)
    wanted = torch.tensor(data[targets][samples])
    if loss == "ctc":
        return ctc_loss(log_softmax(logits, 2).transpose(0, 1), wanted, lengths,
                        torch.tensor(data["target_lengths"][samples]), blank=CLASSES - 1)
    if targets == "distributions":
        return cross_entropy(logits, wanted.to(dtype), label_smoothing=SMOOTHING)
    if targets == "one":
        return cross_entropy(logits, wanted)
    counts = torch.arange(longest)[None, :] < lengths[:, None]
    return cross_entropy(logits[counts], wanted[:, :longest][counts])


def train_in_torch(make_model, weights, data, loss, targets, rate, steps, dtype):
    model = make_model()
    model.load_state_dict(weights, strict=True)
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5)
    losses = []
    epoch = batches(data["lengths"])
    for step in range(steps):
        optimizer.zero_grad()
        value = loss_of(model, data, epoch[step % len(epoch)], loss, targets, dtype)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, model.state_dict()


def deviation(losses, weights, exact):
    top = max(abs(loss) for loss in exact[0])
    worst = max(abs(a - b) for a, b in zip(losses, exact[0])) / top
    apart = max((weights[name].double() - e).norm().item() / max(e.norm().item(), 1e-3)
                for name, e in exact[1].items())
    return worst, apart


def run_case(tool, folder, data, name, layers, make_model, loss, targets):
    """Whether ours is as near to float64 as it should be."""
    steps = len(batches(data["lengths"])) * EPOCHS
    _, weights = train(tool, folder, layers, loss, targets, 0.0, 1)
    rate = 0.05
    losses, ours = train(tool, folder, layers, loss, targets, rate, steps)
    exact = train_in_torch(make_model, weights, data, loss, targets, rate, steps, torch.float64)
    single = train_in_torch(make_model, weights, data, loss, targets, rate, steps, torch.float32)
    make_model().load_state_dict(ours, strict=True)
    if len(losses) != steps:
        print(f"{name}: {len(losses)} losses of {steps} steps")
        return False
    mine, theirs = deviation(losses, ours, exact), deviation(*single, exact)
    print(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}; from float64, ours and PyTorch's float32: loss "
          f"{mine[0]:.1e} {theirs[0]:.1e}, weights {mine[1]:.1e} {theirs[1]:.1e}")
    return all(a <= max(SLACK * b, FLOOR) for a, b in zip(mine, theirs))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(folder)
        failed = [case[0] for case in CASES if not run_case(sys.argv[1], folder, data, *case)]
    if failed:
        sys.exit("differs from PyTorch: " + ", ".join(failed))


if __name__ == "__main__":
    main()
