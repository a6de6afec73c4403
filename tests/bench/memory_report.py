"""What a job's plan says of memory against what the process takes.

usage: memory_report.py BENCH_STEPS [--threads 2] [--steps 3] [--out FILE]

BENCH_STEPS: the program, built in the release preset with -DAMPD_BUILD_BENCHMARKS=ON. Every row is a fresh process, which
plans, trains a few steps and reports its high-water mark (VmHWM). From that goes what the same process takes for the
smallest network, mlp.yaml, in the same mode, less what that network's plan says: code pages that are touched, thread stacks,
oneDNN's own. That is the idle process with its libraries at work; it is printed with every row.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess

from step_speed import HERE, WORKLOADS

MODES = ("FP32", "BF16", "FP16", "FP8")
MIB = 2**20


def measure(args, workload, mode):
    job, sample, target, _, _ = WORKLOADS[workload]
    command = [args.bench_steps, os.path.join(HERE, "workloads", job), sample, target, mode, str(args.threads)]
    done = subprocess.run(command, input=f"{args.steps}\nmemory\n", capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
    figures = json.loads(done.stdout.splitlines()[-1])
    figures["planned"] = figures["parameters"] + figures["activations"] + figures["inputs"]
    return figures


def rows(args):
    for mode in MODES:
        smallest = measure(args, "mlp", mode)
        idle = smallest["peak"] - smallest["planned"]
        for workload in WORKLOADS:
            if workload == "mlp":
                continue
            figures = measure(args, workload, mode)
            figures.update(workload=workload, mode=mode, idle=idle, measured=figures["peak"] - idle)
            yield figures


def report(args):
    found = list(rows(args))
    wide = {r["workload"]: r for r in found if r["mode"] == "FP32"}
    processor = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "")
    lines = [
        "# Planned and measured memory",
        "",
        f"{datetime.date.today()}, {processor or platform.processor()}, {args.threads} threads, {args.steps} steps; MiB. "
        "Made by `tests/bench/memory_report.py`, which says how.",
        "Parameters: masters, gradients, moments, published copies, state. Tensors: what steps hand to each other. Arena: "
        "tensors and kernels' workspace.",
        "",
        "| network | mode | parameters | tensors | of FP32's | arena | of FP32's | batch | planned | measured over idle | planned / measured | idle |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(found, key=lambda r: (list(WORKLOADS).index(r["workload"]), MODES.index(r["mode"]))):
        base = wide[r["workload"]]
        cells = [r["workload"], r["mode"], f"{r['parameters'] / MIB:.2f}", f"{r['tensors'] / MIB:.2f}",
                 f"{r['tensors'] / base['tensors']:.3f}", f"{r['activations'] / MIB:.2f}",
                 f"{r['activations'] / base['activations']:.3f}", f"{r['inputs'] / MIB:.2f}",
                 f"{r['planned'] / MIB:.2f}", f"{r['measured'] / MIB:.2f}", f"{r['planned'] / r['measured']:.3f}",
                 f"{r['idle'] / MIB:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out")
    args = parser.parse_args()
    text = report(args)
    print(text, end="")
    if args.out:
        with open(args.out, "w") as out:
            out.write(text)


if __name__ == "__main__":
    main()
