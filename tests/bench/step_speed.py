"""Whole training steps, ours against PyTorch's best, alternating in one run.

usage: step_speed.py BENCH_STEPS [--python PYTHON] [--threads 2] [--rounds 5] [--workloads a,b] [--modes FP32,BF16,FP16]
                     [--no-compile] [--warm-up-timeout 900] [--turn-seconds 4] [--out FILE]

BENCH_STEPS: the program, built in the release preset with -DAMPD_BUILD_TESTS=ON -DAMPD_BUILD_BENCHMARKS=ON. PYTHON: one with a recent torch. Every
contestant of a row (ours, and PyTorch eager or compiled, contiguous or channels_last) is one process that waits for its
turn; a round gives each its turn, and the rounds' medians are compared. The peer of a row is PyTorch's fastest variant.
A contestant that fails (PyTorch has no LSTM in FP16 on a CPU), or that has not warmed up in time, is left out by name; "-" stands
for a figure that nobody has. A turn is the workload's number of steps, fewer where they would take longer than --turn-seconds.

floor: what our plan's steps must take at least (tests/bench/floor.h), by the rates that our process measures in each round.
memory: planned activations and parameters (with gradients, moments and copies), and the most our process ever held, MiB.
"""
import argparse
import datetime
import json
import os
import platform
import select
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# name: (job, sample, target, steps a turn, images)
WORKLOADS = {
    "mlp": ("mlp.yaml", "8", "features=1", 400, False),
    "convnet64": ("convnet.yaml", "64,64,3", "classes=10", 8, True),
    "convnet256": ("convnet.yaml", "256,256,3", "classes=10", 1, True),
    "resnet20": ("resnet20.yaml", "32,32,3", "classes=10", 3, True),
    "lstm": ("lstm.yaml", "64,256", "classes=10", 6, False),
    "transformer": ("transformer.yaml", "ids=1000:128", "classes=1000:128", 4, False),
}


class Contestant:
    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})
        self.step_seconds = None

    def ask(self, line, timeout=None):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise RuntimeError(f"no answer within {timeout} s")
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"ended with {self.process.wait()}")
        return json.loads(answer)

    def warm_up(self, timeout):
        self.step_seconds = self.ask(2, timeout)["lowest"]

    def turn(self, steps, longest):
        return self.ask(max(1, min(steps, int(longest / self.step_seconds))))["median"]

    def close(self):
        self.process.kill()
        self.process.wait()


def contestants(args, workload, mode):
    job, sample, target, _, images = WORKLOADS[workload]
    threads = str(args.threads)
    environment = {"OMP_NUM_THREADS": threads}
    found = {"ours": Contestant([args.bench_steps, os.path.join(HERE, "workloads", job), sample, target, mode, threads],
                                environment)}
    variants = ["eager"] + ([] if args.no_compile else ["compile"])
    variants += [f"{variant}+channels_last" for variant in variants] if images else []
    for variant in variants:
        command = [args.python, os.path.join(HERE, "peers", "torch_steps.py"), workload, mode, variant, threads]
        found[variant] = Contestant(command, environment)
    return found


def measure(args, workload, mode):
    """Name to the medians of its turns, without the contestants that fail, and our floors."""
    steps = WORKLOADS[workload][3]
    running = contestants(args, workload, mode)
    times, floors = {name: [] for name in running}, []
    try:
        for turn in range(-1, args.rounds):
            for name in list(running):
                try:
                    if turn < 0:
                        running[name].warm_up(args.warm_up_timeout)
                    else:
                        times[name].append(running[name].turn(steps, args.turn_seconds))
                except (RuntimeError, ValueError, BrokenPipeError) as error:
                    if name == "ours":
                        raise
                    print(f"{workload} {mode}: {name} left out: {error}", file=sys.stderr)
                    running.pop(name).close()
                    times.pop(name)
            if turn >= 0:
                floors.append(running["ours"].ask("floor"))
    finally:
        for contestant in running.values():
            contestant.close()
    return times, floors


def milliseconds(seconds):
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def spread(values):
    return f"{milliseconds(min(values))}-{milliseconds(max(values))}" if values else "-"


def ratio(a, b):
    return "-" if a is None or not b else f"{a / b:.2f}"


def row(workload, mode, times, floors):
    ours = times.pop("ours")
    middle = {name: statistics.median(values) for name, values in times.items()}
    best = min(middle, key=middle.get) if middle else None
    mine, peer = statistics.median(ours), middle.get(best)
    floor = statistics.median(f["floor"] for f in floors)
    memory = "/".join(f"{floors[-1][key] / 2**20:.0f}" for key in ("activation_bytes", "parameter_bytes", "peak_bytes"))
    cells = (workload, mode, milliseconds(mine), spread(ours), milliseconds(peer), spread(times.get(best)), best or "-",
             ratio(peer, mine), ratio(middle.get("eager"), mine), f"{floors[-1]['gflop']:.3f}",
             f"{floors[-1]['gbytes']:.4f}", milliseconds(floor), ratio(mine, floor), memory)
    return f"| {' | '.join(cells)} |"


def rates(floors):
    """What the machine was measured to do, over all rows."""
    text = []
    for key, unit in (("f32_gflops", "GFLOP/s (f32 product)"), ("bf16_gflops", "GFLOP/s (bf16 product)"),
                      ("gbytes_per_second", "GB/s (copy within the workload's memory)")):
        values = [f[key] for f in floors]
        text.append(f"{min(values):.1f}-{max(values):.1f} {unit}")
    return "Measured on the way: " + ", ".join(text) + "."


def processor():
    with open("/proc/cpuinfo") as file:
        text = file.read()
    name = next((l.split(":", 1)[1].strip() for l in text.splitlines() if l.startswith("model name")), platform.machine())
    return name + (", AMX" if "amx_bf16" in text else ", no AMX") + (", AVX512-BF16" if "avx512_bf16" in text else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench_steps")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--modes", default="FP32,BF16,FP16")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out; the result says so")
    parser.add_argument("--warm-up-timeout", type=float, default=900, help="seconds for a contestant's first two steps")
    parser.add_argument("--turn-seconds", type=float, default=4, help="no turn takes longer, but for a single step")
    parser.add_argument("--out")
    args = parser.parse_args()
    version = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                             check=True).stdout.strip()
    lines = [f"{datetime.date.today()}, {processor()}, {args.threads} threads, PyTorch {version}, {args.rounds} rounds"
             f"{', torch.compile left out' if args.no_compile else ''}. "
             "Milliseconds a step: median over the rounds, then lowest-highest.", "",
             "| workload | mode | ours | spread | PyTorch's best | spread | variant | best / ours | eager / ours | GFLOP | GB "
             "| floor | ours / floor | MiB planned activations/parameters/peak |",
             "|" + "---|" * 14]
    print("\n".join(lines), flush=True)
    all_floors = []
    for workload in args.workloads.split(","):
        for mode in args.modes.split(","):
            times, floors = measure(args, workload, mode)
            all_floors += floors
            lines.append(row(workload, mode, times, floors))
            print(lines[-1], flush=True)
    lines += ["", rates(all_floors)]
    print(lines[-1], flush=True)
    if args.out:
        with open(args.out, "w") as file:
            file.write("# Training steps against PyTorch\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
