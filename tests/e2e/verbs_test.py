"""Pause, resume, retry, update, checkpoint and drain, by the client's verbs, with real daemons and workers."""

import contextlib
import http.server
import json
import os
import re
import signal
import struct
import threading

import ampd_process
from ampd_process import DaemonTest, OneDaemonTest, eventually, glyphs_job, losses_by_step, state_name, states
from ampd.v1 import training_service_pb2

ENDLESS = 1000000


class VerbsTest(OneDaemonTest):
    def state(self, job_id):
        return state_name(self.ampd.get(job_id).state)

    def await_state(self, job_id, state):
        eventually(lambda: self.state(job_id) == state, f"{state} of {job_id}")

    def test_a_paused_job_gives_its_device_back_and_loses_no_step(self):
        ampd = self.ampd
        plain = losses_by_step(ampd.events(ampd.submit(glyphs_job("plain", steps=600, mode="FP16")).id))
        job = ampd.submit(glyphs_job("paused", steps=600, mode="FP16")).id
        ampd.wait_for_step(job, 20)
        self.assertIn("PREEMPTING (to be paused)", self.ctl(0, "pause", job).stdout)
        self.await_state(job, "PAUSED")
        self.assertIn("PAUSED (REQUESTED)", self.ctl(0, "list").stdout)
        # The device is free.
        self.assert_state(ampd.run(glyphs_job("between", steps=3)), "SUCCEEDED")
        eventually(lambda: not ampd.worker_pids(), "the end of the workers")
        self.ctl(1, "resume", ampd.submit(glyphs_job("never paused", steps=3)).id)
        # A paused job stays so over a crash of the daemon.
        ampd.kill()
        ampd.start()
        self.assertEqual(self.state(job), "PAUSED")
        self.assertIn("QUEUED", self.ctl(0, "resume", job).stdout)
        self.assert_state(ampd.wait(job), "SUCCEEDED")
        events = ampd.events(job)
        self.assert_sequence(events)
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING", "PREEMPTING", "PAUSED", "QUEUED", "STARTING",
                                          "RUNNING", "SUCCEEDED"])
        reported = [e.step.last_step for e in events if e.HasField("step")]
        self.assertEqual(reported, list(range(1, 601)), "nothing is repeated")
        again = losses_by_step(events)
        self.assertEqual([s for s in plain if struct.pack("<d", plain[s]) != struct.pack("<d", again[s])], [])
        self.assertEqual(ampd.get(job).failures, 0)

    def test_a_pause_that_a_crash_interrupts(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("crash", steps=ENDLESS, every_steps=10)).id
        ampd.wait_for_step(job, 10)
        self.ctl(0, "pause", job)
        ampd.kill()
        ampd.start()
        self.await_state(job, "PAUSED")
        eventually(lambda: not ampd.worker_pids(), "the end of the worker")
        self.ctl(3, "wait", self.cancelled(job))

    def cancelled(self, job):
        self.ctl(0, "cancel", job)
        return job

    def test_checkpoints_on_request(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("checkpoint", steps=ENDLESS)).id
        ampd.wait_for_step(job, 5)
        self.assertNotIn("step-", self.ctl(0, "checkpoints", job).stdout)
        before = ampd.get(job).summary.step
        first = json.loads(self.ctl(0, "checkpoint", job, "-o", "json").stdout)
        self.assertGreaterEqual(int(first["step"]), before)
        self.assertEqual(ampd.get(job).summary.checkpoint, first["name"], "durable when it is answered")
        second = json.loads(self.ctl(0, "checkpoint", job, "-o", "json").stdout)
        self.assertGreater(int(second["step"]), int(first["step"]))
        listed = json.loads(self.ctl(0, "checkpoints", job, "-o", "json").stdout)["checkpoints"]
        self.assertEqual([c["name"] for c in listed], [second["name"], first["name"]])
        self.assertEqual([c["size_bytes"] for c in listed], [second["size_bytes"], first["size_bytes"]])
        self.assertEqual([c["damage"] for c in listed], ["", ""])
        with open(f"{ampd.state_dir}/checkpoints/{job}/{first['name']}/model.safetensors", "r+b") as file:
            file.truncate(100)
        self.assertIn("damaged: model.safetensors has 100 bytes", self.ctl(0, "checkpoints", job).stdout)
        self.ctl(3, "wait", self.cancelled(job))
        self.assertIn("does not run, it is CANCELLED", self.ctl(1, "checkpoint", job).stderr)

    def test_a_running_job_is_profiled(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("profiled", steps=ENDLESS)).id
        ampd.wait_for_step(job, 5)
        before = ampd.get(job).summary.step
        profile = json.loads(self.ctl(0, "profile", job, "--steps", "7", "-o", "json").stdout)
        self.assertGreater(int(profile["first_step"]), before - 1)
        self.assertEqual(int(profile["last_step"]) - int(profile["first_step"]), 6)
        self.assertEqual(profile["timing"], "HOST_CLOCK")
        parts = {part["name"]: part for part in profile["parts"]}
        self.assertEqual(int(parts["update"]["calls"]), 7)
        self.assertLessEqual(sum(p["seconds"] for p in profile["parts"]), 7 * profile["step_seconds"])
        text = self.ctl(0, "profile", job, "--last", "--by", "stage").stdout
        self.assertRegex(text, r"(?m)^steps \d+ to \d+: ")
        for stage in ("forward", "backward", "update", "(waiting for input)"):
            self.assertRegex(text, rf"(?m)%.* {re.escape(stage)}$")
        self.assertIn("no kernels by name", self.ctl(1, "profile", job, "--last", "--by", "kernel").stderr)
        ampd.kill()
        ampd.start()
        self.assertIn("steps", self.ctl(0, "profile", job, "--last").stdout, "durable when it was answered")
        self.assertIn("profile  steps", self.ctl(3, "watch", self.cancelled(job)).stdout)
        self.assertIn("does not run, it is CANCELLED", self.ctl(1, "profile", job).stderr)
        self.assertIn("steps", self.ctl(0, "profile", job, "--last").stdout)
        never = ampd.run(glyphs_job("never profiled", steps=3)).id
        self.assertIn("never profiled", self.ctl(1, "profile", never, "--last").stderr)

    def test_cancel_with_and_without_a_checkpoint(self):
        ampd = self.ampd
        kept, lost = (ampd.submit(glyphs_job(name, steps=ENDLESS)).id for name in ("kept", "lost"))
        ampd.wait_for_step(kept, 5)
        self.ctl(0, "cancel", kept, "--checkpoint")
        self.ctl(3, "wait", kept)
        self.assertIn("whole", self.ctl(0, "checkpoints", kept).stdout)
        ampd.wait_for_step(lost, 5)
        before = json.loads(self.ctl(0, "checkpoint", lost, "-o", "json").stdout)["name"]
        ampd.wait_for_step(lost, ampd.get(lost).summary.step + 5)
        self.ctl(0, "cancel", lost, "--now")
        self.ctl(3, "wait", lost)
        eventually(lambda: not ampd.worker_pids(), "the end of the worker")
        listed = json.loads(self.ctl(0, "checkpoints", lost, "-o", "json").stdout)["checkpoints"]
        self.assertEqual([c["name"] for c in listed], [before], "none newer than the one before")
        self.assertIn("CANCELLED", self.ctl(0, "cancel", lost, "--now").stdout)
        self.assertIn("--now", self.ctl(2, "cancel", lost, "--now", "--checkpoint").stderr)
        self.ctl(2, "cancel", "--now")

    def test_cancel_now_ends_a_job_that_waits_for_its_checkpoint(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("stopped", steps=ENDLESS)).id
        ampd.wait_for_step(job, 5)
        # It cannot write anything.
        (worker,) = ampd.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        self.ctl(0, "cancel", job)
        self.ctl(0, "cancel", job, "--now")
        self.ctl(3, "wait", job)
        eventually(lambda: not ampd.worker_pids(), "the end of the worker")
        self.assertNotIn("step-", self.ctl(0, "checkpoints", job).stdout)
        events = ampd.events(job)
        self.assertEqual(states(events)[-2:], ["CANCELLING", "CANCELLED"])
        self.assertEqual(events[-1].state_change.reason, "cancelled by request, at once")

    def test_a_retried_job_goes_on_where_it_was(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("retried", steps=400)).id
        ampd.wait_for_step(job, 20)
        self.ctl(3, "wait", self.cancelled(job))
        watch = ampd.ctl_start("watch", job)
        self.assertEqual(watch.wait(timeout=60), 3, "it has ended")
        watch.communicate()
        self.assertIn("retry", self.ctl(0, "retry", "--help").stdout)
        self.ctl(0, "retry", job)
        self.assert_state(ampd.wait(job), "SUCCEEDED")
        # From the first event on, over the end in between.
        events = list(ampd.watch(job))
        self.assertEqual(states(events), ["QUEUED", "STARTING", "RUNNING", "CANCELLING", "CANCELLED", "QUEUED",
                                          "STARTING", "RUNNING", "SUCCEEDED"])
        reported = [e.step.last_step for e in events if e.HasField("step")]
        self.assertEqual(reported, list(range(1, 401)), "nothing is repeated")
        self.assertIn("only FAILED and CANCELLED", self.ctl(1, "retry", job).stderr)
        self.assertEqual(self.ctl(0, "watch", job).returncode, 0)

    def test_updates(self):
        ampd = self.ampd
        running = ampd.submit(glyphs_job("running", steps=ENDLESS)).id
        job = ampd.submit(glyphs_job("updated", steps=3, labels={"team": "vision", "stale": "yes"})).id
        ampd.wait_for_step(running, 1)
        self.ctl(0, "update", job, "--priority", "7", "--label", "team=speech", "--label", "run=a=b", "--remove-label",
                 "stale")
        ampd.kill()
        ampd.start()
        spec = ampd.get(job).spec
        self.assertEqual(spec.resources.priority, 7)
        self.assertEqual(dict(spec.labels), {"team": "speech", "run": "a=b"})
        self.assertIn("--priority 1001: must be from -1000 to 1000, is 1001",
                      self.ctl(2, "update", job, "--priority", "1001").stderr)
        self.assertIn("no label \"none\"", self.ctl(2, "update", job, "--remove-label", "none").stderr)
        self.ctl(2, "update", job)
        self.ctl(3, "wait", self.cancelled(running))
        self.assert_state(ampd.wait(job), "SUCCEEDED")
        self.ctl(1, "update", job, "--priority", "1")

    def test_a_drained_device_takes_no_job(self):
        ampd = self.ampd
        job = ampd.submit(glyphs_job("moved", steps=4000)).id
        ampd.wait_for_step(job, 10)
        self.ctl(2, "drain", "cpu-0")
        self.ctl(2, "drain", "cpu-7", "--reason", "none")
        self.ctl(2, "drain", "cpu-0", "--server")
        self.ctl(0, "drain", "cpu-0", "--reason", "new fan", "--stop-jobs")
        self.await_state(job, "QUEUED")
        eventually(lambda: "GPU_DRAINED" in self.ctl(0, "get", job).stdout, "its worker has gone")
        ampd.kill()
        ampd.start()
        self.assertIn("DRAINED: new fan; no job starts on it", self.ctl(0, "devices").stdout)
        self.assertIn("GPU_DRAINED", self.ctl(0, "get", job).stdout)
        self.ctl(0, "undrain", "cpu-0")
        self.assert_state(ampd.wait(job), "SUCCEEDED")
        events = ampd.events(job)
        self.assertEqual([e.step.last_step for e in events if e.HasField("step")], list(range(1, 4001)))


