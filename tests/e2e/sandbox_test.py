"""What workers may not do: as the kernel tells of real ones, as one tries that a hostile model took over, and as another user."""

import json
import os
import pwd
import re
import resource
import stat
import subprocess
import sys

import grpc

import ampd_process
from ampd.v1 import training_service_pb2 as api
from ampd_process import DEADLINE, Daemon, DaemonTest, eventually, glyphs_job, losses_by_step, program, states

ACCOUNT = "nobody"
# May stand in a worker's environment, besides what begins with these.
KNOWN = {"PATH", "HOME", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH", "AMPD_WORKER_TOKEN"}
PREFIXES = ("LC_", "OMP_", "KMP_", "CUDA_", "NVIDIA_", "NCCL_", "DNNL_")
ROWS = b"x,y\n" + b"".join(b"%d,%d\n" % (i % 7, 2 * (i % 7)) for i in range(64))


def proc(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read().decode()


def status_of(pid):
    return dict(line.split(":\t", 1) for line in proc(pid, "status").splitlines() if ":\t" in line)


def limits_of(pid):
    """Soft and hard limits by name."""
    return {line[:26].strip(): tuple(line[26:].split()[:2]) for line in proc(pid, "limits").splitlines()[1:]}


def csv_job(path, steps=5, **fields):
    spec = glyphs_job("csv", steps=steps, **fields)
    spec["model"] = {"layers": [{"name": "head", "dense": {"units": 1}}], "loss": {"mean_squared_error": {}}}
    spec["data"] = {"train": {"csv": {"path": path, "targets": ["y"]}}}
    return spec


def kernel_has_landlock():
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) <= 0)"
    return subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# Runs the rest of the command line where Landlock is hidden, as by an older kernel.
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
# Load the call's number; those of Landlock fail with ENOSYS, all others pass.
code = b"".join(struct.pack("HBBI", *line) for line in
                ((0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7fff0000)))
room = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(room)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


class SandboxTest(DaemonTest):
    def write(self, name, data, mode=0o644):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode)
        return path

    def running(self, daemon, **fields):
        """A job that has trained a step, and its worker's pid."""
        job = daemon.submit(glyphs_job("long", steps=1_000_000, report={"max_per_second": 5}, **fields))
        daemon.wait_for_step(job.id, 1)
        pid, = daemon.worker_pids()
        return job.id, pid

    @staticmethod
    def events_so_far(daemon, job_id):
        last = daemon.get(job_id).last_sequence
        events = []
        call = daemon.watch(job_id)
        for event in call:
            events.append(event)
            if event.sequence >= last:
                call.cancel()
                break
        return events

    def cancel(self, daemon, job_id):
        daemon.api().CancelJob(api.CancelJobRequest(job_id=job_id), timeout=DEADLINE)
        self.assert_state(daemon.wait(job_id), "CANCELLED")


class WorkerTest(SandboxTest):
    def test_workers_are_bounded_and_know_no_secrets(self):
        secrets = {"AMPD_INIT_ADMIN_TOKEN_TEXT": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter3", "NCCL_API_KEY": "hunter4",
                   "LD_PRELOAD_": "hunter5", "NCCL_DEBUG": "WARN"}
        daemon = self.daemon(environment=secrets)
        job_id, pid = self.running(daemon)
        status, limits = status_of(pid), limits_of(pid)
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertEqual(limits["Max core file size"], ("0", "0"))
        self.assertEqual(limits["Max open files"], ("4096", "4096"))
        most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = str(32768 if most == resource.RLIM_INFINITY else min(32768, most))
        self.assertEqual(limits["Max processes"], (wanted, wanted))
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if os.path.exists(program("ampd_hostile_worker.so")):  # no sanitizers
            self.assertEqual(limits["Max data size"], (str(memory), str(memory)))
        environment = dict(entry.split("=", 1) for entry in proc(pid, "environ").split("\0") if "=" in entry)
        self.assertEqual([name for name in environment if name not in KNOWN and not name.startswith(PREFIXES)], [])
        self.assertNotIn("hunter", str(environment))
        self.assertEqual(environment["NCCL_DEBUG"], "WARN")
        # The token that it was started with cannot be read afterwards.
        self.assertEqual(environment.get("AMPD_WORKER_TOKEN", ""), "")
        self.cancel(daemon, job_id)


