#!/usr/bin/env python3
"""The benchmark stage "kernels": products and convolutions over sizes, ours against PyTorch's (cuBLAS's and cuDNN's).

usage: kernel_speed.py --state DIR --out FOLDER [--bin DIR] [--seconds N] [--tiny] [--torch-device cuda] [--environment FILE]

Kernels are measured in groups of one op and dtype; a group is a file in DIR once it is measured, so a repeated call goes on.
Exit code 3: groups are left. FOLDER gets DATE-gpu-kernels.md and .json.
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Of names as kernel_bench has them. Small ones for --tiny.
GROUPS = [f"^{op}.*{dtype}/" for dtype in ("/f16", "/bf16", "/tf32/f32", "[0-9]/f32") for op in ("matmul", "conv2d")]
TINY = ["^matmul/256x4096x1000/bf16/"]
LEAST_SECONDS = 40


def our_times(arguments, pattern):
    """Name to seconds; or to a text where it fails."""
    command = [os.path.join(arguments.bin, "kernel_bench"), f"--device={arguments.device}", "--sweep",
               f"--benchmark_filter={pattern}", "--benchmark_format=json", "--benchmark_min_time=0.05"]
    if not arguments.tiny:
        command.append("--benchmark_repetitions=3")
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(20, arguments.deadline - time.monotonic()))
    if done.returncode != 0 or not done.stdout.strip().startswith("{"):
        raise RuntimeError(f"kernel_bench ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
    found = {}
    for row in json.loads(done.stdout)["benchmarks"]:
        name = row.get("run_name", row["name"]).removesuffix("/real_time")
        if row.get("error_occurred"):
            found[name] = {"error": row["error_message"]}
        elif row.get("aggregate_name", "median") == "median" or arguments.tiny:
            found[name] = {"flops": row.get("FLOP/s", 0), "bytes": row.get("B/s", 0),
                           "seconds": row["real_time"] * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}[row["time_unit"]] / arguments.launches}
    return found


def torch_times(arguments, names):
    script = os.path.join(HERE, "..", "bench", "peers", "torch_kernels.py")
    done = subprocess.run([sys.executable, script, f"--device={arguments.torch_device}", *names], capture_output=True, text=True,
                          timeout=max(20, arguments.deadline - time.monotonic()))
    return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}


def measure(arguments, pattern):
    mine = our_times(arguments, pattern)
    theirs = torch_times(arguments, mine)
    return [{"name": name, **row, "peer": theirs.get(name, {}).get("seconds"), "peer_error": theirs.get(name, {}).get("error")}
            for name, row in mine.items()]


def report(arguments, rows, missing, failed):
    environment = open(arguments.environment).read() if arguments.environment else ""
    lines = ["# Products and convolutions on a GPU", "", f"{datetime.date.today()}, medians of 20 launches at a time on the same memory: "
             "small sizes lie in the cache. `tests/gpu/kernel_speed.py` says how.", "", *environment.splitlines(), "",
             "| kernel | ours us | TFLOP/s | GB/s | PyTorch us | PyTorch / ours |", "|---|---|---|---|---|---|"]
    for r in rows:
        if "error" in r:
            lines.append(f"| {r['name']} | FAILED: {r['error'][:200].replace('|', '/')} | | | | |")
            continue
        peer = f"{r['peer'] * 1e6:.1f}" if r["peer"] else r["peer_error"] or "-"
        quotient = f"{r['peer'] / r['seconds']:.2f}" if r["peer"] else "-"
        lines.append(f"| {r['name']} | {r['seconds'] * 1e6:.1f} | {r['flops'] / 1e12:.1f} | {r['bytes'] / 1e9:.0f} | {peer} | {quotient} |")
    lines += [f"Failed: {why}." for why in failed]
    if missing:
        lines.append(f"Not measured yet: {', '.join(missing)}.")
    base = os.path.join(arguments.out, f"{datetime.date.today()}-gpu-kernels")
    os.makedirs(arguments.out, exist_ok=True)
    with open(base + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(base + ".json", "w") as file:
        json.dump({"date": str(datetime.date.today()), "environment": environment.splitlines(), "rows": rows}, file, indent=1)
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--state", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "bin"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--seconds", type=float, default=460)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--environment")
    arguments = parser.parse_args()
    arguments.deadline = time.monotonic() + arguments.seconds
    arguments.launches = 1 if arguments.device == "cpu-0" else 20
    os.makedirs(arguments.state, exist_ok=True)
    rows, missing, failed = [], [], []
    for index, pattern in enumerate(TINY if arguments.tiny else GROUPS):
        path = os.path.join(arguments.state, f"group-{index}.json")
        if not os.path.exists(path):
            if arguments.deadline - time.monotonic() < LEAST_SECONDS and not arguments.tiny:
                missing.append(pattern)
                continue
            try:
                found = measure(arguments, pattern)
            except subprocess.TimeoutExpired:
                missing.append(pattern)
                continue
            except (RuntimeError, ValueError) as error:
                failed.append(f"{pattern}: {error}")
                continue
            with open(path + ".new", "w") as file:
                json.dump(found, file)
            os.replace(path + ".new", path)
        rows += json.load(open(path))
    report(arguments, rows, missing, failed)
    sys.exit(1 if failed or any("error" in r for r in rows) else 3 if missing else 0)


if __name__ == "__main__":
    main()
