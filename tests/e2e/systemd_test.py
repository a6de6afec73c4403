"""The unit in deploy/systemd: systemd takes it, its command line starts a daemon, and the daemon tells systemd how it is."""

import configparser
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile

import yaml

import ampd_process
from fenced_blocks import fenced_blocks
from ampd_process import Daemon, DaemonTest, eventually, glyphs_job, program

FOLDER = os.path.join(ampd_process.SOURCE, "deploy/systemd")
# Of 10: what systemd-analyze calls "OK" and better.
WORST_EXPOSURE = 4.0


def unit():
    """Sections of the unit; of a key that comes twice the last."""
    parser = configparser.RawConfigParser(strict=False, delimiters="=", empty_lines_in_values=False, interpolation=None)
    parser.optionxform = str
    with open(os.path.join(FOLDER, "ampd.service")) as file:
        parser.read_file(file)
    return parser


def example_config():
    with open(os.path.join(FOLDER, "ampd.yaml")) as file:
        return yaml.safe_load(file)


def calls_of(group):
    """The system calls of a group such as "@system-service"; a call that is named is itself."""
    if not group.startswith("@"):
        return {group}
    listing = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in listing.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*(calls_of(word) if word.startswith("@") else {word} for word in words))


def allowed_calls():
    with open(os.path.join(FOLDER, "ampd.service")) as file:
        filters = re.findall("^SystemCallFilter=(.*)$", file.read(), re.M)
    allowed = set()
    for groups in filters:
        named = set().union(*map(calls_of, groups.lstrip("~").split()))
        allowed = allowed - named if groups.startswith("~") else allowed | named
    return allowed


def seconds(text):
    return float(re.fullmatch(r"(\d+)(s|sec)?", text)[1])


