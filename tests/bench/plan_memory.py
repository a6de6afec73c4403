"""What `ampctl plan` says of memory against what the job's worker takes.

usage: plan_memory.py BIN_DIR [--threads 2] [--only NAME,...] [--modes MODE,...] [--out FILE]

BIN_DIR holds ampd, ampd-worker and ampctl. Each row is a job of a few steps through a daemon of its own, on generated data of
little more than a batch. Idle is the high-water mark (VmHWM) of a worker that trains the same preset at next to no size on the same
data in the same mode, less what that job's plan says; the job's own mark less idle is "measured over idle".
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import wave

MIB = 2**20
MODES = ("FP32", "BF16", "FP16")


def job(name, model, data, batch, mode, threads):
    spec = {"name": name, "model": model, "data": {"train": data}, "precision": {"mode": mode},
            "optimizer": {"adamw": {"learning_rate": 1e-3}}, "train": {"steps": 6, "batch_size": batch},
            "checkpoint": {"every_seconds": 0}, "report": {"every_steps": 1}, "resources": {"cpu_threads": threads}}
    if "acgan" in model["preset"]:
        del spec["optimizer"]  # its phases have their own
    return spec


def npy_data(folder, name, shape, classes, batch, targets=0):
    import numpy
    generator = numpy.random.default_rng(1)
    inputs = os.path.join(folder, f"{name}-x.npy")
    labels = os.path.join(folder, f"{name}-y.npy")
    numpy.save(inputs, generator.standard_normal((batch, *shape), dtype=numpy.float32))
    if targets:
        numpy.save(labels, generator.standard_normal((batch, targets), dtype=numpy.float32))
    else:
        places = (batch, shape[0] * shape[1]) if name == "unet" else batch
        numpy.save(labels, generator.integers(0, classes, places).astype(numpy.int32))
    return {"npy": {"inputs": os.path.basename(inputs), "targets": os.path.basename(labels)}}


def text_data(folder, length, batch):
    with open(os.path.join(folder, "input.txt"), "wb") as file:
        file.write(bytes(range(32, 127)) * (2 * length * batch // 95 + 1))
    return {"text": {"path": "input.txt", "sequence_length": length}}


def box_data(folder, side, batch):
    """Noise, and one box an image."""
    import numpy
    generator = numpy.random.default_rng(1)
    numpy.save(os.path.join(folder, "ssd-x.npy"), generator.random((batch, side, side, 3), dtype=numpy.float32))
    boxes = numpy.tile(numpy.array([[[1, 0.2, 0.2, 0.6, 0.6]]], numpy.float32), (batch, 1, 1))
    numpy.save(os.path.join(folder, "ssd-y.npy"), boxes)
    return {"npy": {"inputs": "ssd-x.npy", "targets": "ssd-y.npy"}}


def sound_data(folder, batch):
    """Noise of a second at 8 kHz, "digits" to spell."""
    import numpy
    generator = numpy.random.default_rng(1)
    os.makedirs(os.path.join(folder, "sounds"), exist_ok=True)
    for i in range(batch):
        with wave.open(os.path.join(folder, "sounds", f"7_noise_{i}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", None))
            file.writeframes(generator.integers(-9000, 9000, 8000).astype("<i2").tobytes())
    return {"wav_folder": {"path": "sounds", "transcript_by_prefix": {"7": "seven"}}}


def networks(folder):
    """Name, model, data, batch."""
    regression = npy_data(folder, "mlp", (8,), 0, 512, targets=1)
    yield "mlp", {"preset": {"mlp": {"hidden": [256, 256, 256]}}}, regression, 512
    yield "convnet", {"preset": {"convnet": {}}}, npy_data(folder, "convnet", (64, 64, 3), 10, 64), 64
    yield "resnet20", {"preset": {"resnet": {"depth": 20}}}, npy_data(folder, "resnet20", (32, 32, 3), 10, 128), 128
    yield "resnet18", {"preset": {"resnet": {"depth": 18}}}, npy_data(folder, "resnet18", (128, 128, 3), 10, 16), 16
    unet = {"preset": {"unet": {"classes": 2, "depth": 3, "width": 16}}}
    yield "unet", unet, npy_data(folder, "unet", (64, 64, 3), 2, 16), 16
    yield "acgan", {"preset": {"acgan": {}}}, npy_data(folder, "acgan", (28, 28, 1), 10, 64), 64
    gpt2 = {"preset": {"gpt2": {"vocabulary": 256, "layers": 4, "heads": 4, "features": 128, "positions": 128}}}
    yield "gpt2", gpt2, text_data(folder, 128, 12), 12
    yield "speech", {"preset": {"speech": {"filters": 16, "units": 64}}}, sound_data(folder, 32), 32
    yield "ssd", {"preset": {"ssd": {"classes": 3, "size": 64}}}, box_data(folder, 64, 16), 16


# Each family at next to no size, on the same data: what a worker takes besides the model.
SMALLEST = {
    "mlp": {"mlp": {"hidden": [8]}},
    "convnet": {"convnet": {"filters": [2, 2, 2]}},
    "resnet20": {"resnet": {"depth": 20, "width": 1}},
    "resnet18": {"resnet": {"depth": 18, "width": 1}},
    "unet": {"unet": {"classes": 2, "depth": 3, "width": 1}},
    "acgan": {"acgan": {"width": 1, "noise": 8}},
    "gpt2": {"gpt2": {"vocabulary": 256, "layers": 1, "heads": 1, "features": 8, "positions": 128}},
    "speech": {"speech": {"filters": 1, "units": 8}},
    "ssd": {"ssd": {"classes": 3, "size": 64, "width": 1}},
}


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
        if pid is None and json.loads(daemon.ctl("get", job_id, "-o", "json"))["state"] in ("SUCCEEDED", "FAILED"):
            sys.exit(f"the worker of {job_id} came and went unseen: the machine is too busy to measure on")
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


def planned_and_peak(daemon, path, spec):
    with open(path, "w") as file:
        json.dump(spec, file)
    mode = spec["precision"]["mode"]
    report = json.loads(daemon.ctl("plan", path, "--modes", mode, "-o", "json"))
    return int(next(m for m in report["modes"] if m["mode"] == mode)["total_bytes"]), peak_of(daemon, path)


def rows(args, folder):
    daemon = Daemon(args.bin_dir, folder)
    path = os.path.join(folder, "job.json")
    try:
        for mode in args.modes.split(",") if args.modes else MODES:
            for name, model, data, batch in networks(folder):
                if args.only and name not in args.only.split(","):
                    continue
                nothing = {"preset": SMALLEST[name]}
                planned, peak = planned_and_peak(daemon, path, job(name, nothing, data, batch, mode, args.threads))
                idle = peak - planned
                planned, peak = planned_and_peak(daemon, path, job(name, model, data, batch, mode, args.threads))
                yield name, mode, planned, peak - idle, idle
    finally:
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(timeout=60)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only")
    parser.add_argument("--modes")
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
