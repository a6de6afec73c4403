"""Runs a daemon for a test: start, kill, restart, submit, watch, wait with deadlines.

The programs are those of $AMPD_BIN_DIR; the messages are generated from the protos into a folder on PYTHONPATH.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc
from google.protobuf import json_format

from ampd.v1 import event_pb2, job_pb2, training_service_pb2, training_service_pb2_grpc

BIN = os.environ.get("AMPD_BIN_DIR", os.path.join(os.path.dirname(__file__), "../../build/dev/bin"))
SOURCE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
SKIPPED = 77
DEADLINE = 120.0
TERMINAL = (job_pb2.Job.SUCCEEDED, job_pb2.Job.FAILED, job_pb2.Job.CANCELLED)


def program(name):
    return os.path.join(os.path.realpath(BIN), name)


def shared_data(name):
    """A folder of real data, or None where this machine has none: $AMPD_TEST_DATA, else ../shared/data."""
    folder = os.path.join(os.environ.get("AMPD_TEST_DATA", os.path.join(SOURCE, "../shared/data")), name)
    return os.path.realpath(folder) if os.path.isdir(folder) else None


def eventually(condition, what, seconds=DEADLINE):
    """The first true value of `condition()`; fails the test when `seconds` pass without one."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)


def state_name(state):
    return job_pb2.Job.State.Name(state)


def failure_class(failure):
    return job_pb2.Failure.Class.Name(getattr(failure, "class"))


def glyphs_job(name="glyphs", steps=40, mode="FP32", batch_size=32, every_steps=0, **fields):
    """A small convolutional network on generated data; some milliseconds a step on one thread."""
    spec = {
        "name": name,
        "seed": 3,
        "model": {
            "layers": [
                {"name": "conv", "conv2d": {"filters": 8, "kernel": [3, 3], "padding": "SAME"}},
                {"name": "bn", "batch_norm": {}},
                {"name": "act", "relu": {}},
                {"name": "pool", "max_pool": {"size": [2, 2]}},
                {"name": "flat", "flatten": {}},
                {"name": "drop", "dropout": {"rate": 0.1}},
                {"name": "head", "dense": {"units": 10}},
            ],
            "loss": {"softmax_cross_entropy": {}},
        },
        "data": {"train": {"glyphs": {"samples": 1024}}, "eval": {"glyphs": {"samples": 256}}},
        "precision": {"mode": mode},
        "optimizer": {"adamw": {"learning_rate": 0.002}},
        "train": {"steps": steps, "batch_size": batch_size},
        "checkpoint": {"every_seconds": 0, "every_steps": every_steps},
        "resources": {"cpu_threads": 1},
        "report": {"every_steps": 1},
    }
    spec.update(fields)
    return spec