class Notices:
    """The socket that a service manager gives to a service."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0"))
        self.socket.setblocking(False)

    def next(self, what, seconds=ampd_process.DEADLINE):
        def receive():
            try:
                return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
            except BlockingIOError:
                return None
        return eventually(receive, what, seconds)

    def close(self):
        self.socket.close()


class UnitTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.service = unit()["Service"]

    def installed(self):
        """The unit as it would be installed here: the programs are those of the build."""
        with open(os.path.join(FOLDER, "ampd.service")) as file:
            text = file.read().replace("/usr/local/bin/ampd", program("ampd"))
        path = os.path.join(self.folder, "ampd.service")
        with open(path, "w") as file:
            file.write(text)
        return path

    def analyze(self, *arguments):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed")
        return subprocess.run(["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60)

    def test_systemd_takes_the_unit(self):
        result = self.analyze("verify", "--man=no", self.installed())
        about_it = [line for line in (result.stdout + result.stderr).splitlines() if "ampd" in line]
        self.assertEqual((result.returncode, about_it), (0, []), result.stdout + result.stderr)

    def test_verify_finds_what_is_wrong(self):
        path = self.installed()
        with open(path, "a") as file:
            file.write("[Service]\nKillMod=process\n")
        self.assertIn("KillMod", self.analyze("verify", "--man=no", path).stderr)

    def test_it_is_hardened(self):
        result = self.analyze("security", "--offline=true", "--no-pager", self.installed())
        if "unrecognized option" in result.stderr:
            self.skipTest("this systemd-analyze has no offline review")
        match = re.search(r"Overall exposure level for ampd.service: ([\d.]+)", result.stdout)
        self.assertIsNotNone(match, result.stdout + result.stderr)
        self.assertLess(float(match[1]), WORST_EXPOSURE, result.stdout)

    def test_gpus_and_run_time_compilers_are_left_alone(self):
        # Each of these would hide /dev/nvidia*, or forbid the kernels that oneDNN and CUDA compile.
        for name in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"):
            self.assertNotIn(name, self.service)

    def test_times_fit_the_drain(self):
        config = example_config()
        self.assertGreaterEqual(seconds(self.service["TimeoutStopSec"]), config["drain_timeout_seconds"] + 10)
        self.assertEqual(self.service["KillMode"], "process")
        self.assertEqual(self.service["OOMPolicy"], "continue")
        self.assertEqual(config["state_dir"], f"/var/lib/{self.service['StateDirectory']}")

    def test_nothing_is_deleted_until_somebody_says_so(self):
        self.assertNotIn("retention", example_config())
        # What is suggested is configuration, once its marks are gone.
        with open(os.path.join(FOLDER, "ampd.yaml")) as file:
            suggested = yaml.safe_load(re.search(r"^# retention:\n(#   .*\n)+", file.read(), re.M)[0].replace("# ", ""))
        ampd = self.daemon(config=suggested)
        self.assertEqual(ampd.http("/healthz")[0], 200)

    def test_the_secured_server_of_the_guide_can_write_its_token(self):
        page = os.path.join(ampd_process.SOURCE, "docs/security.md")
        (block,) = [block for block in fenced_blocks(page) if block.text.startswith("# ampd.yaml")]
        folder = os.path.dirname(yaml.safe_load(block.text)["auth"]["init_admin_token"])
        self.assertEqual(unit()["Service"]["ProtectSystem"], "strict")
        self.assertEqual(folder, "/var/lib/" + unit()["Service"]["StateDirectory"])

    def test_its_documentation_is_installed(self):
        """Where the unit says that it is, of an installation beneath /usr/local."""
        (place,) = re.findall("^file:///usr/local/(.*)$", unit()["Unit"]["Documentation"], re.M)
        build = os.path.dirname(os.path.realpath(ampd_process.BIN))
        root = tempfile.mkdtemp(dir=self.folder)
        subprocess.run(["cmake", "--install", build, "--prefix", root, "--component", "documentation"], check=True, capture_output=True)
        self.assertTrue(os.path.isfile(os.path.join(root, place)), place)

    def test_users_are_made(self):
        if shutil.which("systemd-sysusers") is None:
            self.skipTest("systemd-sysusers is not installed")
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "etc"))
            result = subprocess.run(["systemd-sysusers", f"--root={root}", os.path.join(FOLDER, "ampd.sysusers")],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(os.path.join(root, "etc/passwd")) as file:
                users = {line.split(":")[0]: line.strip().split(":") for line in file}
        self.assertEqual(users[self.service["User"]][5], "/var/lib/ampd")


class InstalledDaemon(Daemon):
    """A daemon started by the unit's own command line, in place of systemd; paths of the system are beneath `folder`."""

    def __init__(self, notify_address, wrapper=(), **changes):
        super().__init__()
        self.wrapper = list(wrapper)
        self.notices = Notices(notify_address)
        self.notify_address = notify_address
        self.changes = changes

    def spawn(self):
        config = example_config()
        data = os.path.join(self.folder, "srv")
        os.makedirs(data, exist_ok=True)
        config.update(state_dir=self.state_dir, data_roots=[data], listen=self.grpc_address, http=self.http_address,
                      spot_notice_file=os.path.join(self.folder, "notice"), nvml_library="", **self.changes)
        path = os.path.join(self.folder, "ampd.yaml")
        with open(path, "w") as file:
            yaml.safe_dump(config, file)
        words = shlex.split(unit()["Service"]["ExecStart"])
        command = [program("ampd") if word == "/usr/local/bin/ampd" else path if word == "/etc/ampd/ampd.yaml" else word
                   for word in words]
        assert path in command and program("ampd") in command, words
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen(self.wrapper + command, stdout=subprocess.PIPE, stderr=log, cwd=self.folder,
                                            env=dict(os.environ, NOTIFY_SOCKET=self.notify_address))

    def traced(self):
        """The daemon's own process, where a wrapper started it; 0: it is gone."""
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
                return int(file.read().split()[0])
        return 0

    def close(self):
        self.notices.close()
        if self.wrapper and self.process.poll() is None and self.traced():
            os.kill(self.traced(), signal.SIGKILL)
        super().close()


