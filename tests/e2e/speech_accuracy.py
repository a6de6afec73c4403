"""Trains client/examples/fsdd-speech.yaml in each mode and records how many words it spells.

Writes tests/bench/results/DATE-fsdd-speech.md. Fails when a run spells fewer than 95% of the words of takes 0 to 4 without a
mistake. Run by `tests/run.sh --full`; exits with 77 where the data is absent.
"""

import datetime
import os
import sys

import ampd_process
import mode_accuracy

MODES = ("FP32", "BF16", "FP16")
FLOOR = 0.95
JOB = os.path.join(ampd_process.SOURCE, "client/examples/fsdd-speech.yaml")


def run(ampd, mode):
    """(metrics of the last evaluation, job) of one training."""
    result = ampd.ctl("submit", JOB, "-q", "--set", f"precision.mode={mode}", "--set", "resources.cpu_threads=1")
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    job = ampd.wait(result.stdout.strip(), seconds=4 * 3600)
    if ampd_process.state_name(job.state) != "SUCCEEDED":
        raise SystemExit(f"{mode}: {job.failure}")
    evaluations = [event.evaluation for event in ampd.events(job.id) if event.HasField("evaluation")]
    metrics = dict(evaluations[-1].metrics)
    print(mode, metrics, flush=True)
    return metrics, job


def report(runs, load):
    lines = [
        "# Free Spoken Digit Dataset, 2,700 training files, 300 of takes 0 to 4, through the daemon", "",
        f"{datetime.date.today()}, revision {mode_accuracy.revision()}, {mode_accuracy.processor()}. Job file "
        "`client/examples/fsdd-speech.yaml`;", "only `precision.mode` was changed; one job at a time, on one thread. A word is right when every "
        "letter is. Load average of the", f"machine before and after: {load[0]:.1f}, {load[1]:.1f}.", "",
        "| mode | words right | character error rate | words right, beam | character error rate, beam | steps | skipped | seconds |",
        "|---|---|---|---|---|---|---|---|"
    ]
    for mode, (metrics, job) in runs.items():
        seconds = (job.end_time.ToNanoseconds() - job.start_time.ToNanoseconds()) / 1e9
        lines.append(f"| {mode} | {metrics['exact_match']:.4f} | {metrics['label_error_rate']:.4f} | "
                     f"{metrics['beam_exact_match']:.4f} | {metrics['beam_label_error_rate']:.4f} | {job.summary.step} | "
                     f"{job.summary.steps_skipped} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main():
    data = ampd_process.shared_data("fsdd")
    if data is None:
        print("SKIPPED the spoken digits: no ../shared/data/fsdd here")
        sys.exit(ampd_process.SKIPPED)
    load = [os.getloadavg()[0]]
    ampd = ampd_process.Daemon(data_roots=[os.path.dirname(data)]).start()
    try:
        runs = {mode: run(ampd, mode) for mode in MODES}
    finally:
        ampd.close()
    load.append(os.getloadavg()[0])
    mode_accuracy.write_result("fsdd-speech", report(runs, load))
    low = [mode for mode, (metrics, _) in runs.items() if metrics["exact_match"] < FLOOR]
    if low:
        sys.exit(f"below {FLOOR}: {low}")


if __name__ == "__main__":
    main()