class TakenOverTest(SandboxTest):
    """The planner and the exporter do at their end what a hostile model would have them do."""

    # Of what is tried, what a process can do that is not kept in.
    FREE = {"read a secret", "write the database", "write data", "make a file", "make a file in /tmp", "make a folder",
            "remove a file", "make a socket", "make a unix socket", "start a process", "run a program", "signal the daemon",
            "read the database"}

    def setUp(self):
        super().setUp()
        self.library = program("ampd_hostile_worker.so")
        if not os.path.exists(self.library):
            self.skipTest("built with a sanitizer, which must be loaded before any other library")
        self.data = os.path.dirname(self.write("data/data.csv", ROWS))
        self.elsewhere = os.path.dirname(self.write("elsewhere/secret", b"secret"))
        self.write("elsewhere/gone", b"not yet")
        self.state = os.path.join(self.folder, "state")
        self.addCleanup(lambda: os.path.exists("/tmp/made_by_hostile_worker") and os.unlink("/tmp/made_by_hostile_worker"))

    def settings(self, mode):
        return {"LD_PRELOAD": self.library, "HOSTILE_MODE": mode, "HOSTILE_STATE": self.state, "HOSTILE_DATA": self.data,
                "HOSTILE_ELSEWHERE": self.elsewhere}

    def worker(self, mode):
        exports = "".join(f"export {name}='{value}'\n" for name, value in self.settings(mode).items())
        script = f"#!/bin/sh\n{exports}exec {program('ampd-worker')} \"$@\"\n"
        return self.write("worker.sh", script.encode(), 0o755)

    def hostile(self, mode, **config):
        return self.daemon(state_dir=self.state, data_roots=[self.data], config={"worker": self.worker(mode), **config})

    @staticmethod
    def could(text):
        return set(re.findall(r"could ([^\n\\]+)", text))

    def refused_submit(self, daemon):
        with self.assertRaises(grpc.RpcError) as raised:
            daemon.submit(csv_job("data.csv"))
        self.assertIn("exited with code 9", raised.exception.details())
        return raised.exception.details()

    def test_whoever_is_not_kept_in_can_do_it_all(self):
        # Else its failure would prove nothing.
        self.daemon(state_dir=self.state)
        result = subprocess.run([program("ampctl"), "--version"], env=dict(os.environ, **self.settings("--version")),
                                capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(result.returncode, 9)
        self.assertEqual(self.could(result.stderr), self.FREE)

    def test_a_planner_that_was_taken_over_can_do_nothing(self):
        if not kernel_has_landlock():
            self.skipTest("this kernel has no Landlock")
        daemon = self.hostile("--plan")
        said = self.refused_submit(daemon)
        self.assertEqual(self.could(said), set(), said)
        self.assertRegex(said, r"NoNewPrivs:\s+1")
        self.assertRegex(said, r"Seccomp:\s+2")
        self.assertFalse(os.path.exists("/tmp/made_by_hostile_worker"))
        self.assertEqual(sorted(os.listdir(self.elsewhere)), ["gone", "secret"])
        self.assertNotIn("Landlock", daemon.log())
        self.assertEqual(daemon.http("/healthz")[0], 200)

    def test_an_exporter_that_was_taken_over_can_do_nothing(self):
        if not kernel_has_landlock():
            self.skipTest("this kernel has no Landlock")
        daemon = self.hostile("--export")
        job = daemon.run(csv_job("data.csv", every_steps=5))
        self.assert_state(job, "SUCCEEDED")
        result = daemon.ctl("download", job.id, os.path.join(self.folder, "model.onnx"), "--form", "onnx")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("exited with code 9", result.stderr)
        self.assertEqual(self.could(result.stderr), set(), result.stderr)
        self.assertRegex(result.stderr, r"Seccomp:\s+2")
        self.assertEqual(sorted(os.listdir(self.elsewhere)), ["gone", "secret"])

    def test_as_another_user_it_is_without_privileges(self):
        if os.geteuid() != 0:
            self.skipTest("only root can have workers of another user")
        os.chmod(self.folder, 0o755)
        daemon = self.hostile("--plan", worker_user=ACCOUNT)
        said = self.refused_submit(daemon)
        self.assertEqual(self.could(said), set(), said)
        uid = pwd.getpwnam(ACCOUNT).pw_uid
        self.assertRegex(said, rf"Uid:\s+{uid}\s+{uid}\s+{uid}\s+{uid}")
        self.assertRegex(said, r"CapEff:\s+0000000000000000")

    def test_where_the_kernel_lacks_it_the_log_says_so_once(self):
        class OldKernel(Daemon):
            def command(self):
                return [sys.executable, "-c", WITHOUT_LANDLOCK, *super().command()]

        daemon = OldKernel(state_dir=self.state, data_roots=[self.data])
        self.daemons.append(daemon)
        daemon.start()
        self.assert_state(daemon.run(csv_job("data.csv")), "SUCCEEDED")
        self.assertEqual(daemon.log().count("Landlock"), 1)
        self.assertIn("WARNING the kernel has no Landlock", daemon.log())
        self.assertEqual(daemon.terminate(), 0)
        # The filter of system calls is there all the same.
        daemon.config["worker"] = self.worker("--plan")
        daemon.start()
        could = self.could(self.refused_submit(daemon))
        self.assertLessEqual(could, {"read a secret", "read the database", "write the database", "write data", "make a file",
                                     "make a file in /tmp"})
        self.assertEqual(os.path.getsize(os.path.join(self.data, "data.csv")), len(ROWS), "opened, but no byte is written")


class OtherUserTest(SandboxTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can have workers of another user")
        self.account = pwd.getpwnam(ACCOUNT)
        os.chmod(self.folder, 0o755)
        self.state = os.path.join(self.folder, "state")
        self.mirror = os.path.join(self.folder, "mirror")
        self.data = os.path.dirname(self.write("data/data.csv", ROWS))

    def other_user(self, **config):
        return self.daemon(state_dir=self.state, data_roots=[self.data], config={"worker_user": ACCOUNT, **config})

    def as_account(self, code):
        """Whether Python's `code` goes through as the workers' user."""
        return subprocess.run([sys.executable, "-c", code], user=self.account.pw_uid, group=self.account.pw_gid,
                              extra_groups=[], cwd="/", capture_output=True, timeout=DEADLINE).returncode == 0

    def test_a_job_lives_its_whole_life(self):
        daemon = self.other_user(mirror_dir=self.mirror)
        spec = glyphs_job("whole", steps=60, every_steps=20)
        plain = self.daemon().run(spec)
        job = daemon.run(spec)
        self.assert_state(job, "SUCCEEDED")
        self.assertEqual(losses_by_step(daemon.events(job.id)), losses_by_step(self.daemons[-1].events(plain.id)))
        for root in (os.path.join(self.state, "checkpoints"), self.mirror):
            checkpoints = [name for name in os.listdir(os.path.join(root, job.id)) if name.startswith("step-")]
            self.assertTrue(checkpoints, root)
            for folder, _, files in os.walk(os.path.join(root, job.id)):
                for name in files:
                    self.assertEqual(os.stat(os.path.join(folder, name)).st_uid, self.account.pw_uid)
        errors = [e.checkpoint.mirror_error for e in daemon.events(job.id) if e.HasField("checkpoint")]
        # The mirror is given beside the worker's start, and a busy machine may do so after the first one.
        self.assertEqual(errors[-1], "", errors)
        # It comes home, in its own form and in another; another job starts from it.
        home = os.path.join(self.folder, "home")
        self.assertEqual(daemon.ctl("download", job.id, home).returncode, 0)
        self.assertTrue(any(files for _, _, files in os.walk(home)))
        model = os.path.join(self.folder, "model.onnx")
        result = daemon.ctl("download", job.id, model, "--form", "onnx")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(os.path.getsize(model), 1000)
        self.assert_state(daemon.run(glyphs_job("next", steps=3, start_from={"job_id": job.id})), "SUCCEEDED")
        # What was ended is tried again.
        cancelled, _ = self.running(daemon)
        self.cancel(daemon, cancelled)
        daemon.api().RetryJob(api.RetryJobRequest(job_id=cancelled), timeout=DEADLINE)
        daemon.wait_for_step(cancelled, 1)
        self.cancel(daemon, cancelled)

    def test_a_mirror_that_fails_stops_neither_the_start_nor_a_job(self):
        in_the_way = self.write("disk", b"a file where a folder should be")
        self.mirror = os.path.join(in_the_way, "mirror")
        daemon = self.other_user(mirror_dir=self.mirror)

        def mirror_errors(name):
            job = daemon.run(glyphs_job(name, steps=20, every_steps=10))
            self.assert_state(job, "SUCCEEDED")
            self.assertEqual(job.attempt, 1)
            return [e.checkpoint.mirror_error for e in daemon.events(job.id) if e.HasField("checkpoint")]

        for name in ("first", "second"):
            for error in mirror_errors(name):
                self.assertIn("Not a directory", error)
        self.assertEqual(daemon.log().count("WARNING mirror_dir: workers cannot write there yet"), 1, daemon.log())
        os.unlink(in_the_way)
        os.mkdir(in_the_way)
        os.chmod(in_the_way, 0o755)
        # By its launch, before its last checkpoint.
        self.assertEqual(mirror_errors("third")[-1], "")
        self.assertTrue(os.listdir(self.mirror))

    def test_data_is_read_from_roots_and_uploads(self):
        daemon = self.other_user()
        self.assert_state(daemon.run(csv_job("data.csv")), "SUCCEEDED")
        result = daemon.ctl("datasets", "upload", "sent", self.data)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_state(daemon.run(csv_job("dataset:sent/data.csv")), "SUCCEEDED")
        weights = os.path.join(self.folder, "weights")
        job = daemon.run(glyphs_job("first", steps=3, every_steps=3))
        self.assertEqual(daemon.ctl("download", job.id, weights).returncode, 0)
        found = [os.path.join(folder, name) for folder, _, names in os.walk(weights) for name in names
                 if name == "model.safetensors"]
        result = daemon.ctl("submit", self.job_file(glyphs_job("second", steps=3)), "--resume-from", found[0], "--watch")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        # What the account may not read no job of anybody reads.
        self.write("data/closed.csv", ROWS, 0o600)
        closed = daemon.run(csv_job("closed.csv"))
        self.assert_state(closed, "FAILED")
        self.assertIn("ermission denied", closed.failure.message)

    def test_workers_are_that_user_and_reach_no_more_than_they_must(self):
        daemon = self.other_user()
        job_id, pid = self.running(daemon)
        status = status_of(pid)
        uid, gid = str(self.account.pw_uid), str(self.account.pw_gid)
        self.assertEqual(status["Uid"].split(), [uid] * 4)
        self.assertEqual(status["Gid"].split(), [gid] * 4)
        self.assertNotIn("0", status["Groups"].split())
        self.assertEqual({status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}, {"0" * 16})
        self.assertEqual(status["NoNewPrivs"], "1")
        self.assertIn(f"HOME={self.account.pw_dir}", proc(pid, "environ").split("\0"))
        for path in ("ampd.db", "audit.log", "ampd.lock", "", "jobs", "checkpoints"):
            whole = os.path.join(self.state, path)
            self.assertTrue(os.path.exists(whole), path)
            look = "os.listdir" if os.path.isdir(whole) else "open"
            self.assertFalse(self.as_account(f"import os; {look}({whole!r})"), path)
        self.assertFalse(self.as_account(f"open({os.path.join(self.state, 'new')!r}, 'w')"))
        self.assertTrue(self.as_account(f"import os; os.listdir({os.path.join(self.state, 'jobs', job_id)!r})"))
        self.assertEqual(stat.S_IMODE(os.stat(self.state).st_mode), 0o710)
        self.cancel(daemon, job_id)

    def test_it_outlives_its_daemon_and_goes_on_from_its_checkpoint(self):
        daemon = self.other_user(on_stop="DETACH")
        job_id = daemon.submit(glyphs_job("outlives", steps=6000, every_steps=50)).id
        daemon.wait_for_step(job_id, 60)
        pids = daemon.worker_pids()
        self.assertEqual(daemon.terminate(), 0)
        daemon.start()
        daemon.wait_for_step(job_id, 120)
        self.assertEqual(daemon.worker_pids(), pids, "it was taken up")
        self.assertEqual([e for e in self.events_so_far(daemon, job_id) if e.HasField("rewound")], [])
        daemon.kill()
        daemon.kill_workers()
        eventually(lambda: not daemon.worker_pids(), "the worker's end")
        daemon.start()
        self.assert_state(daemon.wait(job_id), "SUCCEEDED")
        events = daemon.events(job_id)
        self.assertIn("RECOVERING", states(events))
        resumed = [e.step.last_step for e in events if e.HasField("step") and e.attempt > 1]
        self.assertGreater(resumed[0], 50, "it went on from a checkpoint")

    def test_what_was_there_before_is_taken_over(self):
        before = self.daemon(state_dir=self.state, data_roots=[self.data])
        self.assertEqual(before.ctl("datasets", "upload", "sent", self.data).returncode, 0)
        job_id = before.submit(glyphs_job("before", steps=1_000_000, every_steps=20, report={"max_per_second": 5})).id
        before.wait_for_step(job_id, 50)
        first = before.submit(glyphs_job("first", steps=3, every_steps=3)).id
        before.api().PauseJob(api.PauseJobRequest(job_id=job_id), timeout=DEADLINE)
        self.assert_state(before.wait(first), "SUCCEEDED")
        last = max(e.step.last_step for e in self.events_so_far(before, job_id) if e.HasField("step"))
        self.assertEqual(before.terminate(), 0)
        daemon = self.other_user()
        self.assert_state(daemon.run(csv_job("dataset:sent/data.csv")), "SUCCEEDED")
        self.assert_state(daemon.run(glyphs_job("next", steps=3, start_from={"job_id": first})), "SUCCEEDED")
        continued = {"job_id": first, "continue_training": True}
        self.assert_state(daemon.run(glyphs_job("longer", steps=6, start_from=continued)), "SUCCEEDED")
        model = os.path.join(self.folder, "model.onnx")
        result = daemon.ctl("download", first, model, "--form", "onnx")
        self.assertEqual(result.returncode, 0, result.stderr)
        daemon.api().ResumeJob(api.ResumeJobRequest(job_id=job_id), timeout=DEADLINE)
        daemon.wait_for_step(job_id, last + 1)
        pid, = daemon.worker_pids()
        self.assertEqual(status_of(pid)["Uid"].split()[0], str(self.account.pw_uid))
        steps = [e.step.last_step for e in self.events_so_far(daemon, job_id) if e.HasField("step")]
        self.assertEqual(steps, sorted(steps), "it went on from root's checkpoint")
        self.cancel(daemon, job_id)

    def test_who_cannot_be_is_refused_at_the_start(self):
        for user, why in (("no-such-user", 'worker_user: no user of this machine is called "no-such-user"'),
                          ("root", 'worker_user: "root" is root'), ("0", "worker_user")):
            daemon = Daemon(config={"worker_user": user})
            self.daemons.append(daemon)
            daemon.spawn()
            self.assertEqual(daemon.process.wait(timeout=DEADLINE), 2)
            self.assertIn(why, daemon.log())
        # Root without what root is usually able to.
        for program_name in ("setpriv",):
            if subprocess.run(["which", program_name], capture_output=True, timeout=60).returncode != 0:
                continue
            config = self.write("less.yaml", json.dumps({"worker_user": ACCOUNT, "state_dir": self.state}).encode())
            result = subprocess.run(["setpriv", "--bounding-set=-setuid,-kill", program("ampd"), "--config", config],
                                    capture_output=True, text=True, timeout=DEADLINE)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("worker_user: workers of another user need a daemon that is root, or has CAP_SETUID, CAP_KILL as "
                          "well", result.stderr)


if __name__ == "__main__":
    ampd_process.main()
