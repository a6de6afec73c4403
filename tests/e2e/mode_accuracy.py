"""A job file trained in every mode with several seeds through the daemon, and the table of what it reached."""

import datetime
import os
import platform
import statistics
import subprocess
import sys

import ampd_process

MODES = ("FP32", "FP16", "BF16")
SEEDS = (1, 2, 3)


def processor():
    with open("/proc/cpuinfo") as file:
        lines = file.read().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    best = next((name for flag, name in (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 with bf16, no AMX"),
                                         ("avx512f", "AVX-512, no bf16"), ("avx2", "AVX2, no AVX-512")) if flag in flags),
                "no AVX2")
    return f"{names[0] if names else platform.machine()} ({best}), {len(os.sched_getaffinity(0))} threads"


def revision():
    result = subprocess.run(["git", "-C", ampd_process.SOURCE, "rev-parse", "--short", "HEAD"], text=True,
                            capture_output=True)
    return result.stdout.strip() or "unknown"


def write_result(name, text):
    """Into tests/bench/results/DATE-NAME.md."""
    folder = os.path.join(ampd_process.SOURCE, "tests/bench/results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{datetime.date.today()}-{name}.md")
    with open(path, "w") as file:
        file.write(text)
    print(text + f"written to {os.path.relpath(path, ampd_process.SOURCE)}")


def submit(ampd, job, mode, seed, sets):
    settings = [f"precision.mode={mode}", f"seed={seed}", *sets]
    result = ampd.ctl("submit", job, "-q", *[word for setting in settings for word in ("--set", setting)])
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


def train(data, job, sets=(), devices=None, modes=MODES, seeds=SEEDS):
    """(what `outcome` says by (mode, seed), sentences on how it was measured). `data`: the folder beneath a data root.

    Exits with 77 where the data is absent.
    """
    folder = ampd_process.shared_data(data)
    if folder is None:
        print(f"SKIPPED the accuracy runs: no ../shared/data/{data} here")
        sys.exit(ampd_process.SKIPPED)
    devices = devices or len(os.sched_getaffinity(0))
    path = os.path.join(ampd_process.SOURCE, "client/examples", job)
    before = os.getloadavg()[0]
    at = revision()  # The binaries' revision, whatever is committed meanwhile.
    ampd = ampd_process.Daemon(data_roots=[os.path.dirname(folder)], cpu_devices=devices).start()
    try:
        ids = {(mode, seed): submit(ampd, path, mode, seed, sets) for seed in seeds for mode in modes}
        runs = {key: outcome(ampd, job_id, *key) for key, job_id in ids.items()}
    finally:
        ampd.close()
    changed = "`, `".join(["precision.mode", "seed", *sets])
    told = [
        f"{datetime.date.today()}, revision {at}, {processor()}. Job file `client/examples/{job}`;",
        f"changed were `{changed}`. {devices} {'jobs' if devices > 1 else 'job'} at a time, one thread each; steps a second are",
        f"those of one job, evaluations and checkpoints included. Load average of the machine before and after: {before:.1f}, "
        f"{os.getloadavg()[0]:.1f}."
    ]
    return runs, "\n".join(told)


def table(runs, modes=MODES, seeds=SEEDS):
    lines = ["| mode | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean accuracy | steps | skipped | steps/s |",
             "|---|" + "---|" * (len(seeds) + 4)]
    for mode in modes:
        accuracies = [runs[mode, seed][0] for seed in seeds]
        steps, seconds, skipped = (sum(runs[mode, seed][i] for seed in seeds) for i in (1, 2, 3))
        lines.append(f"| {mode} | " + " | ".join(f"{a:.4f}" for a in accuracies) +
                     f" | {statistics.mean(accuracies):.4f} | {steps} | {skipped} | {steps / seconds:.1f} |")
    return "\n".join(lines) + "\n"
