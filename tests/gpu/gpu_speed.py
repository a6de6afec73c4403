#!/usr/bin/env python3
"""One benchmark stage on a GPU: whole training steps, ours against PyTorch's best, alternating.

usage: gpu_speed.py STAGE --state DIR --out FOLDER [--seconds N] [--rounds 5] [--tiny] [--device cuda] [--environment FILE]

STAGE: a name of STAGES; "overview" has the rows of all, those that are compared with PyTorch with its most likely best
alone, for when there are minutes. Every row (workload, batch, mode) is a file in DIR once it is measured, so a repeated call goes on
with the rows that are missing; none is begun that may not be done within the seconds left. Exit code 3: rows are left.
FOLDER gets DATE-gpu-STAGE.md and .json. FILE: lines "name: value" of what the machine is.

A row's PyTorch variants (tests/bench/peers/torch_steps.py) are warmed up one after the other and given a turn each; from
then on ours and the fastest of them take turns. A variant that fails, or has not warmed up in time, is left out by name.
Rows without variants compare ours with ours in other modes. Without PyTorch ours is measured alone.
"""
import argparse
import datetime
import json
import os
import select
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, "..", "bench")
PLAIN = ("eager", "reduce-overhead", "max-autotune", "graph")
IMAGES = ("eager", "eager+channels_last", "reduce-overhead+channels_last", "max-autotune+channels_last",
          "graph+channels_last")
FEW = ("eager+channels_last", "reduce-overhead+channels_last", "graph+channels_last")
RECURRENT = ("eager", "reduce-overhead")

# name: (job, INPUT, TARGET, what is counted, how many of it a sample, small INPUT, small TARGET, small settings)
WORKLOADS = {
    "mlp": ("mlp.yaml", "8", "features=1", "samples", 1, "8", "features=1", ()),
    "convnet256": ("convnet.yaml", "256,256,3", "classes=10", "images", 1, "16,16,3", "classes=10", ()),
    "acgan": ("acgan.yaml", "32,32,3", "classes=10", "images", 1, "32,32,3", "classes=10", ()),
    "resnet50": ("resnet50.yaml", "224,224,3", "classes=1000", "images", 1, "32,32,3", "classes=1000", ()),
    "gpt2": ("gpt2.yaml", "ids=50257:1024", "classes=50257:1024", "tokens", 1024, "ids=50257:8", "classes=50257:8", ()),
    "gpt_wide": ("gpt_wide.yaml", "ids=32768:1024", "classes=32768:1024", "tokens", 1024, "ids=32768:8",
                 "classes=32768:8", ()),
    "gpt_4096": ("gpt_4096.yaml", "ids=32768:1024", "classes=32768:1024", "tokens", 1024, "ids=32768:8",
                 "classes=32768:8", ()),
    "speech_large": ("speech_large.yaml", "time=512:80", "spelled=29:80", "sequences", 1, "time=8:4", "spelled=29:2",
                     ("model.layers[0].lstm.units=8",)),
    "speech_small": ("speech_small.yaml", "time=128:40", "spelled=29:20", "sequences", 1, "time=8:4", "spelled=29:2",
                     ("model.layers[0].lstm.units=8",)),
}
# stage: rows of (workload, batch, mode, PyTorch's variants), most important first
STAGES = {
    "overview": [("mlp", 512, "FP16", ("graph",)), ("convnet256", 32, "FP16", ("graph+channels_last",)),
                 ("convnet256", 128, "FP16", ("graph+channels_last",)), ("acgan", 64, "FP16", ("graph+channels_last",)),
                 ("gpt2", 8, "BF16", ("reduce-overhead",)), ("resnet50", 256, "FP16", ("graph+channels_last",)),
                 ("speech_small", 16, "FP16", ("eager",)), ("speech_large", 64, "FP16", ("eager",)),
                 ("acgan", 256, "FP16", ("graph+channels_last",)), ("acgan", 2048, "FP16", ("graph+channels_last",)),
                 ("convnet256", 512, "FP16", ("graph+channels_last",)), ("speech_large", 64, "FP32", ()),
                 ("speech_small", 16, "FP32", ()), ("gpt_wide", 8, "BF16", ()), ("gpt_wide", 8, "FP8", ()),
                 ("gpt_4096", 8, "BF16", ()), ("gpt_4096", 8, "FP8", ()), ("gpt2", 8, "TF32", ()), ("gpt2", 8, "FP32", ()),
                 ("acgan", 256, "TF32", ()), ("acgan", 256, "FP32", ()), ("mlp", 512, "FP32", ()),
                 ("convnet256", 128, "TF32", ()), ("convnet256", 128, "FP32", ()), ("resnet50", 256, "TF32", ()),
                 ("resnet50", 256, "FP32", ())],
    "mlp": [("mlp", 512, "FP16", PLAIN), ("mlp", 512, "FP32", ("graph",)), ("mlp", 512, "TF32", ()), ("mlp", 512, "BF16", ())],
    "convnet": [("convnet256", 128, "FP16", IMAGES), ("convnet256", 32, "FP16", FEW), ("convnet256", 512, "FP16", FEW),
                ("convnet256", 128, "FP32", ()), ("convnet256", 128, "TF32", ()), ("convnet256", 128, "BF16", ())],
    "acgan": [("acgan", 256, "FP16", IMAGES), ("acgan", 64, "FP16", FEW), ("acgan", 2048, "FP16", FEW),
              ("acgan", 256, "FP32", ()), ("acgan", 256, "TF32", ())],
    "resnet50": [("resnet50", 256, "FP16", IMAGES), ("resnet50", 256, "FP32", ()), ("resnet50", 256, "TF32", ()),
                 ("resnet50", 256, "BF16", ())],
    "gpt2": [("gpt2", 8, "BF16", PLAIN), ("gpt2", 8, "FP32", ()), ("gpt2", 8, "TF32", ()), ("gpt2", 8, "FP16", ())],
    "gpt_wide": [("gpt_wide", 8, "BF16", PLAIN), ("gpt_wide", 8, "FP8", ()), ("gpt_4096", 8, "BF16", ("graph",)),
                 ("gpt_4096", 8, "FP8", ()), ("gpt_wide", 8, "TF32", ())],
    "speech": [("speech_large", 64, "FP16", RECURRENT), ("speech_small", 16, "FP16", RECURRENT),
               ("speech_large", 64, "FP32", ()), ("speech_small", 16, "FP32", ()), ("speech_large", 64, "TF32", ())],
}
TURN_SECONDS = 0.6
# A stage whose rows have ours alone in one form.
OVERVIEW = "overview"
WARM_UP_SECONDS = {"eager": 60, "graph": 60, "reduce-overhead": 120, "max-autotune": 240}
# A row is not begun with less than this left.
LEAST_SECONDS = 30


