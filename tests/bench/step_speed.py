"""Whole training steps, ours against PyTorch's best, alternating in one run.

usage: step_speed.py BENCH_STEPS [--python PYTHON] [--threads 2] [--rounds 5] [--workloads a,b] [--modes FP32,BF16,FP16]
                     [--no-compile] [--out FILE]

BENCH_STEPS: the program, built in the release preset with -DAMPD_BUILD_BENCHMARKS=ON. PYTHON: one with a recent torch. Every
contestant of a row (ours, and PyTorch eager or compiled, contiguous or channels_last) is one process that waits for its
turn; a round gives each its turn, and the rounds' medians are compared. The peer of a row is PyTorch's fastest variant.
"""
import argparse
import datetime
import json
import os
import platform
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
        self.medians = []

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {self.process.wait()}")
        return json.loads(line)["median"]

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
    """Name to the medians of its turns; a contestant that fails is left out and named."""
    steps = WORKLOADS[workload][3]
    running = contestants(args, workload, mode)
    times = {name: [] for name in running}
    try:
        for turn in range(-1, args.rounds):  # the first turn warms up
            for name in list(running):
                try:
                    seconds = running[name].run(max(2, steps) if turn < 0 else steps)
                except (RuntimeError, ValueError) as error:
                    print(f"{workload} {mode}: {name} left out: {error}", file=sys.stderr)
                    running.pop(name).close()
                    times.pop(name)
                    continue
                if turn >= 0:
                    times[name].append(seconds)
    finally:
        for contestant in running.values():
            contestant.close()
    return times


def row(workload, mode, times):
    ours = times.pop("ours")
    middle = {name: statistics.median(values) for name, values in times.items()}
    best = min(middle, key=middle.get)
    mine, eager = statistics.median(ours), middle.get("eager")
    cell = lambda s: f"{s * 1e3:.3f}"
    against_eager = f"{eager / mine:.2f}" if eager else "-"
    return (f"| {workload} | {mode} | {cell(mine)} | {cell(min(ours))}-{cell(max(ours))} | {cell(middle[best])} "
            f"| {cell(min(times[best]))}-{cell(max(times[best]))} | {best} | {middle[best] / mine:.2f} | {against_eager} |")


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
    parser.add_argument("--out")
    args = parser.parse_args()
    version = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                             check=True).stdout.strip()
    lines = [f"{datetime.date.today()}, {processor()}, {args.threads} threads, PyTorch {version}, {args.rounds} rounds"
             f"{', torch.compile left out' if args.no_compile else ''}. "
             "Milliseconds a step: median over the rounds, then lowest-highest.", "",
             "| workload | mode | ours | spread | PyTorch's best | spread | variant | best / ours | eager / ours |",
             "|---|---|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for workload in args.workloads.split(","):
        for mode in args.modes.split(","):
            lines.append(row(workload, mode, measure(args, workload, mode)))
            print(lines[-1], flush=True)
    if args.out:
        with open(args.out, "w") as file:
            file.write("# Training steps against PyTorch\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
