"""Measures training speed in each mode, alternating, through the daemon.

    AMPD_BIN_DIR=build/release/bin PYTHONPATH=build/dev/tests/e2e/gen:tests/e2e /usr/bin/python3 tests/bench/mode_speed.py

Trains client/examples/fashion-mnist-convnet.yaml (batch 128) for 240 steps, five times a mode, and prints the median over
the runs of each run's median rate, the first 40 steps left out. Needs ../shared/data/fashion_mnist; exits with 77 without.
"""

import json
import os
import statistics
import sys

import ampd_process

MODES = ("FP32", "FP16", "BF16")
RUNS = 5
BATCH = 128
WARM_UP_STEPS = 40
JOB = os.path.join(ampd_process.SOURCE, "client/examples/fashion-mnist-convnet.yaml")
SETTINGS = ("train.epochs=null", "train.steps=240", "data.eval=null", "report.every_steps=20")


def rate(ampd, mode):
    """Median samples a second of one run."""
    arguments = [word for setting in (f"precision.mode={mode}",) + SETTINGS for word in ("--set", setting)]
    result = ampd.ctl("-o", "jsonl", "submit", JOB, "--watch", *arguments)
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    reports = [json.loads(line).get("step") for line in result.stdout.splitlines()]
    return statistics.median(r["samples_per_second"] for r in reports if r and int(r["last_step"]) > WARM_UP_STEPS)


def main():
    data = ampd_process.shared_data("fashion_mnist")
    if data is None:
        print("SKIPPED: no ../shared/data/fashion_mnist here")
        sys.exit(ampd_process.SKIPPED)
    ampd = ampd_process.Daemon(data_roots=[os.path.dirname(data)]).start()
    rates = {mode: [] for mode in MODES}
    try:
        for _ in range(RUNS):
            for mode in MODES:
                rates[mode].append(rate(ampd, mode))
    finally:
        ampd.close()
    print("| mode | steps/s, median | lowest | highest | of FP32 |\n|---|---|---|---|---|")
    base = statistics.median(rates[MODES[0]])
    for mode in MODES:
        middle = statistics.median(rates[mode])
        print(f"| {mode} | {middle / BATCH:.1f} | {min(rates[mode]) / BATCH:.1f} | {max(rates[mode]) / BATCH:.1f} "
              f"| {middle / base:.2f} |")


if __name__ == "__main__":
    main()
