"""What goes wrong: one function a fault, each leaving a daemon that runs, a true disk and workers that may run."""

import contextlib
import os
import signal
import struct
import time

from ampd_process import eventually

# Longer than this a worker must not be silent: ServerConfig.heartbeat_timeout_seconds of the chaos.
HEARTBEAT_SECONDS = 4
# What the daemon gives a worker to attach, and one whose job is over to exit.
GRACE_SECONDS = 60


class Control:
    """The file that the preloaded library reads: the wall clock's error, and whether the disk is full."""

    def __init__(self, path):
        self.path = path
        self.clock_seconds = 0.0
        self.full = False
        self._write()

    def _write(self):
        with open(self.path, "r+b" if os.path.exists(self.path) else "wb") as file:
            file.write(struct.pack("<qq", int(self.clock_seconds * 1e9), int(self.full)))

    def set_clock(self, seconds):
        self.clock_seconds = seconds
        self._write()

    def set_full(self, full):
        self.full = full
        self._write()


def send(pid, sent):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sent)


def is_running(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


class Faults:
    """`ampd`: the Daemon; `progress`: waits until the jobs have come some way; `random`: all choices come from it."""

    def __init__(self, ampd, control, progress, random):
        self.ampd = ampd
        self.control = control
        self.progress = progress
        self.random = random
        # What the jobs may blame their failures on.
        self.killed = 0
        self.silenced = 0

    def some_worker(self):
        workers = self.ampd.worker_pids()
        return self.random.choice(sorted(workers)) if workers else None

    def kill_worker(self):
        worker = self.some_worker()
        if worker is not None:
            send(worker, signal.SIGKILL)
            self.killed += 1
        return worker

    def kill_daemon(self):
        self.ampd.kill()
        # Some die while they start.
        for _ in range(self.random.randrange(3)):
            self.ampd.spawn()
            time.sleep(self.random.random() * 0.15)
            self.ampd.kill()
        self.ampd.start()

    def kill_both(self):
        steps = [self.ampd.kill, self.kill_worker]
        self.random.shuffle(steps)
        for step in steps:
            step()
        self.ampd.start()

    def kill_worker_of_a_dead_daemon(self):
        self.ampd.kill()
        worker = self.kill_worker()
        if worker is not None:
            eventually(lambda: not is_running(worker), "the worker's end")
        self.ampd.start()

    def pause_worker(self):
        worker = self.some_worker()
        if worker is not None:
            send(worker, signal.SIGSTOP)
            time.sleep(self.random.random())
            send(worker, signal.SIGCONT)

    def stop_worker_for_good(self):
        """The daemon must see that it says nothing, and end it."""
        worker = self.some_worker()
        if worker is not None:
            send(worker, signal.SIGSTOP)
            self.silenced += 1
            eventually(lambda: not is_running(worker), "the end of a worker that says nothing",
                       HEARTBEAT_SECONDS + GRACE_SECONDS + 30)

    def pause_daemon(self):
        """Longer than a worker may be silent: it was the daemon that did not listen, and no worker may pay for it."""
        send(self.ampd.process.pid, signal.SIGSTOP)
        time.sleep(HEARTBEAT_SECONDS + 1 if self.random.random() < 0.5 else self.random.random())
        send(self.ampd.process.pid, signal.SIGCONT)

    def fill_disk(self):
        self.control.set_full(True)
        self.progress.wait(self.random.randrange(20), 1.0)
        if self.random.random() < 0.5:
            self.ampd.kill()
        if self.random.random() < 0.3:
            self.kill_worker()
        self.control.set_full(False)
        if self.ampd.process.poll() is not None:
            self.ampd.start()

    def step_clock(self):
        self.control.set_clock(self.random.choice([-86400.0, -3600.0, -5.0, 0.0, 5.0, 3600.0, 86400.0]))
        if self.random.random() < 0.3:
            self.kill_daemon()

    def drain(self):
        code = self.ampd.terminate()
        assert code == 0, f"a drained daemon exited with {code}"
        assert self.ampd.worker_pids() == [], "workers outlive a drain"
        # Something in it hung, and it went without.
        assert "not ended within" not in self.ampd.log(), "a drained daemon did not end by itself"
        self.ampd.start()

    def all(self):
        return [self.kill_worker, self.kill_daemon, self.kill_both, self.kill_worker_of_a_dead_daemon, self.pause_worker,
                self.stop_worker_for_good, self.pause_daemon, self.fill_disk, self.step_clock, self.drain]