class Daemon:
    """One state directory and the daemons that serve it, one after another, on the same ports."""

    def __init__(self, state_dir=None, data_roots=(), config=None, cpu_devices=1, environment=None):
        self.folder = tempfile.mkdtemp(prefix="ampd-e2e-")
        self.state_dir = state_dir or os.path.join(self.folder, "state")
        self.data_roots = [os.path.realpath(root) for root in data_roots]
        # GPUs of the machine stay out of it unless a test asks, and jobs run where little room is left: they are small.
        self.config = {"nvml_library": "", "min_free_bytes": 32 << 20, **(config or {})}
        # None: not told.
        self.cpu_devices = cpu_devices
        self.environment = environment or {}
        # The next daemon listens there too, and nobody may take them meanwhile.
        self.grpc_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.log_path = os.path.join(self.folder, "ampd.log")
        self.process = None
        self.channel = None

    # Processes

    def command(self):
        """The daemon's command line; writes its configuration."""
        config_path = os.path.join(self.folder, "ampd.yaml")
        with open(config_path, "w") as file:
            json.dump(self.config, file)
        command = [program("ampd"), "--config", config_path, "--listen", self.grpc_address]
        command += ["--http", self.http_address, "--state-dir", self.state_dir]
        if self.cpu_devices is not None:
            command += ["--cpu-devices", str(self.cpu_devices)]
        for root in self.data_roots:
            command += ["--data-root", root]
        return command

    def spawn(self):
        """Starts the process and does not wait for it."""
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log,
                                            env=dict(os.environ, **self.environment))

    def start(self):
        self.spawn()
        line = self._ready_line()
        match = re.fullmatch(r"ampd ready grpc=(\S+) http=(\S+)\n", line)
        if match is None:
            raise AssertionError(f"not the ready line: {line!r}\n{self.log()}")
        self.grpc_address, self.http_address = match.groups()
        return self

    def _ready_line(self, seconds=60):
        os.set_blocking(self.process.stdout.fileno(), False)
        line = b""

        def read():
            nonlocal line
            line += self.process.stdout.read() or b""
            if self.process.poll() is not None and not line.endswith(b"\n"):
                raise AssertionError(f"the daemon exited with {self.process.returncode}\n{self.log()}")
            return line.endswith(b"\n")

        eventually(read, "the daemon's ready line", seconds)
        return line.decode()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._disconnect()
        self.process.stdout.close()

    def terminate(self, seconds=90):
        """SIGTERM; the exit code."""
        self.process.terminate()
        code = self.process.wait(timeout=seconds)
        self._disconnect()
        self.process.stdout.close()
        return code

    def worker_pids(self):
        """Workers of this state directory, whoever their parent is by now."""
        pids = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    arguments = file.read().split(b"\0")
                with open(f"/proc/{entry}/stat") as file:
                    zombie = file.read().rsplit(")", 1)[1].split()[0] == "Z"
                named = os.path.basename(arguments[0]) == b"ampd-worker"
                if named and not zombie and os.fsencode(self.state_dir) in b" ".join(arguments):
                    pids.append(int(entry))
        return pids

    def kill_workers(self):
        pids = self.worker_pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self.process is not None:
            self.process.stdout.close()
        self.kill_workers()
        eventually(lambda: not self.worker_pids(), "the end of the workers")
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self):
        """What the daemon and the workers wrote, for a failed test's output."""
        text = ""
        paths = [self.log_path]
        for folder, _, files in os.walk(os.path.join(self.state_dir, "jobs")):
            paths += [os.path.join(folder, name) for name in sorted(files) if name.endswith(".log")]
        for path in paths:
            with contextlib.suppress(OSError):
                with open(path, errors="replace") as file:
                    lines = file.readlines()[-60:]
                if lines:
                    text += f"--- {os.path.relpath(path, self.folder)}\n" + "".join(lines)
        return text

    # The API

    def api(self):
        if self.channel is None:
            self.channel = grpc.insecure_channel(self.grpc_address)
        return training_service_pb2_grpc.TrainingServiceStub(self.channel)

    def _disconnect(self):
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def submit(self, spec, **request):
        message = training_service_pb2.CreateJobRequest(**request)
        json_format.ParseDict(spec, message.spec)
        return self.api().CreateJob(message, timeout=DEADLINE)

    def get(self, job_id):
        return self.api().GetJob(training_service_pb2.GetJobRequest(job_id=job_id), timeout=DEADLINE)

    def watch(self, job_id, after=0, timeout=DEADLINE):
        request = training_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after)
        return self.api().WatchJob(request, timeout=timeout)

    def events(self, job_id, timeout=DEADLINE):
        """All events up to the terminal one."""
        return list(self.watch(job_id, timeout=timeout))

    @contextlib.contextmanager
    def says_why_if_late(self, job_id):
        try:
            yield
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            job = self.get(job_id)
            raise AssertionError(f"job {job_id} is still {state_name(job.state)}: {job.queue_message}") from error

    def wait_for_step(self, job_id, step, timeout=DEADLINE):
        """Returns once a report of `step` or later is there."""
        call = self.watch(job_id, timeout=timeout)
        with self.says_why_if_late(job_id):
            for event in call:
                if event.HasField("step") and event.step.last_step >= step:
                    call.cancel()
                    return
        raise AssertionError(f"the job ended before step {step}: {self.get(job_id)}")

    def wait(self, job_id, seconds=DEADLINE):
        """The job, once it has ended."""
        with self.says_why_if_late(job_id):
            for _ in self.watch(job_id, timeout=seconds):
                pass
        job = self.get(job_id)
        if job.state not in TERMINAL:
            raise AssertionError(f"the stream ended, but the job is {state_name(job.state)}")
        return job

    def run(self, spec, seconds=DEADLINE):
        return self.wait(self.submit(spec).id, seconds)

    def http(self, path):
        """(status, body) of a GET."""
        try:
            with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ctl(self, *arguments, timeout=DEADLINE, server=None):
        """Runs ampctl to its end."""
        return subprocess.run([program("ampctl"), *arguments], env=self.ctl_environment(server), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)

    def ctl_start(self, *arguments):
        """Starts ampctl; stdout and stderr are pipes."""
        return subprocess.Popen([program("ampctl"), *arguments], env=self.ctl_environment(), text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def ctl_environment(self, server=None):
        return dict(os.environ, AMPD_SERVER=server or self.grpc_address)


class DaemonTest(unittest.TestCase):
    """A test with daemons; what they logged is shown when it fails."""

    def setUp(self):
        self.daemons = []
        self.folder = tempfile.mkdtemp(prefix="ampd-e2e-files-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self._close)

    def daemon(self, **arguments):
        daemon = Daemon(**arguments)
        self.daemons.append(daemon)
        return daemon.start()

    def _close(self):
        result = self._outcome.result
        failed = any(test is self for test, _ in result.failures + result.errors) or any(
            error is not None for _, error in getattr(self._outcome, "errors", []))
        for daemon in self.daemons:
            if failed:
                print(daemon.log(), file=sys.stderr, flush=True)
            daemon.close()

    def job_file(self, spec, name="job.json"):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(spec if isinstance(spec, str) else json.dumps(spec))
        return path

    def assert_state(self, job, state):
        self.assertEqual(state_name(job.state), state, str(job.failure))

    def assert_healthy(self, daemon):
        """The daemon answers and trains: what a bad job must leave behind."""
        self.assertIsNone(daemon.process.poll(), "the daemon is gone")
        self.assertEqual(daemon.http("/healthz")[0], 200)
        self.assert_state(daemon.run(glyphs_job("after", steps=3)), "SUCCEEDED")

    def assert_sequence(self, events):
        """1..N, no gap and no duplicate, with the terminal event last and nowhere else."""
        next_sequence = 1
        for event in events:
            self.assertEqual(event.first_sequence, next_sequence)
            self.assertGreaterEqual(event.sequence, event.first_sequence)
            next_sequence = event.sequence + 1
        ends = [e.sequence for e in events if e.HasField("state_change") and e.state_change.to in TERMINAL]
        self.assertEqual(ends, [events[-1].sequence])


class OneDaemonTest(DaemonTest):
    """Every test has one daemon, self.ampd."""

    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()

    def ctl(self, code, *arguments):
        """Runs ampctl, which must exit with `code`; what it gave."""
        result = self.ampd.ctl(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result


def states(events):
    return [state_name(e.state_change.to) for e in events if e.HasField("state_change")]


def losses_by_step(events):
    """The loss of each step, of its last report where a step was repeated; needs report.every_steps: 1."""
    losses = {}
    for event in events:
        if event.HasField("step"):
            assert event.step.first_step == event.step.last_step, event.step
            losses[event.step.last_step] = event.step.phases[0].loss
    return losses


# Names that hold a port for this process, as long as it lives, against others that ask here.
_held_ports = []


def free_port():
    """One that nobody is given who binds to port 0: below the range that Linux takes those from."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    for port in random.SystemRandom().sample(range(min(10000, first - 1000), first), 100):
        name = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            name.bind(f"\0ampd-e2e-port-{port}")
            probe.bind(("127.0.0.1", port))
            _held_ports.append(name)
            return port
        name.close()
    raise AssertionError("no free port")


def seeded_random():
    """Random moments that a failure's output lets one repeat: $AMPD_TEST_SEED."""
    seed = int(os.environ.get("AMPD_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"AMPD_TEST_SEED={seed}", flush=True)
    return random.Random(seed)


def main():
    """Runs the tests of the calling script; exits with 77 when every one was skipped."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    for test, reason in result.skipped:
        print(f"SKIPPED {test.id()}: {reason}", flush=True)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if result.testsRun > 0 and len(result.skipped) == result.testsRun else 0)
