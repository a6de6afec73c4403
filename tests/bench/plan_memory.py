"""What `ampctl plan` says of memory against what the job's worker takes.

usage: plan_memory.py BIN_DIR [--threads 2] [--out FILE]

BIN_DIR holds ampd, ampd-worker and ampctl. Each row is a job of a few steps through a daemon of its own, on generated data of
little more than a batch; its worker's high-water mark (VmHWM) less that of the smallest job (mlp) in the same mode, itself less
what that job's plan says, is "measured over idle", as in memory_report.py. What the data takes beside the batch is in both.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

MIB = 2**20
MODES = ("FP32", "BF16", "FP16")


def job(name, model, data, batch, mode):
    return {"name": name, "model": model, "data": {"train": data}, "precision": {"mode": mode},
            "optimizer": {"adamw": {"learning_rate": 1e-3}}, "train": {"steps": 6, "batch_size": batch},
            "checkpoint": {"every_seconds": 0}, "report": {"every_steps": 1}, "resources": {"cpu_threads": 2}}


def npy_data(folder, name, shape, classes, batch, targets=0):
    import numpy
    generator = numpy.random.default_rng(1)
    inputs = os.path.join(folder, f"{name}-x.npy")
    labels = os.path.join(folder, f"{name}-y.npy")
    numpy.save(inputs, generator.standard_normal((batch, *shape), dtype=numpy.float32))
    if targets:
        numpy.save(labels, generator.standard_normal((batch, targets), dtype=numpy.float32))
        return {"npy": {"inputs": os.path.basename(inputs), "targets": os.path.basename(labels)}}
    numpy.save(labels, generator.integers(0, classes, batch).astype(numpy.int32))
    return {"npy": {"inputs": os.path.basename(inputs), "targets": os.path.basename(labels)}}


def networks(folder):
    """Name, model, data, batch."""
    yield "mlp", {"preset": {"mlp": {}}}, npy_data(folder, "mlp", (8,), 0, 512, targets=1), 512
    yield "convnet", {"preset": {"convnet": {}}}, npy_data(folder, "convnet", (64, 64, 3), 10, 64), 64
    yield "resnet20", {"preset": {"resnet": {"depth": 20}}}, npy_data(folder, "resnet20", (32, 32, 3), 10, 128), 128
    yield "resnet18", {"preset": {"resnet": {"depth": 18}}}, npy_data(folder, "resnet18", (128, 128, 3), 10, 16), 16


class Daemon:
    def __init__(self, bin_dir, folder):
        self.bin_dir = bin_dir
        self.state = os.path.join(folder, "state")
        self.process = subprocess.Popen(
            [os.path.join(bin_dir, "ampd"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state-dir", self.state,
             "--data-root", folder, "--nvml-library", "", "--cpu-devices", "1"], stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        self.address = ready.split("grpc=")[1].split()[0]

    def ctl(self, *arguments):
        done = subprocess.run([os.path.join(self.bin_dir, "ampctl"), "--server", self.address, *arguments], text=True,
                              capture_output=True)
        if done.returncode != 0:
            sys.exit(f"ampctl {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def worker(self):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                command = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
            except OSError:
                continue
            if os.path.basename(command[0]) == b"ampd-worker" and self.state.encode() in b" ".join(command):
                return entry
        return None


def peak_of(daemon, path):
    """VmHWM of the job's worker, read until it is gone; bytes."""
    job_id = daemon.ctl("submit", path, "-q").strip()
    peak, seen = 0, False
    while True:
        pid = daemon.worker()
        if pid is None and seen:
            break
        try:
            status = open(f"/proc/{pid}/status").read() if pid else ""
        except OSError:
            status = ""
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                peak, seen = max(peak, int(line.split()[1]) * 1024), True
        time.sleep(0.01)
    if json.loads(daemon.ctl("get", job_id, "-o", "json"))["state"] != "SUCCEEDED":
        sys.exit(f"job {job_id} did not succeed: {daemon.ctl('get', job_id)}")
    return peak


def rows(args, folder):
    daemon = Daemon(args.bin_dir, folder)
    try:
        for mode in MODES:
            idle = None
            for name, model, data, batch in networks(folder):
                path = os.path.join(folder, "job.json")
                with open(path, "w") as file:
                    json.dump(job(name, model, data, batch, mode), file)
                report = json.loads(daemon.ctl("plan", path, "--modes", mode, "-o", "json"))
                planned = int(next(m for m in report["modes"] if m["mode"] == mode)["total_bytes"])
                peak = peak_of(daemon, path)
                if idle is None:
                    idle = peak - planned
                    continue
                yield name, mode, planned, peak - idle, idle
    finally:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--out")
    args = parser.parse_args()
    lines = ["| network | mode | planned | measured over idle | planned / measured | idle |", "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, mode, planned, measured, idle in rows(args, folder):
            lines.append(f"| {name} | {mode} | {planned / MIB:.1f} | {measured / MIB:.1f} | {planned / measured:.3f} | "
                         f"{idle / MIB:.1f} |")
            print(lines[-1], flush=True)
    if args.out:
        with open(args.out, "w") as out:
            out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
