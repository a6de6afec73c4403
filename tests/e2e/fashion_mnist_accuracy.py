"""Trains client/examples/fashion-mnist-convnet.yaml in each mode with three seeds and records what it reached.

Writes tests/bench/results/DATE-fashion-mnist.md. Fails when a run is below 90% or the means of the modes differ by more
than half a point. Run by `tests/run.sh --full`; exits with 77 where the data is absent.
"""

import datetime
import os
import platform
import statistics
import subprocess
import sys

import ampd_process

MODES = ("FP32", "FP16", "BF16")
SEEDS = (1, 2, 3)
FLOOR = 0.90
SPREAD = 0.005
JOB = os.path.join(ampd_process.SOURCE, "client/examples/fashion-mnist-convnet.yaml")


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} threads"


def submit(ampd, mode, seed):
    result = ampd.ctl("submit", JOB, "-q", "--set", f"precision.mode={mode}", "--set", f"seed={seed}")
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    return result.stdout.strip()


def outcome(ampd, job_id, mode, seed):
    """(accuracy, steps, seconds, skipped) of one run."""
    job = ampd.wait(job_id, seconds=4 * 3600)
    if ampd_process.state_name(job.state) != "SUCCEEDED":
        raise SystemExit(f"{mode}, seed {seed}: {job.failure}")
    seconds = (job.end_time.ToNanoseconds() - job.start_time.ToNanoseconds()) / 1e9
    print(f"{mode} seed {seed}: accuracy {job.summary.accuracy:.4f} in {seconds:.0f} s", flush=True)
    return job.summary.accuracy, job.summary.step, seconds, job.summary.steps_skipped


def report(runs, devices, load):
    revision = subprocess.run(["git", "-C", ampd_process.SOURCE, "rev-parse", "--short", "HEAD"], text=True,
                              capture_output=True).stdout.strip()
    lines = [
        "# Fashion-MNIST, all 60,000 + 10,000 images, through the daemon", "",
        f"{datetime.date.today()}, revision {revision or 'unknown'}, {processor()}. Job file "
        "`client/examples/fashion-mnist-convnet.yaml`;", "only `precision.mode` and `seed` were changed. "
        f"{devices} jobs at a time, one thread each; steps a second are those of", "one job, evaluations and checkpoints "
        f"included. Load average of the machine before and after: {load[0]:.1f}, {load[1]:.1f}.", "",
        "| mode | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean accuracy | steps | skipped | steps/s |",
        "|---|" + "---|" * (len(SEEDS) + 4)
    ]
    for mode in MODES:
        accuracies = [runs[mode, seed][0] for seed in SEEDS]
        steps = sum(runs[mode, seed][1] for seed in SEEDS)
        seconds = sum(runs[mode, seed][2] for seed in SEEDS)
        skipped = sum(runs[mode, seed][3] for seed in SEEDS)
        lines.append(f"| {mode} | " + " | ".join(f"{a:.4f}" for a in accuracies) +
                     f" | {statistics.mean(accuracies):.4f} | {steps} | {skipped} | {steps / seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main():
    data = ampd_process.shared_data("fashion_mnist")
    if data is None:
        print("SKIPPED the accuracy runs: no ../shared/data/fashion_mnist here")
        sys.exit(ampd_process.SKIPPED)
    devices = len(os.sched_getaffinity(0))
    load = [os.getloadavg()[0]]
    ampd = ampd_process.Daemon(data_roots=[os.path.dirname(data)], cpu_devices=devices).start()
    try:
        ids = {(mode, seed): submit(ampd, mode, seed) for seed in SEEDS for mode in MODES}
        runs = {key: outcome(ampd, job_id, *key) for key, job_id in ids.items()}
    finally:
        ampd.close()
    load.append(os.getloadavg()[0])
    text = report(runs, devices, load)
    folder = os.path.join(ampd_process.SOURCE, "tests/bench/results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{datetime.date.today()}-fashion-mnist.md")
    with open(path, "w") as file:
        file.write(text)
    print(text + f"written to {os.path.relpath(path, ampd_process.SOURCE)}")

    means = [statistics.mean(runs[mode, seed][0] for seed in SEEDS) for mode in MODES]
    low = [f"{mode} seed {seed}" for (mode, seed), run in runs.items() if run[0] < FLOOR]
    if low or max(means) - min(means) > SPREAD:
        sys.exit(f"below {FLOOR}: {low or 'none'}; means differ by {max(means) - min(means):.4f}, allowed {SPREAD}")


if __name__ == "__main__":
    main()