class Contestant:
    """A process that takes steps when it is asked to."""

    def __init__(self, command, log):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.turn_steps = 1

    def ask(self, line, timeout):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise RuntimeError(f"no answer within {timeout:.0f} s")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"ended with {self.process.wait()}")
        return json.loads(answer)

    def warm_up(self, timeout):
        end = time.monotonic() + timeout
        self.ask(1, timeout)
        first = self.ask(17, max(1, end - time.monotonic()))
        self.turn_steps = max(1, min(20000, int(TURN_SECONDS / first["median"])))
        self.ask(self.turn_steps, max(1, end - time.monotonic()))

    def turn(self, kind=""):
        return self.ask(f"{kind}{self.turn_steps}", 60)

    def close(self):
        self.process.kill()
        self.process.wait()


def ours(arguments, workload, batch, mode, log, *options):
    job, sample, target, _, _, small, small_target, settings = WORKLOADS[workload]
    command = [os.path.join(arguments.bin, "bench_steps"), f"--device={arguments.device}", *options,
               f"--autotune={os.path.join(arguments.state, 'autotune')}", f"--set=train.batch_size={batch}"]
    if arguments.tiny:
        sample, target = small, small_target
        command += [f"--set={setting}" for setting in settings]
    return Contestant(command + [os.path.join(BENCH, "workloads", job), sample, target, mode, "1"], log)


def peer(arguments, workload, batch, mode, variant, log):
    command = [arguments.python, os.path.join(BENCH, "peers", "torch_steps.py"), workload, mode, variant, "4", "--device",
               arguments.torch_device, "--batch", str(batch), "--late"]
    return Contestant(command + (["--tiny"] if arguments.tiny else []), log)


def fastest_peer(peers, left_out, tried, deadline):
    """The contestant of the fastest variant, warm; None where there is none. The others are closed."""
    best, best_time = None, None
    for variant, candidate in peers.items():
        limit = min(WARM_UP_SECONDS[variant.split("+")[0]], deadline - time.monotonic() - LEAST_SECONDS / 2)
        try:
            if limit < 10:
                raise RuntimeError("no time left to warm it up")
            candidate.warm_up(limit)
            tried[variant] = candidate.turn()["median"]
        except (RuntimeError, ValueError, BrokenPipeError) as error:
            left_out[variant] = str(error)
            candidate.close()
            continue
        if best is None or tried[variant] < best_time:
            best, candidate, best_time = candidate, best, tried[variant]
        if candidate:
            candidate.close()
    return best