class ServiceTest(DaemonTest):
    def service(self, address=None, **changes):
        daemon = InstalledDaemon(address or os.path.join(self.folder, "notify"), **changes)
        self.daemons.append(daemon)
        return daemon.start()

    def test_it_tells_when_it_serves_and_drains_on_stop(self):
        ampd = self.service()
        ready = ampd.notices.next("the notice of readiness")
        self.assertEqual(ready["READY"], "1")
        self.assertIn(ampd.grpc_address, ready["STATUS"])
        job = ampd.submit(glyphs_job(steps=100000))
        ampd.wait_for_step(job.id, 3)
        # As KillMode=process: the daemon alone.
        ampd.process.send_signal(signal.SIGTERM)
        stopping = ampd.notices.next("the notice of the stop")
        self.assertEqual(stopping["STOPPING"], "1")
        # Its own time for the drain, whatever TimeoutStopSec says.
        self.assertGreater(int(stopping["EXTEND_TIMEOUT_USEC"]), example_config()["drain_timeout_seconds"] * 1_000_000)
        self.assertEqual(ampd.process.wait(timeout=ampd_process.DEADLINE), 0)
        self.assertEqual(ampd.worker_pids(), [])
        ampd._disconnect()
        ampd.process.stdout.close()
        ampd.start()
        self.assertEqual(ampd.notices.next("the second readiness")["READY"], "1")
        ampd.wait_for_step(job.id, 4)

    def test_workers_outlive_a_crash_and_are_taken_up(self):
        ampd = self.service("@" + os.path.join(self.folder, "abstract"))
        self.assertEqual(ampd.notices.next("the notice of readiness")["READY"], "1")
        job = ampd.submit(glyphs_job(steps=100000))
        ampd.wait_for_step(job.id, 3)
        workers = ampd.worker_pids()
        ampd.kill()
        ampd.start()
        eventually(lambda: ampd_process.state_name(ampd.get(job.id).state) == "RUNNING", "the job's return")
        self.assertEqual(ampd.worker_pids(), workers)
        self.assertEqual(ampd.get(job.id).attempt, 1)

    def test_a_jobs_system_calls_are_those_that_the_unit_allows(self):
        if shutil.which("strace") is None or shutil.which("systemd-analyze") is None:
            self.skipTest("strace or systemd-analyze is not installed")
        if subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True).returncode != 0:
            self.skipTest("processes may not be traced here")
        calls = os.path.join(self.folder, "calls")
        ampd = InstalledDaemon(os.path.join(self.folder, "notify"), wrapper=["strace", "-f", "-qq", "-c", "-S", "name", "-o", calls])
        self.daemons.append(ampd)
        ampd.start()
        job = ampd.run(glyphs_job(steps=5, every_steps=2, mode="FP16"))
        self.assert_state(job, "SUCCEEDED")
        exported = ampd.ctl("download", job.id, os.path.join(self.folder, "model.onnx"), "--form", "onnx")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        os.kill(ampd.traced(), signal.SIGTERM)
        self.assertEqual(ampd.process.wait(timeout=ampd_process.DEADLINE), 0)
        with open(calls) as file:
            used = {line.split()[-1] for line in file if re.match(r"\s+\d", line)} - {"total"}
        self.assertIn("epoll_wait", used)
        # Of root, which the unit is not: SQLite gives files to their owner, and planners give up capabilities.
        self.assertEqual(used - allowed_calls() - {"fchown", "capset"}, set())

    def test_a_service_manager_that_is_gone_changes_nothing(self):
        ampd = self.service()
        ampd.notices.next("the notice of readiness")
        os.unlink(ampd.notify_address)
        self.assertEqual(ampd.terminate(), 0)
        self.assertIn("NOTIFY_SOCKET", ampd.log())


if __name__ == "__main__":
    ampd_process.main()
