"""Kills, stops, fills and shifts what it can while jobs of all kinds run; in the end every job that was acknowledged must
have come to what it would have come to without.

    tests/chaos/run.py [--rounds N] [--seed S] [--fault kill_worker]...

Needs what the tests in tests/e2e need: AMPD_BIN_DIR, PYTHONPATH with the generated messages and tests/e2e; the preloaded
library is libampd_chaos_shim.so beside the programs. Exit code 1 when something does not hold, 77 when it cannot run.
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time

import grpc
from google.protobuf import json_format

import faults
import jobs
from ampd_process import BIN, SKIPPED, TERMINAL, Daemon, eventually, program, states
from ampd.v1 import job_pb2, training_service_pb2, training_service_pb2_grpc

DEVICES = 2
# Jobs that are not over at any time.
WIDTH = 5
# A daemon that is back answers within this.
ANSWER_SECONDS = 30
# What may happen to a call while the daemon is away or its disk is full; anything else is an error.
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED,
           grpc.StatusCode.RESOURCE_EXHAUSTED)
SHIM = os.path.join(os.path.realpath(BIN), "libampd_chaos_shim.so")


class ChaosDaemon(Daemon):
    """Daemon and workers with the library preloaded."""

    def __init__(self, control, **arguments):
        super().__init__(**arguments)
        self.environment = {"LD_PRELOAD": SHIM, "AMPD_CHAOS_CONTROL": control.path, "AMPD_CHAOS_FOLDER": self.state_dir}
        wrapper = os.path.join(self.folder, "worker.sh")
        with open(wrapper, "w") as file:
            exports = "".join(f"export {name}='{value}'\n" for name, value in self.environment.items())
            file.write(f"#!/bin/sh\n{exports}exec '{program('ampd-worker')}' \"$@\"\n")
        os.chmod(wrapper, 0o700)
        self.config["worker"] = wrapper


class Progress:
    """Counts the events that watchers see."""

    def __init__(self):
        self.count = 0
        self.changed = threading.Condition()

    def add(self):
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait(self, events, seconds):
        """Until there are `events` more, at most `seconds`."""
        with self.changed:
            wanted = self.count + events
            self.changed.wait_for(lambda: self.count >= wanted, seconds)


class Watched:
    """An acknowledged job and the events that its watcher saw."""

    def __init__(self, job_id, kind):
        self.id = job_id
        self.kind = kind
        self.events = []
        self.cancel_acknowledged = False
        self.thread = None

    def ended(self):
        return bool(self.events) and self.events[-1].HasField("state_change") and \
            self.events[-1].state_change.to in TERMINAL


class Client:
    """Submits, watches and cancels through whatever happens to the daemon."""

    def __init__(self, ampd, progress, rng):
        self.ampd = ampd
        self.progress = progress
        self.random = rng
        self.jobs = []
        self.errors = []
        self.submitting = True
        self.lock = threading.Lock()
        self.kinds = []
        self.thread = threading.Thread(target=self.guarded, args=(self.submit_all,), daemon=True)

    def guarded(self, action, *arguments):
        try:
            action(*arguments)
        except BaseException as error:  # pylint: disable=broad-except
            self.errors.append(f"{getattr(action, '__name__', action)}{arguments}: {error!r}")

    @contextlib.contextmanager
    def api(self):
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 50)]
        with grpc.insecure_channel(self.ampd.grpc_address, options) as channel:
            yield training_service_pb2_grpc.TrainingServiceStub(channel)

    def insist(self, call):
        """The answer of `call(api)`, however often the daemon goes away meanwhile."""
        while True:
            try:
                with self.api() as api:
                    return call(api)
            except grpc.RpcError as error:
                if error.code() not in PASSING:
                    raise
            time.sleep(0.05)

    def submit(self, kind):
        with self.lock:
            number = len(self.jobs)
        request = training_service_pb2.CreateJobRequest(request_id=f"chaos-{number}-{kind}")
        json_format.ParseDict(jobs.KINDS[kind][0](), request.spec)
        if kind == "continued":
            request.spec.start_from.job_id = self.random.choice(self.halves()).id
        job = self.insist(lambda api: api.CreateJob(request, timeout=20))
        watched = Watched(job.id, kind)
        with self.lock:
            self.jobs.append(watched)
        watched.thread = threading.Thread(target=self.guarded, args=(self.watch, watched), daemon=True)
        watched.thread.start()
        if kind == "cancelled":
            threading.Thread(target=self.guarded, args=(self.cancel, watched), daemon=True).start()
        return watched

    def halves(self):
        return [job for job in self.jobs if job.kind == "half" and job.ended()]

    def submit_all(self):
        while self.submitting:
            if sum(not job.ended() for job in self.jobs) >= WIDTH:
                self.progress.wait(1, 0.2)
                continue
            if not self.kinds:
                self.kinds = sorted(jobs.KINDS)
                self.random.shuffle(self.kinds)
            kind = self.kinds.pop()
            self.submit("half" if kind == "continued" and not self.halves() else kind)

    def watch(self, watched):
        while not watched.ended():
            after = watched.events[-1].sequence if watched.events else 0
            request = training_service_pb2.WatchJobRequest(job_id=watched.id, after_sequence=after)
            try:
                with self.api() as api:
                    for event in api.WatchJob(request, timeout=60):
                        watched.events.append(event)
                        self.progress.add()
            except grpc.RpcError as error:
                if error.code() not in PASSING:
                    raise
                time.sleep(0.05)

    def cancel(self, watched):
        trained = self.random.randrange(1, 60)
        while sum(event.HasField("step") for event in watched.events) < trained:
            self.progress.wait(1, 0.2)
        request = training_service_pb2.CancelJobRequest(job_id=watched.id)
        job = self.insist(lambda api: api.CancelJob(request, timeout=20))
        assert job.state in (job_pb2.Job.CANCELLING, job_pb2.Job.CANCELLED), job
        watched.cancel_acknowledged = True

    def ended(self):
        self.check()
        return all(job.ended() for job in self.jobs)

    def check(self):
        assert not self.errors, "\n".join(self.errors)


def references(folder):
    """What each kind comes to when nothing goes wrong."""
    ampd = Daemon(data_roots=[folder], cpu_devices=DEVICES)
    try:
        ampd.start()
        kinds = [kind for kind, (_, end) in jobs.KINDS.items() if end != "CANCELLED"]
        ids = {kind: ampd.submit(jobs.KINDS[kind][0]()).id for kind in kinds if kind != "continued"}
        ampd.wait(ids["half"])
        spec = jobs.continued()
        spec["start_from"]["job_id"] = ids["half"]
        ids["continued"] = ampd.submit(spec).id
        found = {}
        for kind, job_id in ids.items():
            job = ampd.wait(job_id)
            events = ampd.events(job_id)
            found[kind] = jobs.training_of(events)
            jobs.check_ended(kind, job, events, found[kind])
        assert jobs.losses(found["continued"]) == jobs.losses(jobs.behind(jobs.HALF, found["convolution"]))
        return found
    finally:
        ampd.close()


def descriptors(ampd):
    return len(os.listdir(f"/proc/{ampd.process.pid}/fd"))


def strays(control, ampd):
    """Processes that have the library of this run and are not the daemon."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (os.getpid(), ampd.process.pid):
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/environ", "rb") as file:
                if os.fsencode(control.path) in file.read():
                    found.append(int(entry))
    return found


