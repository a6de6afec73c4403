"""The peer of bench_steps: times whole training steps of one workload in PyTorch.

usage: torch_steps.py WORKLOAD MODE VARIANT THREADS [--device cpu|cuda] [--batch N] [--tiny] [--late]

WORKLOAD: a name of WORKLOADS. MODE: FP32, TF32 (on a GPU), BF16 or FP16 (autocast; FP16 with a GradScaler). VARIANT: words
joined by '+': compile (torch.compile), reduce-overhead or max-autotune (torch.compile in that mode), graph (the whole step,
update included, captured in a CUDA graph), channels_last. --batch: samples, in place of the workload's own. --tiny: sizes
that a test runs with. --late: it makes nothing before the first line. Optimizers are fused.

Answers each line "N" with {"median": seconds a step, "lowest": ..., "highest": ..., "host": seconds a step until everything
was enqueued, "steps": N, "loss": of the last}. On a GPU the batch lies in its memory, and windows of steps are timed
between synchronizations; with "fed N" every step copies its batch from page-locked memory. "memory": {"allocated": ...,
"reserved": the most that PyTorch held, in bytes}. "version": PyTorch's, CUDA's and cuDNN's.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional


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


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Identity()
        if inputs != 4 * width or stride != 1:
            self.down = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.relu(self.bn3(self.conv3(y)) + self.down(x))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        q, k, v = (t.view(batch, steps, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, steps, width))
        return x + self.fc2(functional.gelu(self.fc1(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, width, layers, heads, vocabulary, steps):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(steps, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("steps", torch.arange(steps))

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.positions(self.steps))))


class Speech(nn.Module):
    """Gives log probabilities, [time, batch, classes]; steps past a sample's length are not computed."""

    def __init__(self, features, units, layers):
        super().__init__()
        self.rnn = nn.LSTM(features, units, num_layers=layers, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * units, 29)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.shape[1])[0]
        return self.head(y).float().log_softmax(-1).transpose(0, 1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 128)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(128, 256, 4, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
            nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z, labels):
        return self.up((z * self.embed(labels))[:, :, None, None])


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128),
            nn.LeakyReLU(0.2), nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2), nn.Flatten())
        self.judge, self.classifier = nn.Linear(4096, 1), nn.Linear(4096, 10)

    def forward(self, x):
        y = self.trunk(x)
        return self.judge(y).float(), self.classifier(y).float()


# --- Workloads: each makes (phases, batch). A phase is (loss of a batch, its parameters, its optimizer's maker); a step is
# one update of each. A batch is a dict of tensors.


def adam(parameters, **options):
    return torch.optim.Adam(parameters, lr=0.001, **options)


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, lr=0.001, **options)


def sgd(parameters, **options):
    options.pop("capturable", None)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.0001, **options)


def supervised(model, x, target, loss, optimizer):
    def loss_of(batch):
        return loss(model(batch["x"]).float(), batch["target"])

    return [(loss_of, list(model.parameters()), optimizer)], {"x": x, "target": target}, [model]


def images(build, size, classes, batch, optimizer):
    return lambda tiny, n: supervised(build(), torch.rand(n or batch, 3, 32 if tiny else size, 32 if tiny else size) * 2 - 1,
                                      torch.randint(0, classes, (n or batch,)), functional.cross_entropy, optimizer)


def by_position(y, target):
    return functional.cross_entropy(y.flatten(0, 1), target.flatten())


def tokens(build, vocabulary, steps, batch, optimizer):
    def make(tiny, n):
        shape = (n or batch, steps)
        return supervised(build(), torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, shape), by_position,
                          optimizer)

    return make


def gpt(width, layers, heads, vocabulary, batch):
    def make(tiny, n):
        w, l, h, v, t = (32, 1, 2, 64, 16) if tiny else (width, layers, heads, vocabulary, 1024)
        return tokens(lambda: Gpt(w, l, h, v, t), v, t, batch, adamw)(tiny, n)

    return make