def measure(arguments, row, log, deadline):
    workload, batch, mode, variants = row
    left_out, tried = {}, {}
    result = {"workload": workload, "batch": batch, "mode": mode, "tried": tried, "left_out": left_out}
    # While PyTorch is read from the disk, ours is warmed up; peers make nothing on the device before they are asked.
    peers = {variant: peer(arguments, workload, batch, mode, variant, log) for variant in variants if arguments.torch}
    mine = ours(arguments, workload, batch, mode, log)
    rival = apart = None
    otherwise = {}
    try:
        mine.warm_up(240)
        first = mine.turn()
        # Of the device is said what it has less of: before others are there.
        memory = mine.ask("memory", 60)
        alone = arguments.stage == OVERVIEW
        # The ways to launch steps that were measured to be slower.
        if workload == "mlp":
            for way in {"resident", "interpreted", "captured"} - {first["launch"]}:
                otherwise[way] = ours(arguments, workload, batch, mode, log, f"--steps={way}")
                otherwise[way].warm_up(240)
        if first["regions"] > 0 and not alone:
            apart = ours(arguments, workload, batch, mode, log, "--fusion=chains")
            apart.warm_up(240)
        rival = fastest_peer(peers, left_out, tried, deadline)
        turns, rival_turns, other_turns, apart_turns = [], [], {way: [] for way in otherwise}, []
        for _ in range(arguments.rounds):
            turns.append(mine.turn())
            if rival:
                rival_turns.append(rival.turn())
            for way, contestant in otherwise.items():
                other_turns[way].append(contestant.turn())
            if apart:
                apart_turns.append(apart.turn())
        result.update(ours=[t["median"] for t in turns], host=statistics.median(t["host"] for t in turns),
                      loss=turns[-1]["loss"], applied=turns[-1]["applied"], steps=turns[-1]["steps"],
                      fed=mine.turn("fed ")["median"], memory=memory)
        result.update(launch=turns[-1]["launch"], other={way: [t["median"] for t in its] for way, its in sorted(other_turns.items())},
                      regions=first["regions"], apart=[t["median"] for t in apart_turns])
        if rival:
            result.update(peer=[t["median"] for t in rival_turns], peer_host=statistics.median(t["host"] for t in rival_turns),
                          peer_fed=rival.turn("fed ")["median"], variant=min(tried, key=tried.get))
            if arguments.torch_device == "cuda":
                result["peer_memory"] = rival.ask("memory", 60)
    finally:
        for contestant in (mine, rival, apart, *peers.values(), *otherwise.values()):
            if contestant:
                contestant.close()
    return result


def ms(seconds):
    return "-" if not seconds else f"{seconds * 1e3:.4g}"


def spread(values):
    return f"{ms(min(values))}-{ms(max(values))}" if values else "-"


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else "-"


def gib(n):
    return "-" if n is None else f"{n / 2**30:.2f}"


def table(results):
    wide = {(r["workload"], r["batch"]): r for r in results if r["mode"] == "FP32" and "ours" in r}
    tf32 = {(r["workload"], r["batch"]): r for r in results if r["mode"] == "TF32" and "ours" in r}
    lines = ["| workload | batch | mode | ours ms | spread | host ms | fed ms | a second | TFLOP/s | PyTorch's best ms | spread | variant "
             "| fed ms | best / ours | eager / ours | FP32 / this | TF32 / this | GiB plan | GiB device | GiB PyTorch | tensors of FP32's "
             "| launch | others, ms | regions | apart ms |",
             "|" + "---|" * 25]
    for r in results:
        if "ours" not in r:
            lines.append(f"| {r['workload']} | {r['batch']} | {r['mode']} | FAILED: {r['error']} |" + " |" * 21)
            continue
        middle, key = statistics.median(r["ours"]), (r["workload"], r["batch"])
        best = statistics.median(r["peer"]) if "peer" in r else None
        eager = min((t for v, t in r["tried"].items() if v.startswith("eager")), default=None)
        base = {name: statistics.median(rows[key]["ours"]) if key in rows else None for name, rows in (("w", wide), ("t", tf32))}
        m, count = r["memory"], WORKLOADS[r["workload"]][3:5]
        cells = [r["workload"], r["batch"], r["mode"], ms(middle), spread(r["ours"]), ms(r["host"]), ms(r["fed"]),
                 f"{r['batch'] * count[1] / middle:,.0f} {count[0]}", f"{m['gflop'] / middle / 1e3:.1f}", ms(best),
                 spread(r.get("peer")), r.get("variant", "-"), ms(r.get("peer_fed")), ratio(best, middle), ratio(eager, middle),
                 ratio(base["w"], middle), ratio(base["t"], middle), gib(m["parameters"] + m["activations"]), gib(m["device"]),
                 gib(r.get("peer_memory", {}).get("allocated")),
                 ratio(m["tensors"], wide[key]["memory"]["tensors"]) if key in wide else "-", r.get("launch", "-"),
                 ", ".join(f"{way} {ms(statistics.median(its))}" for way, its in r.get("other", {}).items()) or "-", r.get("regions", "-"),
                 ms(statistics.median(r["apart"])) if r.get("apart") else "-"]
        lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return lines


