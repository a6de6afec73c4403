"""Alert rules and dashboards (deploy/): promtool's tests of the rules, and every dashboard query answered by a real Prometheus
that scrapes a real daemon at work, as deploy/prometheus/prometheus.yaml tells it to."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

import yaml

import ampd_process
from ampd_process import DaemonTest, eventually, free_port, glyphs_job, program
from gpus_test import DRIVER, H200

DEPLOY = os.path.join(ampd_process.SOURCE, "deploy")
PROMETHEUS = os.path.join(DEPLOY, "prometheus")
RULES = os.path.join(PROMETHEUS, "alerts.yaml")
# The worker pretends nothing: the GPU is the driver's word alone, and the jobs run on the CPU.
SCRIPT = DRIVER + H200 + "xid 1 79\n"


def processor():
    with open("/proc/cpuinfo") as file:
        return re.search(r"model name\s*: (.*)", file.read())[1]


def dashboards():
    """(name, dashboard) of each."""
    folder = os.path.join(DEPLOY, "grafana", "dashboards")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name)) as file:
            yield name, json.load(file)


def queries():
    """(dashboard, panel, expression, legend) of every target, with every job and GPU chosen."""
    for name, dashboard in dashboards():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield name, panel["title"], re.sub(r"\$(job_id|gpu)\b", ".+", target["expr"]), target["legendFormat"]


def variables():
    """{name: (metric, label)} of the dashboards' variables, whose choices are the label's values."""
    asked = [(one["name"], one["query"]["query"]) for _, dashboard in dashboards()
             for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return {name: re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for name, query in asked}


def legend(form, labels):
    """As Grafana writes it; a label that is missing is a KeyError."""
    return re.sub(r"{{(\w+)}}", lambda match: labels[match[1]], form)


class RulesTest(unittest.TestCase):
    def setUp(self):
        if shutil.which("promtool") is None:
            self.skipTest("promtool is not installed (Debian: prometheus)")

    def promtool(self, *arguments):
        result = subprocess.run(["promtool", *arguments], text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_rules_fire_when_they_should(self):
        self.promtool("test", "rules", os.path.join(DEPLOY, "prometheus", "alerts_test.yaml"))

    def test_the_first_overflow_of_a_kind_is_seen(self):
        (query,) = [expression for _, panel, expression, _ in queries() if panel == "Overflows by stage and kind"]
        labels = '{job="ampd", instance="a", job_id="j1", phase="main", stage="%s", kind="inf"}'

        def seen(minute, **stages):
            samples = [{"labels": '{job_id="j1", stage="%s", kind="inf"}' % stage, "value": value} for stage, value in stages.items()]
            return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}

        values = {"gradient": "_ _ 1 1 3x20", "forward": "7x30"}
        series = [{"series": "ampd_job_overflows_total" + labels % stage, "values": text} for stage, text in values.items()]
        tests = [seen(2, gradient=1, forward=7), seen(4, gradient=3, forward=7), seen(6, gradient=3, forward=0), seen(12, gradient=0, forward=0)]
        path = os.path.join(tempfile.mkdtemp(), "test.yaml")
        self.addCleanup(shutil.rmtree, os.path.dirname(path))
        with open(path, "w") as file:
            yaml.safe_dump({"evaluation_interval": "1m", "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}, file)
        self.promtool("test", "rules", path)

    def test_rates_have_points_at_any_usual_scrape_interval(self):
        """A rate needs two scrapes: with one a minute, and one of them missed, the window is longer than two."""
        minutes = {"m": 1, "h": 60, "d": 1440}
        windows = [(panel, int(number) * minutes[unit]) for _, panel, expression, _ in queries()
                   for number, unit in re.findall(r"rate\([^][]*\[(\d+)([mhd])\]", expression)]
        self.assertGreater(len(windows), 10)
        self.assertEqual([panel for panel, window in windows if window < 3], [])

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
        """With the configuration that is shipped, but for the address."""
        folder = os.path.join(self.folder, "prometheus")
        shutil.copytree(PROMETHEUS, folder)
        config = os.path.join(folder, "prometheus.yaml")
        with open(config) as file:
            shipped = yaml.safe_load(file)
        (scrape,) = shipped["scrape_configs"]
        scrape["static_configs"] = [{"targets": [ampd.http_address]}]
        with open(config, "w") as file:
            yaml.safe_dump(shipped, file)
        self.prometheus = f"127.0.0.1:{free_port()}"
        log = open(os.path.join(self.folder, "prometheus.log"), "w")
        self.addCleanup(log.close)
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address={self.prometheus}",
                                    f"--storage.tsdb.path={self.folder}/tsdb"], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.send_signal, signal.SIGKILL)

    def ask(self, path, **parameters):
        """The data that Prometheus answers with; none while it does not answer."""
        url = f"http://{self.prometheus}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error
            return None

    def query(self, expression):
        """The series that an instant query gives."""
        return (self.ask("query", query=expression) or {"result": []})["result"]

    def start_jobs(self, ampd):
        """{what it is: id}: one that has ended, three that run side by side, one that waits."""
        done = ampd.run(glyphs_job("done", steps=20, every_steps=5)).id
        # Its first scale overflows: steps are skipped until it fits, far above the floor.
        overflows = {"mode": "FP16", "loss_scale": {"kind": "DYNAMIC", "init": 2.0 ** 28}}
        floor = {"mode": "FP16", "loss_scale": {"kind": "DYNAMIC", "init": 4, "min": 2, "growth_interval": 10 ** 6}}
        jobs = {"done": done}
        for name, precision in [("fp16", overflows), ("bf16", {"mode": "BF16"}), ("floor", floor)]:
            jobs[name] = ampd.submit(glyphs_job(name, steps=1000000, every_steps=200, precision=precision,
                                                train={"epochs": 100000, "batch_size": 32})).id
        jobs["waits"] = ampd.submit(glyphs_job("waits")).id
        for name in ("fp16", "bf16", "floor"):
            ampd.wait_for_step(jobs[name], 20)
        watch = ampd.watch(jobs["fp16"])
        self.addCleanup(watch.cancel)
        return jobs

    def test_dashboards_and_rules_on_a_daemon_at_work(self):
        path = os.path.join(self.folder, "gpus")
        with open(path, "w") as file:
            file.write(SCRIPT)
        cpu = {"name": "this", "kind": "CPU", "words": re.split(r"[ -]+", processor()), "fp32_flops": 1e12, "fp16_flops": 1e12}
        ampd = self.daemon(config={"nvml_library": program("libfake_nvml.so"), "device_models": [cpu]},
                           environment={"FAKE_NVML_SCRIPT": path}, cpu_devices=3)
        self.start_prometheus(ampd)
        jobs = self.start_jobs(ampd)
        self.check_queries()
        self.check_variables(jobs)
        self.check_jobs_are_told_apart(jobs)
        self.check_rules(jobs)

    def check_queries(self):
        """Each has data, and each series of it a legend of its own."""
        for dashboard, panel, expression, form in queries():
            with self.subTest(f"{dashboard}: {panel}: {expression}"):
                series = eventually(lambda: self.query(expression), f"data of {expression}", seconds=60)
                legends = [legend(form, one["metric"]) for one in series]
                self.assertEqual(len(set(legends)), len(legends), legends)

    def check_variables(self, jobs):
        choices = {name: self.ask(f"label/{label}/values", **{"match[]": metric}) for name, (metric, label) in variables().items()}
        self.assertEqual(set(choices), {"job_id", "gpu"})
        self.assertEqual(set(choices["job_id"]), {id for name, id in jobs.items() if name != "waits"})
        self.assertRegex(choices["gpu"][0], "^GPU-")

    def check_jobs_are_told_apart(self, jobs):
        by_job = {one["metric"]["job_id"]: float(one["value"][1]) for one in self.query("sum by (job_id) (ampd_job_loss_scale)")}
        self.assertEqual((by_job[jobs["bf16"]], by_job[jobs["floor"]]), (1, 4))
        self.assertGreater(by_job[jobs["fp16"]], 4)
        # The target's own labels are the target's, on every series.
        self.assertEqual({one["metric"]["job"] for one in self.query('{__name__=~"ampd_.+"}')}, {"ampd"})
        self.assertEqual([one["value"][1] for one in self.query('up{job="ampd"}')], ["1"])

    def check_rules(self, jobs):
        rules = eventually(self.rules, "the rules' evaluation while all three run")
        self.assertEqual({rule["health"] for rule in rules}, {"ok"}, rules)
        alerts = {rule["name"]: rule["alerts"] for rule in rules if rule["alerts"]}
        # How long jobs wait for their input, and how many steps it has taken when skips are looked at, is this machine's matter.
        of_machine = ("AmpdWaitsForInput", "AmpdSkipsManySteps")
        of_jobs = {(name, alert["labels"]["job_id"]) for name, active in alerts.items() for alert in active
                   if "job_id" in alert["labels"] and name not in of_machine}
        self.assertEqual(of_jobs, {("AmpdScaleNearFloor", jobs["floor"])})
        (alert,) = alerts["AmpdScaleNearFloor"]
        self.assertEqual(alert["annotations"]["summary"], f"The loss scale of job {jobs['floor']} is down to 4")
        # The first of its number: a series that began with it.
        self.assertEqual([alert["labels"]["xid"] for alert in alerts["AmpdHardwareXid"]], ["79"])

    def rules(self):
        """All, once each was evaluated on what all the jobs say."""
        groups = (self.ask("rules") or {"groups": []})["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        seen = any(rule["name"] == "AmpdScaleNearFloor" and rule["alerts"] for rule in rules)
        return rules if seen and all(rule["health"] != "unknown" for rule in rules) else []


if __name__ == "__main__":
    ampd_process.main()
