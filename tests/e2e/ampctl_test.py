"""ampctl against a real daemon: every verb, every output, every exit code."""

import concurrent.futures
import json
import os
import pty
import re
import signal
import subprocess
import time

import grpc

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job


class AmpctlTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()

    def ctl(self, code, *arguments, **options):
        result = self.ampd.ctl(*arguments, **options)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result

    def submitted(self, spec):
        return self.ctl(0, "submit", self.job_file(spec), "-q").stdout.strip()

    def test_submit_and_watch_in_one(self):
        result = self.ctl(0, "submit", self.job_file(glyphs_job(steps=30, mode="FP16")), "--watch")
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], "^submitted [0-9a-z]{26} glyphs QUEUED")
        self.assertRegex(lines[-1], r"^SUCCEEDED accuracy=0?\.?\d+ applied=\d+ skipped=\d+$")
        self.assertTrue(any("evaluation" in line for line in lines))

    def test_a_terminal_has_one_live_line(self):
        controller, terminal = pty.openpty()
        watch = subprocess.Popen(
            [ampd_process.program("ampctl"), "submit", self.job_file(glyphs_job(steps=60)), "--watch"],
            stdout=terminal, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=self.ampd.ctl_environment())
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
        os.close(controller)
        self.assertEqual(watch.wait(timeout=60), 0)
        text = shown.decode()
        self.assertIn("\r\x1b[K", text)
        self.assertIn("60/60", text)
        self.assertRegex(text.strip().splitlines()[-1], "SUCCEEDED accuracy=")

    def test_jsonl_is_the_events(self):
        job_id = self.submitted(glyphs_job(steps=10))
        lines = self.ctl(0, "watch", job_id, "-o", "jsonl").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        self.assertEqual([int(e["sequence"]) for e in events], list(range(1, len(events) + 1)))
        after = self.ctl(0, "watch", job_id, "-o", "jsonl", "--after", "5").stdout.splitlines()
        self.assertEqual(after, lines[5:])

    def test_get_and_list_and_devices(self):
        job_id = self.submitted(glyphs_job("named so", steps=5))
        self.ctl(0, "wait", job_id, "--timeout", "100")
        job = json.loads(self.ctl(0, "get", job_id, "-o", "json").stdout)
        self.assertEqual((job["id"], job["state"], job["spec"]["name"]), (job_id, "SUCCEEDED", "named so"))
        # A unique prefix will do, and the YAML can be submitted again.
        again = self.job_file(self.ctl(0, "get", job_id[:20], "-o", "yaml").stdout, "again.yaml")
        self.ctl(0, "submit", again, "--dry-run")
        # The resolved spec has every default: what is set goes in its place.
        train = self.ctl(0, "submit", again, "--set", "train.eval_every_steps=2", "--dry-run", "-o", "json").stdout
        self.assertNotIn("eval_every_epochs", json.loads(train)["spec"]["train"])
        both = self.ctl(2, "submit", again, "--set", "train.eval_every_steps=2", "--set", "train.eval_every_epochs=1").stderr
        self.assertIn("--set train.eval_every_steps=2: train.eval_every_steps: goes instead of", both)
        self.assertIn(job_id, self.ctl(0, "list").stdout)
        self.assertIn("named so", self.ctl(0, "list", "--state", "succeeded").stdout)
        self.assertNotIn(job_id, self.ctl(0, "list", "--state", "failed").stdout)
        self.assertIn("cpu-0", self.ctl(0, "devices").stdout)
        self.assertIn("speaks ampd.v1", self.ctl(0, "version").stdout)

    def test_list_finds_jobs(self):
        far = "2099-01-01T00:00:00Z"
        ids = {}
        for name, team, priority in (("red", "a", 1), ("green", "b", 3), ("greenish", "b", 2)):
            spec = glyphs_job(name, steps=2, labels={"team": team}, not_before=far)
            spec["resources"]["priority"] = priority
            ids[name] = self.submitted(spec)

        def found(*arguments):
            lines = self.ctl(0, "list", "-o", "jsonl", *arguments).stdout.splitlines()
            return [json.loads(line)["spec"]["name"] for line in lines]

        own = ("--since", "1h", "--filter", 'create_time >= "2000-01-01T00:00:00Z" AND state = QUEUED')
        self.assertEqual(found(*own, "--label", "team=b"), ["greenish", "green"])
        self.assertEqual(found(*own, "--sort", "priority desc"), ["green", "greenish", "red"])
        self.assertEqual(found("--filter", "state = QUEUED AND (name = red OR NOT (name:ish OR priority < 3))", "--sort", "name"),
                         ["green", "red"])
        self.assertEqual(found(*own, "--user", "nobody"), [])
        self.assertEqual(found("--state", "queued", "--filter", "labels.team:*", "--limit", "1"), ["greenish"])
        refused = self.ctl(2, "list", "--filter", "colour = red")
        self.assertIn("filter: at byte 0: no field", refused.stderr)
        self.assertIn("--sort", self.ctl(0, "list", "--help").stdout)
        for job_id in ids.values():
            self.ctl(0, "cancel", job_id)

    def test_a_prefix_that_several_jobs_have_names_them(self):
        far = "2099-01-01T00:00:00Z"
        ids = [self.submitted(glyphs_job(f"n{i}", steps=2, not_before=far)) for i in range(7)]
        for verb in (["get"], ["cancel"], ["watch"], ["logs"], ["wait"], ["why"], ["update", "--priority", "3"], ["checkpoints"]):
            # They were submitted within the 12 days that four characters tell apart.
            error = self.ctl(2, *verb, ids[0][:4]).stderr
            self.assertIn(f"several jobs begin with {ids[0][:4]}: {ids[6]} (n6, QUEUED), {ids[5]} (n5, QUEUED), ", error)
            self.assertIn(f"{ids[2]} (n2, QUEUED) and older ones; give more of the id", error)
            self.assertNotIn(ids[1], error)
        self.ctl(0, "cancel", *ids)

    def test_logs_are_what_the_job_says(self):
        job_id = self.submitted(glyphs_job(steps=60, every_steps=20))
        # Begun while it is queued or runs, ended with it.
        followed = self.ctl(0, "logs", job_id[:24], "-f").stdout.splitlines()
        whole = self.ctl(0, "logs", job_id).stdout.splitlines()
        self.assertEqual(followed, whole)
        self.assertRegex(whole[0], r"^\d\d:\d\d:\d\d  QUEUED")
        self.assertTrue(any("checkpoint step-000000020" in line for line in whole))
        self.assertFalse(any("loss" in line for line in whole))
        self.assertIn("SUCCEEDED", whole[-1])
        self.assertEqual(self.ctl(0, "logs", job_id, "--tail", "2").stdout.splitlines(), whole[-2:])
        self.assertEqual(self.ctl(0, "logs", job_id, "--since", "2099-01-01T00:00:00Z").stdout, "")

    def test_set_changes_the_job(self):
        path = self.job_file(glyphs_job(steps=5))
        result = self.ctl(0, "submit", path, "--set", "precision.mode=BF16", "--set", "train.steps=2", "--dry-run", "-o",
                          "json")
        spec = json.loads(result.stdout)["spec"]
        self.assertEqual((spec["precision"]["mode"], int(spec["train"]["steps"])), ("BF16", 2))
        self.assertIn("--set train.steps=0", self.ctl(2, "submit", path, "--set", "train.steps=0").stderr)

    def test_download_brings_the_checkpoint(self):
        job_id = self.submitted(glyphs_job(steps=5))
        self.ctl(0, "wait", job_id, "--timeout", "100")
        folder = os.path.join(self.folder, "checkpoint")
        self.ctl(0, "download", job_id, folder)
        files = sorted(os.listdir(folder))
        self.assertEqual(files, ["MANIFEST", "model.safetensors", "optimizer.safetensors", "state.json"])
        # Nothing is overwritten.
        self.assertNotEqual(self.ampd.ctl("download", job_id, folder).returncode, 0)

    def test_exit_1_when_the_job_fails(self):
        spec = glyphs_job(steps=5)
        spec["optimizer"] = {"sgd": {"learning_rate": 1e30}}
        spec["limits"] = {"max_run_seconds": 60}
        spec["data"]["train"] = {"glyphs": {"samples": 64}}
        spec["train"] = {"steps": 2000, "batch_size": 32}
        result = self.ctl(1, "submit", self.job_file(spec), "--watch")
        self.assertRegex(result.stdout.splitlines()[-1], "^FAILED DIVERGED")

    def test_exit_2_for_bad_usage_and_bad_specs(self):
        self.ctl(2, "submit")
        self.ctl(2, "no-such-verb")
        self.ctl(2, "submit", os.path.join(self.folder, "absent.yaml"))
        self.ctl(2, "get", "01hzzzzzzzzzzzzzzzzzzzzzzz")
        self.ctl(2, "submit", self.job_file(glyphs_job(batch_size=0)))

    def test_exit_3_when_cancelled(self):
        job_id = self.submitted(glyphs_job(steps=100000))
        self.ampd.wait_for_step(job_id, 3)
        watch = self.ampd.ctl_start("watch", job_id)
        self.ctl(0, "cancel", job_id)
        out, _ = watch.communicate(timeout=100)
        self.assertEqual(watch.returncode, 3)
        self.assertRegex(out.splitlines()[-1], "^CANCELLED")
        self.ctl(3, "wait", job_id)

    def test_exit_4_when_nobody_answers(self):
        server = f"127.0.0.1:{ampd_process.free_port()}"
        self.ctl(4, "list", server=server)
        self.ctl(4, "submit", self.job_file(glyphs_job()), server=server)

    def test_exit_5_when_not_authorised(self):
        class Refuse(grpc.GenericRpcHandler):
            def service(self, details):
                def refuse(request, context):
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
                return grpc.unary_unary_rpc_method_handler(refuse)

        server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Refuse()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, 0)
        self.ctl(5, "list", server=f"127.0.0.1:{port}")

    def test_exit_124_when_the_time_runs_out(self):
        job_id = self.submitted(glyphs_job(steps=100000))
        self.ctl(124, "wait", job_id, "--timeout", "0.2")
        self.ctl(0, "cancel", job_id)

    def test_exit_130_on_ctrl_c_and_the_job_goes_on(self):
        job_id = self.submitted(glyphs_job(steps=400))
        watch = self.ampd.ctl_start("watch", job_id)
        self.assertTrue(watch.stdout.readline())
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=60)
        self.assertEqual(watch.returncode, 130)
        self.assertIn(f"detached; the job continues: ampctl watch {job_id}", err)
        self.assert_state(self.ampd.wait(job_id), "SUCCEEDED")

    def test_a_watcher_outlives_the_daemon(self):
        job_id = self.submitted(glyphs_job(steps=600))
        watch = self.ampd.ctl_start("watch", job_id, "-o", "jsonl")
        self.ampd.wait_for_step(job_id, 20)
        self.ampd.kill()
        self.ampd.start()
        out, err = watch.communicate(timeout=ampd_process.DEADLINE)
        self.assertEqual(watch.returncode, 0, err)
        sequences = [int(json.loads(line)["sequence"]) for line in out.splitlines()]
        self.assertEqual(sequences, list(range(1, len(sequences) + 1)))
        self.assertRegex(err, re.compile("connection lost.*reconnected", re.S))

    def test_waiting_for_a_quiet_job_outlives_the_daemon(self):
        job_id = self.submitted(glyphs_job(steps=100000))
        self.ampd.wait_for_step(job_id, 1)
        self.ctl(0, "pause", job_id)
        eventually(lambda: json.loads(self.ctl(0, "get", job_id, "-o", "json").stdout)["state"] == "PAUSED", "the pause")
        waiting = [self.ampd.ctl_start("wait", job_id), self.ampd.ctl_start("logs", "-f", job_id)]
        for end in (self.ampd.kill, self.ampd.terminate):
            # Both have begun to wait.
            time.sleep(1)
            end()
            self.ampd.start()
        time.sleep(3)
        self.ctl(0, "cancel", job_id)
        for process, code in zip(waiting, (3, 0)):
            out, err = process.communicate(timeout=ampd_process.DEADLINE)
            self.assertEqual(process.returncode, code, err)
            self.assertIn("CANCELLED", out)

    def test_what_could_not_be_written_is_no_success(self):
        job_id = self.submitted(glyphs_job(steps=1))

        def written_to(file, *verb):
            return subprocess.run([ampd_process.program("ampctl"), *verb], env=self.ampd.ctl_environment(), text=True, stdout=file,
                                  stderr=subprocess.PIPE, timeout=ampd_process.DEADLINE, check=False)

        for verb in (["get", job_id, "-o", "yaml"], ["get", job_id], ["list"], ["--help"], ["version"], ["schema"]):
            with open("/dev/full", "w") as full:
                result = written_to(full, *verb)
            self.assertEqual((result.returncode, result.stderr), (1, "ampctl: write error: No space left on device\n"), verb)
        # Who reads no further had enough.
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as closed:
            result = written_to(closed, "schema")
        self.assertNotIn("write error", result.stderr)


if __name__ == "__main__":
    ampd_process.main()