def unfinished(folder):
    """What is being written or taken away, or was when a worker was killed."""
    return [os.path.join(path, name) for path, folders, files in os.walk(folder) for name in folders + files
            if name.startswith(".")]


def check_checkpoints(folder):
    """Every checkpoint is whole."""
    for path, _, files in os.walk(folder):
        if "MANIFEST" not in files:
            assert not files, (path, files)
            continue
        with open(os.path.join(path, "MANIFEST")) as manifest:
            lines = [line.rstrip("\n").split(" ", 2) for line in manifest]
        assert {name for _, _, name in lines} == set(files), (path, files, lines)
        for sha256, size, name in lines[:-1]:
            with open(os.path.join(path, name), "rb") as file:
                content = file.read()
            assert len(content) == int(size) and hashlib.sha256(content).hexdigest() == sha256, (path, name)


def check_database(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


class Chaos:
    def __init__(self, seed, names):
        self.names = names
        self.random = random.Random(seed)
        self.folder = tempfile.mkdtemp(prefix="ampd-chaos-")
        self.data = os.path.join(self.folder, "data")
        jobs.write_data(self.data)
        self.references = references(self.data)
        self.control = faults.Control(os.path.join(self.folder, "control"))
        self.ampd = ChaosDaemon(self.control, data_roots=[self.data], cpu_devices=DEVICES, config={
            "heartbeat_timeout_seconds": faults.HEARTBEAT_SECONDS})
        self.progress = Progress()
        self.client = Client(self.ampd, self.progress, random.Random(self.random.random()))
        self.faults = faults.Faults(self.ampd, self.control, self.progress, self.random)
        self.deck = []

    def close(self):
        self.client.submitting = False
        self.control.set_full(False)
        self.ampd.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_fault(self):
        """Each comes once before any comes again."""
        if not self.deck:
            self.deck = [fault for fault in self.faults.all() if not self.names or fault.__name__ in self.names]
            self.random.shuffle(self.deck)
        return self.deck.pop()

    def run(self, rounds):
        self.ampd.start()
        self.client.thread.start()
        eventually(lambda: self.progress.count > 20, "jobs that run")
        for number in range(1, rounds + 1):
            fault = self.next_fault()
            started = time.monotonic()
            fault()
            eventually(self.answers, f"an answer after {fault.__name__}", ANSWER_SECONDS)
            print(f"round {number}: {fault.__name__}, {time.monotonic() - started:.1f} s, {len(self.client.jobs)} jobs, "
                  f"{self.progress.count} events", flush=True)
            self.client.check()
            self.progress.wait(self.random.randrange(400), 5.0)
        self.settle()

    def answers(self):
        assert self.ampd.process.poll() is None, f"the daemon exited with {self.ampd.process.returncode}"
        try:
            with self.client.api() as api:
                api.ListDevices(training_service_pb2.ListDevicesRequest(), timeout=5)
            return True
        except grpc.RpcError:
            return False

    def settle(self):
        """Lets everything end, and looks at what is left."""
        self.client.submitting = False
        self.client.thread.join()
        eventually(self.client.ended, "the end of every job", 240)
        self.check_jobs()
        self.check_nothing_leaks()
        checkpoints = os.path.join(self.ampd.state_dir, "checkpoints")
        eventually(lambda: not unfinished(checkpoints), "the end of what killed workers left half-written", 60)
        assert self.ampd.terminate() == 0
        eventually(lambda: not strays(self.control, self.ampd), "no process left")
        check_checkpoints(checkpoints)
        check_database(os.path.join(self.ampd.state_dir, "ampd.db"))
        self.client.check()

    def check_jobs(self):
        with self.client.api() as api:
            listed = []
            token = ""
            while True:
                page = api.ListJobs(training_service_pb2.ListJobsRequest(page_token=token))
                listed += [job.id for job in page.jobs]
                token = page.next_page_token
                if not token:
                    break
        assert sorted(listed) == sorted(job.id for job in self.client.jobs), "jobs that nobody asked for, or lost ones"
        for watched in self.client.jobs:
            events = self.ampd.events(watched.id)
            seen = [event.SerializeToString(deterministic=True) for event in watched.events]
            assert seen == [event.SerializeToString(deterministic=True) for event in events], \
                f"{watched.kind} {watched.id}: its watcher saw other events than are stored"
            jobs.check_ended(watched.kind, self.ampd.get(watched.id), events, self.references.get(watched.kind, {}))
        self.check_blame()

    def check_blame(self):
        """Attempts failed of what was done to them, and of nothing else."""
        failures = [event.state_change.failure for job in self.client.jobs for event in job.events
                    if event.HasField("state_change") and event.state_change.to == job_pb2.Job.RETRYING]
        # One that is stopped may not have attached yet.
        silenced = [failure for failure in failures if "no sign of life" in failure.message or
                    "did not attach" in failure.message]
        killed = [failure for failure in failures if "signal 9" in failure.message or
                  "without reporting an outcome" in failure.message]
        others = [failure for failure in failures if failure not in silenced + killed]
        assert not others, others
        assert len(silenced) <= self.faults.silenced, (len(silenced), self.faults.silenced)
        assert len(killed) <= self.faults.killed, (killed, self.faults.killed)

    def check_nothing_leaks(self):
        eventually(lambda: not strays(self.control, self.ampd), "the end of every worker")
        devices = self.ampd.api().ListDevices(training_service_pb2.ListDevicesRequest()).devices
        assert [device.job_id for device in devices] == [""] * DEVICES, devices
        # Of one daemon, which has made whatever it makes once.
        counts = []
        for _ in range(3):
            for kind in ("diverging", "bench"):
                self.ampd.wait(self.ampd.submit(jobs.KINDS[kind][0]()).id)
            eventually(lambda: not strays(self.control, self.ampd), "the end of a worker")
            counts.append(descriptors(self.ampd))
        eventually(lambda: descriptors(self.ampd) <= counts[0], f"no more descriptors than before: {counts}", 20)

    def summary(self):
        attempts = sum(states(job.events).count("STARTING") for job in self.client.jobs)
        kinds = sorted(jobs.KINDS)
        ended = ", ".join(f"{sum(job.kind == kind for job in self.client.jobs)} {kind}" for kind in kinds)
        return f"{len(self.client.jobs)} jobs ({ended}), {attempts} attempts, {self.progress.count} events"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="0: a random one")
    parser.add_argument("--fault", action="append", help="only this one, and others given so; a function of faults.py")
    arguments = parser.parse_args()
    seed = arguments.seed or random.SystemRandom().randrange(1, 1 << 31)
    if not os.path.exists(SHIM):
        print(f"SKIPPED: there is no {SHIM}")
        return SKIPPED
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    chaos = Chaos(seed, arguments.fault)
    try:
        chaos.run(arguments.rounds)
        print(f"{arguments.rounds} rounds, {chaos.summary()}: {time.monotonic() - started:.0f} s", flush=True)
        return 0
    except BaseException:
        print(f"failed with --rounds {arguments.rounds} --seed {seed}\n{chaos.ampd.log()}", file=sys.stderr, flush=True)
        raise
    finally:
        chaos.close()


if __name__ == "__main__":
    sys.exit(main())
