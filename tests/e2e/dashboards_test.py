"""Alert rules and dashboards (deploy/): promtool's tests of the rules, and every dashboard query answered by a real Prometheus
that scrapes a real daemon at work."""

import json
import os
import re
import shutil
import signal
import subprocess
import unittest
import urllib.parse
import urllib.request

import ampd_process
from ampd_process import DaemonTest, eventually, free_port, glyphs_job, program
from gpus_test import DRIVER, H200

DEPLOY = os.path.join(ampd_process.SOURCE, "deploy")
RULES = os.path.join(DEPLOY, "prometheus", "alerts.yaml")
# The worker pretends nothing: the GPU is the driver's word alone, and the jobs run on the CPU.
SCRIPT = DRIVER + H200 + "xid 1 79\n"


def processor():
    with open("/proc/cpuinfo") as file:
        return re.search(r"model name\s*: (.*)", file.read())[1]


def queries():
    """(dashboard, panel, expression) of every target, with every job and GPU chosen."""
    folder = os.path.join(DEPLOY, "grafana", "dashboards")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            dashboard = json.load(file)
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield name, panel["title"], re.sub(r"\$(job_id|gpu)\b", ".+", target["expr"])


class RulesTest(unittest.TestCase):
    def setUp(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus)")

    def promtool(self, *arguments):
        result = subprocess.run(["promtool", *arguments], text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_rules_fire_when_they_should(self):
        self.promtool("test", "rules", os.path.join(DEPLOY, "prometheus", "alerts_test.yaml"))

    def test_every_rule_has_a_test(self):
        with open(RULES) as file:
            alerts = set(re.findall(r"- alert: (\w+)", file.read()))
        with open(os.path.join(DEPLOY, "prometheus", "alerts_test.yaml")) as file:
            fired = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts", file.read()))
        self.assertEqual(alerts - fired, set())

    def test_the_configuration_is_one(self):
        self.promtool("check", "config", "--syntax-only", os.path.join(DEPLOY, "prometheus", "prometheus.yaml"))


class DashboardsTest(DaemonTest):
    def setUp(self):
        super().setUp()
        if shutil.which("prometheus") is None:
            self.skipTest("prometheus is not installed (Debian: prometheus)")

    def start_prometheus(self, ampd):
        config = os.path.join(self.folder, "prometheus.yaml")
        with open(config, "w") as file:
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [RULES],
                       "scrape_configs": [{"job_name": "ampd", "static_configs": [{"targets": [ampd.http_address]}]}]}, file)
        self.prometheus = f"127.0.0.1:{free_port()}"
        log = open(os.path.join(self.folder, "prometheus.log"), "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address={self.prometheus}",
                                    f"--storage.tsdb.path={self.folder}/tsdb"], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.send_signal, signal.SIGKILL)

    def query(self, expression):
        """The series that an instant query gives; none while Prometheus does not answer."""
        url = f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                answer = json.load(response)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise AssertionError(f"{expression}: {error.read().decode()}") from error
            return []
        return answer["data"]["result"]

    def test_every_query_returns_data(self):
        path = os.path.join(self.folder, "gpus")
        with open(path, "w") as file:
            file.write(SCRIPT)
        cpu = {"name": "this", "kind": "CPU", "words": re.split(r"[ -]+", processor()), "fp32_flops": 1e12, "fp16_flops": 1e12}
        ampd = self.daemon(config={"nvml_library": program("libfake_nvml.so"), "device_models": [cpu]},
                           environment={"FAKE_NVML_SCRIPT": path}, cpu_devices=1)
        self.start_prometheus(ampd)
        ampd.run(glyphs_job("first", steps=20, every_steps=5))
        # Its first scale overflows: steps are skipped until it fits.
        scale = {"kind": "DYNAMIC", "init": 2.0 ** 40}
        running = ampd.submit(glyphs_job("second", steps=1000000, mode="FP16", every_steps=200,
                                         precision={"mode": "FP16", "loss_scale": scale},
                                         train={"epochs": 100000, "batch_size": 32})).id
        ampd.submit(glyphs_job("third"))
        ampd.wait_for_step(running, 20)
        watch = ampd.watch(running)
        self.addCleanup(watch.cancel)
        for dashboard, panel, expression in queries():
            with self.subTest(f"{dashboard}: {panel}: {expression}"):
                eventually(lambda: self.query(expression), f"data of {expression}", seconds=60)
        rules = eventually(self.rule_states, "the rules' first evaluation")
        self.assertEqual({state for _, state in rules}, {"ok"}, rules)

    def rule_states(self):
        with urllib.request.urlopen(f"http://{self.prometheus}/api/v1/rules", timeout=30) as response:
            groups = json.load(response)["data"]["groups"]
        rules = [(rule["name"], rule["health"]) for group in groups for rule in group["rules"]]
        return [] if any(state == "unknown" for _, state in rules) else rules


if __name__ == "__main__":
    ampd_process.main()