def report(arguments, results, missing):
    environment = open(arguments.environment).read() if arguments.environment else ""
    lines = [f"# Training steps on a GPU: {arguments.stage}", "", f"{datetime.date.today()}, {arguments.rounds} rounds, alternating; "
             "medians, then lowest-highest. `tests/gpu/gpu_speed.py` says how.", "", *environment.splitlines(), "", *table(results), "",
             "a step: a window's time over its steps, with the batches in the device's memory; fed: a batch is copied to the device for "
             "each step. host: what the host is busy with a step. TFLOP/s: as the ops count them. plan: parameters, gradients, moments, "
             "copies and activations; device: what the device has less of, libraries included; PyTorch: the most it allocated. launch: how ours takes its steps; "
             "others: of a small network the other ways to launch them, interpreted: without taking dense layers together. "
             "regions: products that the plan joins with what follows; apart: a step of ours without them.", ""]
    for r in results:
        if r["tried"] or r["left_out"]:
            said = [f"{v} {ms(t)} ms" for v, t in sorted(r["tried"].items(), key=lambda item: item[1])]
            said += [f"{v} left out ({why})" for v, why in r["left_out"].items()]
            lines.append(f"- {r['workload']}, batch {r['batch']}, {r['mode']}, one turn each: {'; '.join(said)}.")
    if not arguments.torch:
        lines.append("No PyTorch on this machine: ours is measured alone.")
    if missing:
        lines.append(f"Not measured yet: {', '.join(missing)}.")
    base = os.path.join(arguments.out, f"{datetime.date.today()}-gpu-{arguments.stage}")
    os.makedirs(arguments.out, exist_ok=True)
    with open(base + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(base + ".json", "w") as file:
        json.dump({"date": str(datetime.date.today()), "environment": environment.splitlines(), "rows": results}, file, indent=1)
    print("\n".join(lines))


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def tiny_rows(rows):
    """A row with a variant and one without, of few samples."""
    kept = [(w, 4, mode, variants[:1]) for w, _, mode, variants in rows]
    return [next(r for r in kept if r[3]), next((r for r in kept if not r[3]), kept[-1])]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--state", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "bin"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=460)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--environment")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    arguments.torch = has_torch(arguments.python)
    global TURN_SECONDS, LEAST_SECONDS
    rows = STAGES[arguments.stage]
    if arguments.tiny:
        rows, TURN_SECONDS, LEAST_SECONDS, arguments.rounds = tiny_rows(rows), 0.01, 1, 2
    os.makedirs(os.path.join(arguments.state, "autotune"), exist_ok=True)
    results, missing = [], []
    for row in rows:
        name = "-".join(str(part) for part in row[:3])
        path = os.path.join(arguments.state, name + ".json")
        if not os.path.exists(path):
            if deadline - time.monotonic() < LEAST_SECONDS:
                missing.append(name)
                continue
            with open(os.path.join(arguments.state, name + ".log"), "w") as log:
                try:
                    result = measure(arguments, row, log, deadline)
                except (RuntimeError, ValueError, BrokenPipeError) as error:
                    log.flush()
                    last = open(log.name).read().strip().splitlines()[-1:] or [""]
                    result = {"workload": row[0], "batch": row[1], "mode": row[2], "tried": {}, "left_out": {},
                              "error": f"{error}: {last[0][:300]}".replace("|", "/")}
            with open(path + ".new", "w") as file:
                json.dump(result, file)
            os.replace(path + ".new", path)
        results.append(json.load(open(path)))
    report(arguments, results, missing)
    failed = [r for r in results if "error" in r]
    sys.exit(1 if failed else 3 if missing else 0)


if __name__ == "__main__":
    main()