def speech(time, features, units, layers, labels, batch):
    def make(tiny, n):
        n, t, wide = n or batch, 32 if tiny else time, 16 if tiny else units
        most = 4 if tiny else labels
        model = Speech(features, wide, layers)
        draw = lambda longest: torch.cat([torch.tensor([longest]), torch.randint(longest - longest // 2, longest + 1, (n - 1,))])
        data = {"x": torch.rand(n, t, features) * 2 - 1, "lengths": draw(t), "target": torch.randint(1, 29, (n, most)),
                "target_lengths": draw(most)}

        def loss_of(batch):
            y = model(batch["x"], batch["lengths"])
            return functional.ctc_loss(y, batch["target"], batch["lengths"], batch["target_lengths"], zero_infinity=True)

        return [(loss_of, list(model.parameters()), adam)], data, [model]

    return make


def acgan(tiny, n):
    n = n or 256
    generator, discriminator = Generator(), Discriminator()
    entropy, judged = functional.cross_entropy, functional.binary_cross_entropy_with_logits
    optimizer = lambda p, **options: torch.optim.Adam(p, lr=0.0002, betas=(0.5, 0.999), **options)

    def criticise(batch):
        z = torch.randn(n, 128, device=batch["x"].device)
        with torch.no_grad():
            fake = generator(z, batch["target"])
        real_judged, real_named = discriminator(batch["x"])
        fake_judged, fake_named = discriminator(fake)
        return (judged(real_judged, torch.ones_like(real_judged)) + judged(fake_judged, torch.zeros_like(fake_judged))
                + entropy(real_named, batch["target"]) + entropy(fake_named, batch["target"]))

    def create(batch):
        fake = generator(torch.randn(n, 128, device=batch["x"].device), batch["target"])
        fake_judged, named = discriminator(fake)
        return judged(fake_judged, torch.ones_like(fake_judged)) + entropy(named, batch["target"])

    batch = {"x": torch.rand(n, 3, 32, 32) * 2 - 1, "target": torch.randint(0, 10, (n,))}
    phases = [(criticise, list(discriminator.parameters()), optimizer), (create, list(generator.parameters()), optimizer)]
    return phases, batch, [generator, discriminator]


# name: maker of (phases, batch, modules), called with (tiny, batch or None)
WORKLOADS = {
    "mlp": lambda tiny, n: supervised(mlp(), torch.rand(n or 512, 8) * 2 - 1, torch.rand(n or 512, 1), functional.mse_loss,
                                      adam),
    "convnet64": images(convnet, 64, 10, 32, adam),
    "convnet256": images(convnet, 256, 10, 32, adam),
    "resnet20": images(resnet20, 32, 10, 128, sgd),
    "resnet50": images(resnet50, 224, 1000, 256, sgd),
    "lstm": lambda tiny, n: supervised(Lstm(), torch.rand(n or 32, 64, 256) * 2 - 1, torch.randint(0, 10, (n or 32,)),
                                       functional.cross_entropy, adam),
    "transformer": tokens(Transformer, 1000, 128, 8, adamw),
    "acgan": acgan,
    "gpt2": gpt(768, 12, 12, 50257, 16),
    "gpt_wide": gpt(2048, 8, 16, 32768, 8),
    "gpt_4096": gpt(4096, 4, 32, 32768, 8),
    "speech_large": speech(512, 80, 1024, 5, 80, 64),
    "speech_small": speech(128, 40, 128, 1, 20, 16),
}
COMPILED = {"compile": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}


class Stepper:
    def __init__(self, arguments):
        self.device = torch.device(arguments.device)
        self.variant = arguments.variant.split("+")
        cuda = self.device.type == "cuda"
        torch.manual_seed(1)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.mode != "FP32"
        phases, batch, modules = WORKLOADS[arguments.workload](arguments.tiny, arguments.batch)
        for module in modules:
            module.to(self.device)
            if "channels_last" in self.variant:
                module.to(memory_format=torch.channels_last)
        if "channels_last" in self.variant:
            batch["x"] = batch["x"].to(memory_format=torch.channels_last)
        # Lengths are read by the host.
        self.host = {k: v.pin_memory() if cuda else v for k, v in batch.items() if "lengths" not in k}
        self.batch = {k: v.to(self.device) if k in self.host else v for k, v in batch.items()}
        self.dtype = {"BF16": torch.bfloat16, "FP16": torch.float16}.get(arguments.mode)
        options = {"fused": True, "capturable": True} if "graph" in self.variant else {"fused": True}
        self.phases = []
        for loss_of, parameters, make_optimizer in phases:
            for word, mode in COMPILED.items():
                if word in self.variant:
                    loss_of = torch.compile(loss_of, mode=mode)
            scaler = torch.amp.GradScaler(self.device.type, enabled=arguments.mode == "FP16")
            self.phases.append((loss_of, parameters, make_optimizer(parameters, **options), scaler))
        self.take = self.step
        if "graph" in self.variant:
            self.capture()

    def step(self):
        for loss_of, parameters, optimizer, scaler in self.phases:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device.type, dtype=self.dtype or torch.bfloat16, enabled=self.dtype is not None,
                                cache_enabled="graph" not in self.variant):
                loss = loss_of(self.batch)
            scaler.scale(loss).backward(inputs=parameters)
            scaler.step(optimizer)
            scaler.update()
        return loss

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step()
        self.graph = graph

        def replay():
            graph.replay()
            return loss

        self.take = replay

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, steps, fed):
        """Seconds a step of every window, and of the host's part."""
        window = min(steps, 50) if self.device.type == "cuda" else 1
        times, host, loss = [], [], None
        for _ in range(max(1, steps // window)):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(window):
                if fed:
                    for name, tensor in self.host.items():
                        self.batch[name].copy_(tensor, non_blocking=True)
                loss = self.take()
            host.append((time.perf_counter() - start) / window)
            self.synchronize()
            times.append((time.perf_counter() - start) / window)
        return {"median": statistics.median(times), "lowest": min(times), "highest": max(times),
                "host": statistics.median(host), "steps": len(times) * window, "loss": float(loss.detach())}


def answer(stepper, line):
    if line == "memory":
        return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    if line == "version":
        return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    words = line.split()
    return stepper.run(int(words[-1]), words[0] == "fed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("mode", choices=("FP32", "TF32", "BF16", "FP16"))
    parser.add_argument("variant")
    parser.add_argument("threads", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--late", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    stepper = None if arguments.late else Stepper(arguments)
    for line in sys.stdin:
        stepper = stepper or Stepper(arguments)
        print(json.dumps(answer(stepper, line.strip())), flush=True)


if __name__ == "__main__":
    main()