class DrainServerTest(DaemonTest):
    def running(self, **config):
        ampd = self.daemon(config=config)
        job = ampd.submit(glyphs_job("drained", steps=ENDLESS)).id
        ampd.wait_for_step(job, 5)
        return ampd, job

    def assert_drained(self, ampd, job, reason):
        """The daemon exits with 0 by itself, and nothing of the job is lost."""
        self.assertEqual(ampd.process.wait(timeout=60), 0, ampd.log())
        self.assertEqual(ampd.worker_pids(), [])
        ampd.kill()
        ampd.start()
        changes = []
        for event in ampd.watch(job):
            if event.HasField("state_change"):
                changes.append(event.state_change)
            if len(changes) == 4:
                break
        self.assertEqual(state_name(changes[3].to), "QUEUED")
        self.assertIn(reason, changes[3].reason)
        self.assertNotEqual(ampd.get(job).summary.checkpoint, "")
        self.assertEqual(ampd.ctl("cancel", job).returncode, 0)

    def test_by_a_call(self):
        ampd, job = self.running()
        result = ampd.ctl("drain", "--server", "--reason", "new kernel", "--timeout", "60")
        self.assertEqual((result.returncode, result.stdout), (0, "draining; 1 job stops\n"), result.stderr)
        self.assert_drained(ampd, job, "stopped with the daemon: new kernel")

    def test_by_a_notice_in_a_file(self):
        notice = os.path.join(self.folder, "notice")
        ampd, job = self.running(spot_notice_file=notice)
        with open(notice, "w"):
            pass
        self.assertEqual(ampd.process.wait(timeout=60), 0, ampd.log())
        # The next one would obey it, too.
        os.remove(notice)
        self.assert_drained(ampd, job, f"notice at {notice}")

    def metadata(self, answer):
        """The address of a cloud's service: `answer(request)` gives an answer's status and body."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def respond(self):
                code, body = answer(self)
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = respond

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def test_by_a_notice_at_a_url(self):
        answers = {"code": 404}
        asked = threading.Event()

        def answer(request):
            asked.set()
            return (answers["code"] if request.path == "/spot?now" else 500), ""

        ampd, job = self.running(spot_notice_url=f"{self.metadata(answer)}/spot?now")
        self.assertTrue(asked.wait(60))
        self.assertIsNone(ampd.process.poll())
        answers["code"] = 200
        eventually(lambda: ampd.process.poll() is not None, "the daemon's end")
        # The next one has the same notice to obey.
        answers["code"] = 404
        self.assert_drained(ampd, job, "/spot?now")

    def test_by_a_notice_of_aws_with_session_tokens_alone(self):
        """IMDSv2 as AWS documents it: PUT for a token, which every GET must show; it ends some time."""
        path = "/latest/meta-data/spot/instance-action"
        service = {"tokens": 0, "token": "none yet", "admitted": 0, "notice": False}

        def answer(request):
            if request.path == "/latest/api/token":
                seconds = int(request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0))
                if request.command != "PUT" or not 1 <= seconds <= 21600:
                    return 400, ""
                service["tokens"] += 1
                service["token"] = f"AQAEAL{service['tokens']}-_=="
                return 200, service["token"]
            if request.headers.get("X-aws-ec2-metadata-token") != service["token"]:
                return 401, ""
            service["admitted"] += 1
            return (200, '{"action": "stop"}') if service["notice"] and request.path == path else (404, "")

        ampd, job = self.running(spot_notice_url=self.metadata(answer) + path)
        eventually(lambda: service["admitted"] >= 2, "two looks")
        self.assertEqual(service["tokens"], 1, "one token for many looks")
        service["token"] = "another"
        eventually(lambda: service["tokens"] >= 2, "a new token")
        self.assertIsNone(ampd.process.poll())
        self.assertNotIn("spot_notice_url", ampd.log())
        service["notice"] = True
        eventually(lambda: ampd.process.poll() is not None, "the daemon's end")
        service["notice"] = False
        self.assert_drained(ampd, job, path)

    def test_by_a_notice_of_google_cloud(self):
        """Its metadata server wants a header, and answers FALSE with 200 until there is a notice."""
        path = "/computeMetadata/v1/instance/preempted"
        service = {"answers": 0, "preempted": "FALSE"}

        def answer(request):
            if request.headers.get("Metadata-Flavor") != "Google":
                return 403, "Missing Metadata-Flavor:Google header."
            service["answers"] += 1
            return (200, service["preempted"]) if request.path == path else (404, "")

        ampd, job = self.running(spot_notice_url=self.metadata(answer) + path)
        eventually(lambda: service["answers"] >= 2, "two looks")
        self.assertIsNone(ampd.process.poll())
        service["preempted"] = "TRUE"
        eventually(lambda: ampd.process.poll() is not None, "the daemon's end")
        service["preempted"] = "FALSE"
        self.assert_drained(ampd, job, path)

    def test_a_url_that_cannot_tell_is_logged_once(self):
        service = {"code": 403, "looks": 0}

        def answer(_):
            service["looks"] += 1
            return service["code"], ""

        ampd = self.daemon(config={"spot_notice_url": self.metadata(answer) + "/spot"})
        eventually(lambda: service["looks"] >= 3, "three looks")
        self.assertEqual(ampd.log().count("/spot answers with status 403, neither 200 nor 404"), 1, ampd.log())
        # Without a token to be had, too.
        service["code"] = 401
        eventually(lambda: "/spot answers with status 401" in ampd.log(), "the other status")
        self.assertEqual(ampd.terminate(), 0)
        self.assertEqual(ampd.log().count("spot_notice_url"), 2, ampd.log())

    def begin(self, ampd, how):
        """A drain that goes on for as long as the workers, which are stopped, are not told to go on."""
        for pid in ampd.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        how()
        eventually(lambda: ampd.api().GetServerInfo(training_service_pb2.GetServerInfoRequest()).draining, "the drain")

    def send_sigterm(self, ampd):
        ampd.process.send_signal(signal.SIGTERM)
        eventually(lambda: "signal 15" in ampd.log(), "the signal's arrival")

    def touch(self, path):
        with open(path, "w"):
            pass

    def test_a_signal_after_another_begin_does_not_cut_it_short(self):
        notice = os.path.join(self.folder, "notice")
        begins = {
            "new kernel": lambda ampd: self.assertEqual(
                ampd.ctl("drain", "--server", "--reason", "new kernel", "--timeout", "300").returncode, 0),
            f"notice at {notice}": lambda _: self.touch(notice),
        }
        for reason, begin in begins.items():
            with self.subTest(reason):
                ampd, job = self.running(spot_notice_file=notice, spot_notice_seconds=300, on_stop="DETACH")
                self.begin(ampd, lambda begin=begin, ampd=ampd: begin(ampd))
                # As systemctl stop, docker stop and clouds do.
                self.send_sigterm(ampd)
                for pid in ampd.worker_pids():
                    os.kill(pid, signal.SIGCONT)
                self.assertEqual(ampd.process.wait(timeout=60), 0, ampd.log())
                with contextlib.suppress(FileNotFoundError):
                    os.remove(notice)
                self.assert_drained(ampd, job, reason)

    def test_the_second_signal_cuts_it_short(self):
        ampd, _ = self.running()
        self.begin(ampd, lambda: ampd.ctl("drain", "--server", "--timeout", "300"))
        self.send_sigterm(ampd)
        self.assertIsNone(ampd.process.poll(), ampd.log())
        ampd.process.send_signal(signal.SIGTERM)
        self.assertEqual(ampd.process.wait(timeout=60), 3, ampd.log())

    def test_whoever_comes_later_shortens_it(self):
        notice = os.path.join(self.folder, "notice")
        for what, ask in (("notice", lambda _: self.touch(notice)), ("signal", self.send_sigterm),
                          ("call", lambda ampd: ampd.ctl("drain", "--server", "--timeout", "8"))):
            with self.subTest(what):
                ampd, job = self.running(spot_notice_file=notice, spot_notice_seconds=8, drain_timeout_seconds=8)
                self.begin(ampd, lambda ampd=ampd: ampd.ctl("drain", "--server", "--timeout", "36000"))
                ask(ampd)
                self.assertEqual(ampd.process.wait(timeout=60), 0, ampd.log())
                self.assertEqual(ampd.worker_pids(), [], "killed in time")
                with contextlib.suppress(FileNotFoundError):
                    os.remove(notice)
                ampd.kill()
                ampd.start()
                ampd.wait_for_step(job, 5)
                self.assertEqual(ampd.ctl("cancel", job).returncode, 0)

    def test_a_worker_that_cannot_stop_does_not_hold_up_the_end(self):
        ampd, job = self.running()
        for pid in ampd.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        self.assertEqual(ampd.ctl("drain", "--server", "--timeout", "16").returncode, 0)
        self.assertEqual(ampd.process.wait(timeout=16), 0, "gone before the deadline")
        self.assertEqual(ampd.worker_pids(), [])
        ampd.kill()
        ampd.start()
        ampd.wait_for_step(job, 5)
        self.assertEqual(ampd.ctl("cancel", job).returncode, 0)


if __name__ == "__main__":
    ampd_process.main()
