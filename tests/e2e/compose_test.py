"""deploy/compose.yaml and the Dockerfile, read as Docker would: what they mount is there, what they start starts, and what they name
agrees. Where Docker Compose is installed it reads the file as well."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

import ampd_process
from ampd_process import Daemon, DaemonTest, glyphs_job, program

DEPLOY = os.path.join(ampd_process.SOURCE, "deploy")
COMPOSE = os.path.join(DEPLOY, "compose.yaml")
# What the process needs after a drain to be gone.
AFTER_THE_DRAIN = 15


def interpolated(text, environment):
    """${NAME:-default} as Compose replaces it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], text)


def compose(**environment):
    with open(COMPOSE) as file:
        return yaml.safe_load(interpolated(file.read(), environment))


def config_of(service):
    """(the file of this machine, in whose place it is in the container) of the daemon's configuration."""
    (mounted,) = [volume for volume in service["volumes"] if isinstance(volume, dict) and volume["target"].startswith("/etc/")]
    return os.path.join(DEPLOY, mounted["source"]), mounted["target"]


def is_ignored(path):
    """Whether .dockerignore, which has no exceptions, keeps a path of the checkout from the build."""
    with open(os.path.join(ampd_process.SOURCE, ".dockerignore")) as file:
        patterns = [line for line in file.read().split("\n") if line and not line.startswith("#")]
    parts = path.split("/")
    above = ["/".join(parts[:count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns for one in above)


def stages():
    """{target: {"from": base, "env": {...}, instruction: argument of the last one}}, with what a stage has from its base."""
    with open(os.path.join(ampd_process.SOURCE, "Dockerfile")) as file:
        text = re.sub(r"^#.*\n", "", file.read(), flags=re.M).replace("\\\n", " ")
    # Arguments before the first stage belong to none.
    found, stage = {}, {"env": {}}
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            inherited = found.get(base, {"env": {}})
            stage = {**inherited, "env": dict(inherited["env"]), "from": base}
            found[name] = stage
        elif word == "ENV":
            stage["env"].update(re.findall(r"(\w+)=(\S+)", rest))
        elif word:
            stage[word] = rest.strip()
    return found


def seconds(text):
    return float(re.fullmatch(r"(\d+)s", text)[1])


def port(address):
    return int(address.rpartition(":")[2])


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.file = compose()
        self.services = self.file["services"]
        self.ampds = {name: service for name, service in self.services.items() if name.startswith("ampd-")}

    def test_both_profiles_are_whole(self):
        for profile in ("cpu", "gpu"):
            names = {name for name, service in self.services.items() if profile in service["profiles"]}
            self.assertEqual(names, {f"ampd-{profile}", "prometheus", "grafana", "tensorboard"})

    def test_nothing_runs_as_root_or_writes_to_its_image(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertTrue(service["read_only"])
                self.assertNotIn(service["user"].split(":")[0], ("0", "root"))
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertNotIn("privileged", service)

    def test_everything_is_looked_after(self):
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertEqual(service["healthcheck"]["test"][0], "CMD")
                # A drain ends with 0 and holds; what nobody drains comes back with Docker.
                self.assertEqual(service["restart"], "on-failure" if name in self.ampds else "unless-stopped")

    def test_no_config_is_copied_into_what_is_read_only(self):
        # Compose copies content and environment into the container, whose file system it cannot write to; a file is mounted.
        for name, service in self.services.items():
            for source in service.get("configs", []) + service.get("secrets", []):
                source = source if isinstance(source, str) else source["source"]
                with self.subTest(f"{name}: {source}"):
                    of = {**self.file.get("configs", {}), **self.file.get("secrets", {})}[source]
                    self.assertTrue(not service["read_only"] or set(of) <= {"file", "external", "name"}, of)

    def test_data_and_settings_are_no_part_of_the_build(self):
        (data,) = {volume["source"] for service in self.ampds.values() for volume in service["volumes"]
                   if isinstance(volume, dict) and volume["target"] == "/data"}
        for path in (os.path.normpath(os.path.join("deploy", data, "photos/cat.jpg")), "deploy/.env", ".git/HEAD", "build/dev/bin/ampd"):
            self.assertTrue(is_ignored(path), path)
        with open(os.path.join(ampd_process.SOURCE, "Dockerfile")) as file:
            copied = re.findall(r"^COPY (?!--from)(\S+) ", file.read(), re.M)
        self.assertIn("deploy/packages.sh", copied)
        for path in copied:
            self.assertTrue(path == "." or not is_ignored(path), f"{path} is wanted")

    def test_ports_are_this_machines_alone(self):
        published = [one for service in self.services.values() for one in service["ports"]]
        for one in published:
            self.assertRegex(one, r"^127\.0\.0\.1:\d+:\d+$")
        for name, service in self.services.items():
            both = [one.split(":")[1:] for one in service["ports"]]
            self.assertTrue(all(outer == inner for outer, inner in both), f"{name}: {both}")

    def test_mounted_files_are_there(self):
        for name, service in self.services.items():
            for volume in service["volumes"]:
                if isinstance(volume, dict):
                    self.assertTrue(volume["read_only"])
                    is_there = os.path.isfile(os.path.join(DEPLOY, volume["source"]))
                    self.assertTrue(is_there or volume["bind"]["create_host_path"], volume)
                    continue
                source = volume.split(":")[0]
                with self.subTest(f"{name}: {volume}"):
                    if source.startswith("."):
                        self.assertTrue(os.path.exists(os.path.join(DEPLOY, source)))
                        self.assertTrue(volume.endswith(":ro"))
                    else:
                        self.assertIn(source, self.file["volumes"])

    def test_what_is_built_is_a_target(self):
        targets = stages()
        for name, service in self.services.items():
            if "build" not in service:
                # Images of others are pinned.
                self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$", name)
                continue
            self.assertEqual(os.path.realpath(os.path.join(DEPLOY, service["build"]["context"])), ampd_process.SOURCE)
            stage = targets[service["build"]["target"]]
            self.assertNotIn(stage["USER"], ("root", "0"))
            if name in self.ampds:
                self.assertEqual(stage["STOPSIGNAL"], service["stop_signal"])
                self.assertIn(stage["env"]["AMPD_STATE_DIR"], [volume.split(":")[1] for volume in service["volumes"][:1]])
                self.assertEqual(stage["env"]["AMPD_DATA_ROOTS"], service["volumes"][1]["target"])
                served = {port(stage["env"]["AMPD_LISTEN"]), port(stage["env"]["AMPD_HTTP"])}
                self.assertEqual(served, {port(one) for one in service["ports"]})
        self.assertEqual(self.services["tensorboard"]["user"], self.ampds["ampd-cpu"]["user"], "it reads the daemon's own files")

    def test_the_grace_exceeds_the_drain(self):
        for service in self.ampds.values():
            with open(config_of(service)[0]) as file:
                drain = yaml.safe_load(file)["drain_timeout_seconds"]
            self.assertGreaterEqual(seconds(service["stop_grace_period"]), drain + AFTER_THE_DRAIN)

    def test_a_configuration_of_ones_own_and_its_grace(self):
        file = compose(AMPD_CONFIG="/etc/ampd/mine.yaml", AMPD_STOP_GRACE="620s")
        for name in self.ampds:
            self.assertEqual(config_of(file["services"][name]), ("/etc/ampd/mine.yaml", "/etc/ampd/ampd.yaml"))
            self.assertEqual(file["services"][name]["stop_grace_period"], "620s")

    def test_the_unit_that_starts_it_with_the_machine(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed")
        with open(os.path.join(DEPLOY, "systemd/ampd-compose.service")) as file:
            unit = file.read()
        for command in re.findall(r"^Exec\w+=(.*)$", unit, re.M):
            words = command.split()
            self.assertEqual(os.path.join(ampd_process.SOURCE, words[words.index("-f") + 1]), COMPOSE)
        self.assertIn(re.search(r"^Environment=COMPOSE_PROFILES=(.*)$", unit, re.M).group(1), ("cpu", "gpu"))
        with tempfile.TemporaryDirectory() as folder:
            # Docker need not be on this machine.
            for name, text in [("ampd-compose.service", unit.replace("/usr/bin/docker", "/bin/true")),
                               ("docker.service", "[Service]\nExecStart=/bin/true\n")]:
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
            result = subprocess.run(["systemd-analyze", "--no-pager", "verify", "--man=no", os.path.join(folder, "ampd-compose.service")],
                                    capture_output=True, text=True, timeout=60, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"})
        about_it = [line for line in (result.stdout + result.stderr).splitlines() if "ampd" in line]
        self.assertEqual((result.returncode, about_it), (0, []), result.stdout + result.stderr)

    def test_only_gpus_of_the_toolkit_are_reserved(self):
        self.assertNotIn("deploy", self.services["ampd-cpu"])
        devices = self.services["ampd-gpu"]["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual(devices, [{"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility", "compute"]}])
        self.assertEqual(stages()["gpu"]["env"]["NVIDIA_DRIVER_CAPABILITIES"], "compute,utility")

    def test_names_agree_with_what_is_provisioned(self):
        with open(os.path.join(DEPLOY, "prometheus/prometheus.yaml")) as file:
            target = yaml.safe_load(file)["scrape_configs"][0]["static_configs"][0]["targets"][0]
        host, _, metrics_port = target.partition(":")
        for service in self.ampds.values():
            self.assertIn(host, service["networks"]["default"]["aliases"])
            self.assertIn(int(metrics_port), [port(one) for one in service["ports"]])
        with open(os.path.join(DEPLOY, "grafana/provisioning/datasources/ampd.yaml")) as file:
            url = yaml.safe_load(file)["datasources"][0]["url"]
        self.assertEqual(url, f"http://prometheus:{port(self.services['prometheus']['ports'][0])}")
        with open(os.path.join(DEPLOY, "grafana/provisioning/dashboards/ampd.yaml")) as file:
            folder = yaml.safe_load(file)["providers"][0]["options"]["path"]
        self.assertIn(f"./grafana/dashboards:{folder}:ro", self.services["grafana"]["volumes"])
        self.assertIn("--config.file=/etc/prometheus/prometheus.yaml", self.services["prometheus"]["command"])

    def test_prometheus_takes_what_is_mounted(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus)")
        with tempfile.TemporaryDirectory() as folder:
            for volume in self.services["prometheus"]["volumes"]:
                source, target = volume.split(":")[:2]
                if target.startswith("/etc/prometheus/"):
                    shutil.copy(os.path.join(DEPLOY, source), os.path.join(folder, os.path.basename(target)))
            result = subprocess.run(["promtool", "check", "config", os.path.join(folder, "prometheus.yaml")], capture_output=True,
                                    text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("SUCCESS", result.stdout)

    def test_docker_compose_takes_it(self):
        if shutil.which("docker") is None or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
            self.skipTest("Docker Compose is not installed")
        for profile in ("cpu", "gpu"):
            result = subprocess.run(["docker", "compose", "-f", COMPOSE, "--profile", profile, "config", "--format", "json"],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"ampd-{profile}", json.loads(result.stdout)["services"])


class ContainerDaemon(Daemon):
    """A daemon started as the container starts it: the image's entry point and variables, the command of compose.yaml."""

    def __init__(self, name):
        super().__init__()
        file = compose()
        self.service = file["services"][name]
        self.image = stages()[self.service["build"]["target"]]

    def spawn(self):
        config, mounted_at = config_of(self.service)
        assert json.loads(self.image["ENTRYPOINT"]) == ["ampd"], self.image
        command = [program("ampd"), *[config if word == mounted_at else word for word in self.service["command"]]]
        assert config in command, command
        data = os.path.join(self.folder, "data")
        os.makedirs(data, exist_ok=True)
        ours = {"AMPD_LISTEN": self.grpc_address, "AMPD_HTTP": self.http_address, "AMPD_STATE_DIR": self.state_dir,
                "AMPD_DATA_ROOTS": data}
        # Every variable of the image is one that the daemon knows; here with addresses and folders of this test.
        known = subprocess.run([program("ampd"), "--help"], capture_output=True, text=True, check=True).stdout
        environment = {**self.image["env"], **self.service["environment"], **ours}
        for name in environment:
            assert name in known or name.startswith("NVIDIA_"), f"{name} is no variable of ampd"
        with open(self.log_path, "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=self.folder,
                                            env={**os.environ, **environment, "AMPD_NVML_LIBRARY": ""})


class ContainerTest(DaemonTest):
    def health_check(self, daemon):
        """The command that compose.yaml gives, which is the image's, asking this daemon."""
        test = daemon.service["healthcheck"]["test"]
        self.assertEqual(test[0], "CMD")
        self.assertIn(f"CMD {json.dumps(test[1:])}", daemon.image["HEALTHCHECK"])
        there = "/dev/tcp/127.0.0.1/7071"
        self.assertIn(there, test[-1])
        return [word.replace(there, "/dev/tcp/" + daemon.http_address.replace(":", "/")) for word in test[1:]]

    def test_the_commands_start_a_daemon_that_drains_in_time(self):
        for name in ("ampd-cpu", "ampd-gpu"):
            with self.subTest(name):
                daemon = ContainerDaemon(name)
                self.daemons.append(daemon)
                daemon.start()
                check = self.health_check(daemon)
                self.assertEqual(subprocess.run(check).returncode, 0)
                with open(daemon.log_path) as log:
                    self.assertEqual([line for line in log if json.loads(line)["severity"] == "ERROR"], [])
                job = daemon.submit(glyphs_job(steps=100000))
                daemon.wait_for_step(job.id, 2)
                # Docker's stop_signal, and no more than its grace.
                code = daemon.terminate(seconds=seconds(daemon.service["stop_grace_period"]))
                self.assertEqual(code, 0)
                self.assertEqual(daemon.worker_pids(), [])
                self.assertNotEqual(subprocess.run(check, stderr=subprocess.DEVNULL).returncode, 0, "nobody is there")


if __name__ == "__main__":
    ampd_process.main()
