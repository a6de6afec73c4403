"""The JSON API of the HTTP port at a real daemon: every path, streams that go on where they stopped, who may do what, and
requests that keep to no rule. docs/json_api.md says what it is."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.parse

from google.protobuf import json_format

import ampd_process
import certificates
from ampd.v1 import training_service_pb2
from ampd_process import DEADLINE, DaemonTest, OneDaemonTest, eventually, glyphs_job
from fenced_blocks import fenced_blocks
from raw_clients import RawClient, resident_bytes

JSON = {"Content-Type": "application/json"}
# What a page of jobs has before its last one, at most.
PAGE_BYTES = 2 << 20
# What it has as JSON. (Indenting within the page adds to what its jobs are alone.)
JSON_PAGE_BYTES = 4 << 20


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.bytes = response.read()

    @property
    def json(self):
        return json.loads(self.bytes)


def ask(daemon, path, method="GET", headers=None, body=None, host=None):
    """An Answer; `headers` are sent as they are."""
    name, port = daemon.http_address.rsplit(":", 1)
    connection = http.client.HTTPConnection(name, int(port), timeout=DEADLINE)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or daemon.http_address)
        for key, value in (headers or {}).items():
            connection.putheader(key, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


class Stream:
    """A client of server-sent events."""

    def __init__(self, daemon, path, headers=None):
        name, port = daemon.http_address.rsplit(":", 1)
        self.connection = http.client.HTTPConnection(name, int(port), timeout=DEADLINE)
        self.connection.request("GET", path, headers={"Accept": "text/event-stream", **(headers or {})})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.last_id = None

    def next(self):
        """(event, data); None at the end. Heartbeats are passed over."""
        event, data = "message", None
        while True:
            line = self.response.readline().decode()
            if not line:
                return None
            line = line.rstrip("\n")
            if not line:
                if data is not None:
                    return event, json.loads(data)
                event = "message"
            elif line.startswith("id: "):
                self.last_id = int(line[4:])
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = line[6:]

    def until(self, event):
        """What comes before the next `event`, and that."""
        got = []
        while True:
            item = self.next()
            assert item is not None, f"the stream ended without {event}; it had {got[-3:]}"
            got.append(item)
            if item[0] == event:
                return got

    def close(self):
        self.response.close()
        self.connection.close()


class JsonApiTest(OneDaemonTest):
    def get(self, path, status=200, **arguments):
        answer = ask(self.ampd, "/api/v1" + path, **arguments)
        self.assertEqual(answer.status, status, answer.bytes[:500])
        self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
        self.assertIsNone(answer.headers["Access-Control-Allow-Origin"])
        return answer.json

    def refused(self, path, status, code, **arguments):
        answer = ask(self.ampd, path, **arguments)
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.bytes[:500])
        self.assertTrue(answer.json["message"])
        self.assertEqual(answer.headers["Content-Type"], "application/json")
        return answer.json

    def stream(self, path, **arguments):
        stream = Stream(self.ampd, "/api/v1" + path, **arguments)
        self.addCleanup(stream.close)
        return stream

    def post(self, path, status=200, body=None):
        answer = ask(self.ampd, "/api/v1" + path, method="POST", headers=JSON, body=json.dumps(body or {}).encode())
        self.assertEqual(answer.status, status, answer.bytes[:500])
        return answer.json

    def test_bodies_are_the_messages_of_the_rpcs(self):
        job = self.ampd.run(glyphs_job("one", steps=6, every_steps=3, labels={"team": "a b"}))
        for path, verb in (("/jobs/" + job.id, ("get", job.id)), ("/server", ("version",)), ("/devices", ("devices",)),
                           (f"/jobs/{job.id}/checkpoints", ("checkpoints", job.id))):
            with self.subTest(path):
                told = json.loads(self.ctl(0, *verb, "-o", "json").stdout)
                got = self.get(path)
                if path == "/devices":
                    self.assertEqual([d["id"] for d in got["devices"]], ["cpu-0"])
                elif path == "/server":
                    self.assertEqual(got["apis"], ["ampd.v1"])
                elif path.endswith("checkpoints"):
                    self.assertEqual([c["step"] for c in got["checkpoints"]], [6, 3])
                else:
                    self.assertEqual(got, told)
        whole = self.get(f"/jobs/{job.id[:20]}")
        self.assertEqual(self.get(f"/jobs/{job.id}/spec"), whole["spec"])
        self.assertEqual(self.get(f"/jobs/{job.id}/plan"), whole["plan"])
        yaml = ask(self.ampd, f"/api/v1/jobs/{job.id}/spec?format=yaml")
        self.assertEqual(yaml.headers["Content-Type"], "text/plain; charset=utf-8")
        # The client has comments before it.
        self.assertTrue(self.ctl(0, "get", job.id, "-o", "yaml").stdout.endswith(yaml.bytes.decode()))
        self.assertTrue(yaml.bytes.decode().startswith("name: one\n"))
        self.assertNotIn("plan", self.get(f"/jobs/{job.id}?view=SUMMARY"))
        head = ask(self.ampd, "/api/v1/jobs/" + job.id, method="HEAD")
        self.assertEqual((head.status, head.bytes), (200, b""))
        self.assertGreater(int(head.headers["Content-Length"]), 100)

    def test_the_pages_commands_work(self):
        if shutil.which("curl") is None:
            self.skipTest("curl is not installed")
        page = os.path.join(ampd_process.SOURCE, "docs/json_api.md")
        job = self.ampd.run(glyphs_job("documented", steps=2))
        self.job_file(glyphs_job("submitted", steps=2), "job.yaml")
        environment = dict(os.environ, JOB=job.id, STEP=job.summary.checkpoint)
        printed = ""
        for block in fenced_blocks(page):
            if block.info == "sh":
                text = block.text.replace("127.0.0.1:7071", self.ampd.http_address)
                result = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, timeout=DEADLINE, env=environment, cwd=self.folder)
                self.assertEqual(result.returncode, 0, result.stderr)
                printed += result.stdout
        self.assertIn('"apis"', printed)
        self.assertIn('"jobs"', printed)
        self.assertEqual([job["spec"]["name"] for job in self.get('/jobs?filter=name+%3D+"submitted"')["jobs"]], ["submitted"])
        self.assertGreater(os.path.getsize(os.path.join(self.folder, "model.safetensors")), 0)

    def test_lists_take_filters_orders_and_pages(self):
        names = [f"job-{i}" for i in range(5)]
        for name in names:
            self.ampd.wait(self.ampd.submit(glyphs_job(name, steps=1)).id)
        self.assertEqual([j["spec"]["name"] for j in self.get("/jobs")["jobs"]], names[::-1])
        self.assertEqual([j["spec"]["name"] for j in self.get("/jobs?order_by=name%20asc&view=summary")["jobs"]], names)
        found, page = [], self.get("/jobs?page_size=2&order_by=name")
        while True:
            self.assertLessEqual(len(page["jobs"]), 2)
            found += [job["spec"]["name"] for job in page["jobs"]]
            if not page["next_page_token"]:
                break
            page = self.get("/jobs?page_size=2&order_by=name&page_token=" + page["next_page_token"])
        self.assertEqual(found, names)
        one = self.get("/jobs?filter=name%3A%22-3%22+AND+state+%3D+SUCCEEDED&states=succeeded,FAILED")["jobs"]
        self.assertEqual([job["spec"]["name"] for job in one], ["job-3"])
        self.assertEqual(self.get("/jobs?states=RUNNING")["jobs"], [])
        self.assertIn("filter", json.dumps(self.refused("/api/v1/jobs?filter=%28", 400, "INVALID_ARGUMENT")))

    def test_a_page_has_a_bound_in_bytes(self):
        spec = glyphs_job("large", steps=2, not_before="2099-01-01T00:00:00Z",
                          labels={f"{n:02d}" + "k" * 198: "v" * 200 for n in range(64)})
        # Small as messages, large in JSON.
        spec["model"]["layers"][3:3] = [{"name": f"again{n}", "relu": {}} for n in range(300)]
        sweep = training_service_pb2.CreateSweepRequest()
        json_format.ParseDict(dict(spec, sweep={"grid": {"seed": list(range(1, 101))}}), sweep.spec)
        self.ampd.api().CreateSweep(sweep, timeout=DEADLINE)

        def messages(token):
            page = self.ampd.api().ListJobs(training_service_pb2.ListJobsRequest(page_size=1000, page_token=token), timeout=DEADLINE)
            self.assertLess(page.ByteSize(), PAGE_BYTES + 2 * max(job.ByteSize() for job in page.jobs))
            return [job.id for job in page.jobs], page.next_page_token

        def texts(token):
            answer = ask(self.ampd, f"/api/v1/jobs?page_size=1000&view=FULL&page_token={token}")
            self.assertLess(len(answer.bytes), JSON_PAGE_BYTES * 5 // 4)
            return [job["id"] for job in answer.json["jobs"]], answer.json["next_page_token"]

        def walk(page_of):
            pages, token = [], None
            while token != "":
                page, token = page_of(token or "")
                pages.append(page)
            self.assertGreater(len(pages), 1)
            return [job for page in pages for job in page]

        found = walk(messages)
        self.assertEqual(len(set(found)), 100)
        self.assertEqual(walk(texts), found)
        self.assertEqual(len(self.get("/jobs?page_size=1000&view=SUMMARY&states=QUEUED")["jobs"]), len(messages("")[0]))

    def test_figures_are_those_of_the_events(self):
        diagnostics = {"every_steps": 1, "diagnostics_every_steps": 20}
        job = self.ampd.run(glyphs_job("figures", steps=40, mode="FP16", report=diagnostics))
        events = self.ampd.events(job.id)
        reports = [event.step for event in events if event.HasField("step")]
        series = self.get(f"/jobs/{job.id}/series")
        phase = series["phases"][0]
        self.assertEqual(phase["last_step"], [report.last_step for report in reports])
        self.assertEqual(series["bucket_steps"], 1)
        finite = lambda value: value if value == value and abs(value) != float("inf") else None
        for column in ("loss", "loss_scale", "learning_rate", "gradient_norm"):
            expected = [finite(getattr(report.phases[0], column)) for report in reports]
            self.assertEqual(phase["columns"][column]["last"], expected, column)
            self.assertEqual(phase["columns"][column]["non_finite"], [int(v is None) for v in expected], column)
        self.assertEqual(sum(phase["skipped"]), reports[-1].phases[0].steps_skipped)
        speed = series["throughput"]["columns"]["samples_per_second"]["max"]
        self.assertEqual(speed, [report.samples_per_second for report in reports])
        evaluation = [event.evaluation for event in events if event.HasField("evaluation")][-1]
        self.assertEqual(series["evaluations"]["step"][-1], evaluation.step)
        self.assertEqual(series["evaluations"]["metrics"]["accuracy"][-1], evaluation.accuracy)
        self.assertEqual(series["last_sequence"], events[-1].sequence)

        coarse = self.get(f"/jobs/{job.id}/series?points=4")["phases"][0]
        self.assertEqual(coarse["last_step"], [10, 20, 30, 40])
        losses = [r.phases[0].loss for r in reports if finite(r.phases[0].loss) is not None]
        self.assertEqual(max(filter(None, coarse["columns"]["loss"]["max"])), max(losses))
        self.assertEqual(sum(coarse["reports"]), 40)
        part = self.get(f"/jobs/{job.id}/series?from_step=11&to_step=20&points=10")["phases"][0]
        self.assertEqual(part["last_step"], list(range(11, 21)))

        wanted = [e.sequence for e in events if e.HasField("gradient_diagnostics")]
        histograms = self.get(f"/jobs/{job.id}/histograms")
        self.assertEqual([h["sequence"] for h in histograms["available"]], wanted)
        self.assertEqual(histograms["sequence"], wanted[-1])
        first = self.get(f"/jobs/{job.id}/histograms?sequence={wanted[0]}")
        self.assertEqual(first["diagnostics"]["step"], histograms["available"][0]["step"])
        self.refused(f"/api/v1/jobs/{job.id}/histograms?sequence=1", 404, "NOT_FOUND")

    def test_events_come_in_pages_and_by_kind(self):
        job = self.ampd.run(glyphs_job("pages", steps=30, every_steps=10))
        events = self.ampd.events(job.id)
        got, page = [], self.get(f"/jobs/{job.id}/events?limit=7")
        while True:
            self.assertLessEqual(len(page["events"]), 7)
            got += page["events"]
            if page["next_after"] == page["last_sequence"]:
                break
            page = self.get(f"/jobs/{job.id}/events?limit=7&after={page['next_after']}")
        self.assertEqual([e["sequence"] for e in got], [e.sequence for e in events])
        saved = [e.sequence for e in events if e.HasField("checkpoint")]
        self.assertGreaterEqual(len(saved), 3)
        for query in ("kinds=checkpoint", "kinds=checkpoint&tail=1000"):
            self.assertEqual([e["sequence"] for e in self.get(f"/jobs/{job.id}/events?{query}")["events"]], saved)
        tail = self.get(f"/jobs/{job.id}/events?kinds=checkpoint&tail=2")["events"]
        self.assertEqual([e["sequence"] for e in tail], saved[-2:])
        self.assertEqual([e["sequence"] for e in self.get(f"/jobs/{job.id}/events?tail=3")["events"]],
                         [e.sequence for e in events[-3:]])
        steps = self.get(f"/jobs/{job.id}/events?tail=4&kinds=step")["events"]
        self.assertEqual([e["step"]["last_step"] for e in steps], [27, 28, 29, 30])
        logs = self.get(f"/jobs/{job.id}/logs")["events"]
        self.assertFalse([e for e in logs if "step" in e])
        self.assertEqual(logs[-1]["state_change"]["to"], "SUCCEEDED")
        self.refused(f"/api/v1/jobs/{job.id}/events?after=100000", 400, "OUT_OF_RANGE")
        self.refused(f"/api/v1/jobs/{job.id}/events?after=1&tail=1", 400, "INVALID_ARGUMENT")

    def test_artifacts_are_images_or_files_to_save(self):
        job = self.ampd.run(glyphs_job("files", steps=2))
        folder = os.path.join(self.ampd.state_dir, "artifacts", job.id)
        os.makedirs(folder, exist_ok=True)
        files = {"a b.png": b"\x89PNG\r\n\x1a\n" + b"x" * (3 << 20), "evil.png": b"<script>alert(1)</script>", "empty.png": b""}
        for name, content in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        for name, type_, disposition in (("a%20b.png", "image/png", None),
                                         ("evil.png", "application/octet-stream", "attachment"),
                                         ("empty.png", "application/octet-stream", "attachment")):
            answer = ask(self.ampd, f"/api/v1/jobs/{job.id}/artifacts/{name}")
            self.assertEqual(answer.status, 200)
            self.assertEqual(answer.bytes, files[name.replace("%20", " ")])
            self.assertEqual(answer.headers["Content-Type"], type_)
            self.assertEqual(answer.headers["Content-Disposition"], disposition)
            self.assertEqual(answer.headers["X-Content-Type-Options"], "nosniff")
            self.assertIn("sandbox", answer.headers["Content-Security-Policy"])
        self.assertEqual(self.get(f"/jobs/{job.id}/artifacts"), {"artifacts": []})
        self.refused(f"/api/v1/jobs/{job.id}/artifacts/none.png", 404, "NOT_FOUND")
        self.refused(f"/api/v1/jobs/{job.id}/artifacts/..%2f..%2fampd.db", 400, "INVALID_ARGUMENT")
        self.refused(f"/api/v1/jobs/{job.id}/artifacts/.hidden", 400, "INVALID_ARGUMENT")

    def test_a_stream_goes_on_where_it_stopped(self):
        spec = glyphs_job("stream", steps=1000000)
        job_id = self.ampd.submit(spec).id
        seen = []
        for _ in range(4):
            headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
            # What the page said at first does not count when the client comes back.
            stream = self.stream(f"/jobs/{job_id}/events?after=0", headers=headers)
            self.assertEqual(stream.response.headers["Content-Type"], "text/event-stream")
            for _ in range(20):
                _, event = stream.next()
                self.assertEqual(event["sequence"], stream.last_id)
                seen.append(event["sequence"])
            stream.close()
        self.assertEqual(seen, list(range(1, 81)))
        changes = self.stream(f"/jobs/{job_id}/events?kinds=state_change")
        self.assertEqual(self.post(f"/jobs/{job_id}/cancel")["id"], job_id)
        *events, end = changes.until("end")
        self.assertEqual(events[-1][1]["state_change"]["to"], "CANCELLED")
        self.assertFalse([e for _, e in events if "state_change" not in e])
        self.assertIsNone(changes.next())
        last = changes.last_id
        self.assertEqual(last, self.ampd.get(job_id).last_sequence)
        over = self.stream(f"/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)})
        self.assertEqual((over.status, over.response.read()), (204, b""))
        replay = self.stream(f"/jobs/{job_id}/events?after={last - 5}").until("end")
        self.assertEqual([e["sequence"] for kind, e in replay if kind == "message"], list(range(last - 4, last + 1)))

    def test_the_fleets_stream_tells_of_jobs_and_devices(self):
        stream = self.stream("/events")
        self.assertEqual(stream.next()[0], "reset")
        self.assertEqual(stream.until("devices")[-1][1]["devices"][0]["id"], "cpu-0")
        job_id = self.ampd.submit(glyphs_job("fleet", steps=3)).id
        while True:
            job = stream.until("job")[-1][1]
            self.assertEqual((job["id"], job["spec"]["name"]), (job_id, "fleet"))
            self.assertNotIn("plan", job)
            if job["state"] == "SUCCEEDED":
                break

    def test_a_reader_that_takes_nothing_costs_no_writer_anything(self):
        # Diagnostics are long, so that soon the sockets are full.
        report = {"every_steps": 1, "diagnostics_every_steps": 1}
        job_id = self.ampd.submit(glyphs_job("slow", steps=1000000, report=report)).id
        self.ampd.wait_for_step(job_id, 1)
        before = resident_bytes(self.ampd.process.pid)
        streams = 'ampd_http_requests_total{code="200",route="/api/v1/jobs/{}/events"}'
        ended = self.metric(streams) or 0
        readers = [RawClient(self.ampd.http_address) for _ in range(8)]
        for reader in readers:
            self.addCleanup(reader.close)
            reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
            reader.send(request.encode(), read=False)
        eventually(lambda: (self.metric(streams) or 0) - ended >= 8, "that readers are let go of", 240)
        eventually(lambda: self.metric('ampd_calls{class="watchers"}') == 0, "the end of their calls")
        at = self.get("/jobs/" + job_id)["summary"]["step"]
        self.ampd.wait_for_step(job_id, at + 20)
        self.assertEqual(ask(self.ampd, "/healthz").bytes, b"ok\n")
        self.assertLess(resident_bytes(self.ampd.process.pid) - before, 160 << 20)
        self.post(f"/jobs/{job_id}/cancel")
        self.ampd.wait(job_id)

    def metric(self, name):
        for line in ask(self.ampd, "/metrics").bytes.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return None

    def test_streams_leave_room_for_health(self):
        job_id = self.ampd.submit(glyphs_job("many", steps=1000000)).id
        # Of a kind that is rare: nobody reads them here.
        streams = [self.stream(f"/jobs/{job_id}/events?kinds=artifact") for _ in range(32)]
        self.assertEqual({stream.status for stream in streams}, {200})
        refused = self.stream(f"/jobs/{job_id}/events")
        self.assertEqual((refused.status, refused.response.headers["Retry-After"]), (503, "5"))
        self.assertEqual(json.loads(refused.response.read())["code"], "UNAVAILABLE")
        self.assertEqual(ask(self.ampd, "/healthz").status, 200)
        self.assertEqual(self.get("/jobs/" + job_id)["id"], job_id)
        self.assertEqual(self.stream("/events").status, 503)
        for stream in streams:
            stream.close()
        eventually(lambda: self.free_stream(job_id), "a stream once the others are gone")
        self.post(f"/jobs/{job_id}/cancel")
        self.ampd.wait(job_id)
        # Other tests need streams of this daemon.
        eventually(lambda: self.metric('ampd_calls{class="watchers"}') == 0, "the end of all streams")

    def free_stream(self, job_id):
        stream = Stream(self.ampd, f"/api/v1/jobs/{job_id}/events")
        stream.close()
        return stream.status == 200

    def test_jobs_are_steered(self):
        job_id = self.ampd.submit(glyphs_job("steered", steps=1000000)).id
        self.ampd.wait_for_step(job_id, 1)
        checkpoint = self.post(f"/jobs/{job_id}/checkpoint")
        self.assertGreater(checkpoint["step"], 0)
        profile = self.post(f"/jobs/{job_id}/profile")
        self.assertEqual(profile["last_step"] - profile["first_step"], 19)
        self.post(f"/jobs/{job_id}/pause")
        eventually(lambda: self.get("/jobs/" + job_id)["state"] == "PAUSED", "the pause")
        self.assertEqual(self.post(f"/jobs/{job_id}/checkpoint", 400)["code"], "FAILED_PRECONDITION")
        self.post(f"/jobs/{job_id}/resume")
        eventually(lambda: self.get("/jobs/" + job_id)["state"] == "RUNNING", "the job to go on")
        self.post(f"/jobs/{job_id}/cancel")
        eventually(lambda: self.get("/jobs/" + job_id)["state"] == "CANCELLED", "the end")
        self.assertIn(self.post(f"/jobs/{job_id}/retry")["state"], ("QUEUED", "STARTING", "RUNNING"))
        self.post(f"/jobs/{job_id}/cancel")
        self.ampd.wait(job_id)
        with open(os.path.join(self.ampd.state_dir, "audit.log")) as file:
            lines = [json.loads(line) for line in file]
        http_calls = [line for line in lines if line["method"] in ("PauseJob", "ResumeJob", "RetryJob", "CheckpointJob")]
        self.assertEqual([line["code"] for line in http_calls], ["OK", "OK", "FAILED_PRECONDITION", "OK", "OK"])
        for line in http_calls:
            self.assertRegex(line["peer"], r"^ipv4:127\.0\.0\.1:\d+$")
            self.assertEqual(line["resource"], job_id)
        self.assertGreaterEqual(self.metric('ampd_http_requests_total{code="200",route="/api/v1/jobs/{}/cancel"}'), 2)

    def test_priorities_labels_and_devices_are_changed(self):
        device = self.get("/devices")["devices"][0]["id"]
        path = f"/devices/{urllib.parse.quote(device, safe='')}"
        drained = self.post(path + "/drain", body={"reason": "fan"})
        self.assertEqual([(c["kind"], c["message"]) for c in drained["conditions"]], [("DRAINED", "fan")])
        self.assertEqual(self.post(path + "/drain", 400, body={})["violations"][0]["field"], "reason")
        self.assertEqual(self.post(path + "/drain", 400, body={"reason": "x", "device_id": device})["violations"],
                         [{"field": "device_id", "description": "is in the path"}])
        self.assertEqual(self.post("/devices/none/undrain", 404)["code"], "NOT_FOUND")
        job_id = self.ampd.submit(glyphs_job("waits", steps=1)).id
        changed = self.post(f"/jobs/{job_id}/update", body={"priority": 5, "set_labels": {"team": "vision"}})
        self.assertEqual((changed["spec"]["resources"]["priority"], changed["spec"]["labels"]), (5, {"team": "vision"}))
        self.assertEqual(self.post(f"/jobs/{job_id}/update", 400, body={"priority": 5000})["violations"][0]["field"], "priority")
        self.assertEqual(self.post(f"/jobs/{job_id}/update", body={"remove_labels": ["team"]})["spec"]["labels"], {})
        self.assertEqual(self.post(path + "/undrain")["conditions"], [])
        self.assert_state(self.ampd.wait(job_id), "SUCCEEDED")

    def test_hostile_requests_get_clear_errors(self):
        job_id = self.ampd.run(glyphs_job("target", steps=1)).id
        for path in ("/api/v1/jobs/../server", "/api/v1/%2e%2e/jobs", "/api/v1/jobs/%00", "/api/v1/jobs/a%2Fb", "/api/v1/jobs/%",
                     "/api/v1/jobs?page_size=1e3", "/api/v1/jobs?page_size=-1", "/api/v1/jobs?page_size=99999999999999999999",
                     "/api/v1/jobs?nonsense=1", "/api/v1/jobs?view=FULL&view=FULL", "/api/v1/jobs?states=GONE",
                     "/api/v1/jobs?page_token=x", f"/api/v1/jobs/{job_id}/series?points=0", "/api/v1/jobs?filter=%FF",
                     f"/api/v1/jobs/{job_id}/series?points=4001", f"/api/v1/jobs/{job_id}/series?from_step=9&to_step=8",
                     f"/api/v1/jobs/{job_id}/events?kinds=sequence", f"/api/v1/jobs/{job_id}/spec?format=xml", "/api/v1/events",
                     "/api/v1/jobs?" + "&".join(f"p{i}" for i in range(100)), "/api/v1/jobs" + "?a" * 3000, "/api/v1/jobs/" + "a" * 4000):
            with self.subTest(path[:60]):
                self.refused(path, 400, "INVALID_ARGUMENT")
        for path in ("/api", "/api/v1", "/api/v1/", "/api/v2/jobs", "/api/v1/jobs/", f"/api/v1/jobs/{job_id}/", "/api/v1/nothing",
                     "/api/v1/jobs/zzzzzzzz", "/api/v1/sweeps/zzzzzz"):
            with self.subTest(path[:60]):
                self.refused(path, 404, "NOT_FOUND")
        for method, path in (("PUT", "/api/v1/jobs"), ("DELETE", f"/api/v1/jobs/{job_id}"), ("OPTIONS", "/api/v1/jobs"),
                             ("GET", f"/api/v1/jobs/{job_id}/cancel"), ("POST", "/metrics")):
            self.refused(path, 405, "UNIMPLEMENTED", method=method, body=b"")
        cancel = f"/api/v1/jobs/{job_id}/cancel"
        for headers, body, status in ((JSON, b"{", 400), (JSON, b'{"x": 1}', 400), (JSON, b'{"job_id": "a"}', 400),
                                      (JSON, b"[" * 60000, 400), (JSON, b" " * 70000, 413), ({}, b"{}", 415),
                                      ({"Content-Type": "text/plain"}, b"{}", 415), (JSON, b"\xff", 400)):
            self.refused(cancel, status, "INVALID_ARGUMENT", method="POST", headers=headers, body=body)
        self.assertIn(ask(self.ampd, "/" + "a" * 20000).status, (400, 413, 414, 431))
        self.assertIn(ask(self.ampd, "/", headers={"X": "a" * 20000}).status, (400, 413, 414, 431))
        stream = self.stream(f"/jobs/{job_id}/events", headers={"Last-Event-ID": "x"})
        self.assertEqual(stream.status, 400)
        self.assert_healthy(self.ampd)

    def test_other_sites_and_names_are_refused(self):
        job_id = self.ampd.run(glyphs_job("sites", steps=1)).id
        path = f"/api/v1/jobs/{job_id}"
        self.refused(path, 403, "PERMISSION_DENIED", host="evil.example")
        self.refused(path, 403, "PERMISSION_DENIED", host="127.0.0.1.evil.example:80")
        self.refused(path, 403, "PERMISSION_DENIED", headers={"Origin": "http://evil.example"})
        self.refused(path, 403, "PERMISSION_DENIED", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})
        self.refused(path + "/retry", 403, "PERMISSION_DENIED", method="POST", body=b"{}",
                     headers={**JSON, "Origin": "http://evil.example"})
        same = {"Origin": "http://" + self.ampd.http_address, "Sec-Fetch-Site": "same-origin"}
        self.assertEqual(ask(self.ampd, path, headers=same).status, 200)
        # Of a target in absolute form it is the target's host that counts, not what Host says.
        target = f"http://{self.ampd.http_address}{path}?view=SUMMARY"
        self.assertEqual(ask(self.ampd, target, host="evil.example").json["id"], job_id)
        self.refused(f"http://evil.example{path}", 403, "PERMISSION_DENIED")
        self.refused(f"http://{self.ampd.http_address}.evil.example{path}", 400, "INVALID_ARGUMENT")
        self.refused(f"http://localhost@evil.example{path}", 400, "INVALID_ARGUMENT")
        self.refused(target, 403, "PERMISSION_DENIED", headers={"Origin": "http://evil.example"}, host="evil.example")
        if shutil.which("curl"):
            command = ["curl", "-fsS", "--request-target", target, f"http://{self.ampd.http_address}/"]
            self.assertEqual(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE).stdout)["id"], job_id)
        # Prometheus may call it what it likes.
        self.assertEqual(ask(self.ampd, "/metrics", host="ampd.internal").status, 200)
        self.assertEqual(self.get("/session"), {"tokens": False, "signed_in": True, "user": "", "role": "ADMIN",
                                                "may_change": True})


class AccessTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.admin_file = os.path.join(self.folder, "admin.token")
        self.ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": self.admin_file}})
        self.admin = certificates.read(self.admin_file).decode().strip()

    def ctl(self, *arguments):
        result = self.ampd.ctl("--token-file", self.admin_file, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def token(self, user, role, *arguments):
        return self.ctl("tokens", "create", "--user", user, "--role", role, "-o", "json", *arguments)

    def ask(self, path, secret=None, cookie=None, **arguments):
        headers = arguments.pop("headers", {})
        if secret:
            headers["Authorization"] = "Bearer " + secret
        if cookie:
            headers["Cookie"] = cookie
        return ask(self.ampd, "/api/v1" + path, headers=headers, **arguments)

    def submit_as(self, secret, name):
        token_file = os.path.join(self.folder, name + ".token")
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secret)
        result = self.ampd.ctl("--token-file", token_file, "submit", self.job_file(glyphs_job(name, steps=1000000)), "-o", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["id"]

    def sign_in(self, secret):
        answer = self.ask("/session", method="POST", headers=dict(JSON), body=json.dumps({"token": secret}).encode())
        self.assertEqual(answer.status, 200, answer.bytes)
        set_cookie = answer.headers["Set-Cookie"]
        self.assertIn("HttpOnly", set_cookie)
        self.assertIn("SameSite=Strict", set_cookie)
        self.assertNotIn(secret[5:], set_cookie)
        return set_cookie.split(";")[0], answer.json

    def test_who_asks_decides_what_is_answered(self):
        ann, bob = self.token("ann", "SUBMITTER"), self.token("bob", "SUBMITTER")
        vic = self.token("vic", "VIEWER")
        job_id = self.submit_as(ann["secret"], "anns")
        paths = ["/server", "/devices", "/jobs", "/events"]
        of_job = ["", "/spec", "/plan", "/checkpoints", "/checkpoints/step-1", "/checkpoints/step-1/MANIFEST", "/series", "/events", "/logs", "/histograms", "/artifacts", "/artifacts/x.png"]
        paths += [f"/jobs/{job_id}{path}" for path in of_job] + ["/sweeps/abcdef"]
        for path in paths:
            for secret in (None, "ampd_" + "0" * 64):
                stream = {"headers": {"Accept": "text/event-stream"}} if path.endswith("/events") else {}
                answer = self.ask(path, secret, **stream)
                self.assertEqual((answer.status, answer.json["code"]), (401, "UNAUTHENTICATED"), path)
                self.assertEqual(answer.headers["WWW-Authenticate"], "Bearer")
        for path in of_job:
            self.assertEqual(self.ask(f"/jobs/{job_id}{path}", bob["secret"]).status, 404, path)
        self.assertEqual(self.ask("/jobs", bob["secret"]).json["jobs"], [])
        for secret in (ann["secret"], self.admin):
            self.assertEqual([job["id"] for job in self.ask("/jobs", secret).json["jobs"]], [job_id])
            self.assertEqual(self.ask(f"/jobs/{job_id}/series", secret).status, 200)
        cancel = {"method": "POST", "body": b"{}"}
        self.assertEqual(self.ask(f"/jobs/{job_id}/cancel", headers=dict(JSON), **cancel).status, 401)
        self.assertEqual(self.ask(f"/jobs/{job_id}/cancel", vic["secret"], headers=dict(JSON), **cancel).status, 403)
        self.assertEqual(self.ask(f"/jobs/{job_id}/cancel", bob["secret"], headers=dict(JSON), **cancel).status, 404)
        self.assertEqual(self.ask(f"/jobs/{job_id}/cancel", ann["secret"], headers=dict(JSON), **cancel).status, 200)
        drain = {"method": "POST", "body": b'{"reason": "fan"}', "headers": dict(JSON)}
        self.assertEqual(self.ask("/devices/cpu%3A0/drain", ann["secret"], **drain).status, 403)
        with open(os.path.join(self.ampd.state_dir, "audit.log")) as file:
            lines = [json.loads(line) for line in file]
        tried = [(line.get("user"), line["code"]) for line in lines if line["method"] == "CancelJob"]
        self.assertEqual(tried, [(None, "UNAUTHENTICATED"), ("vic", "PERMISSION_DENIED"), ("bob", "NOT_FOUND"), ("ann", "OK")])
        self.assertEqual(self.ask("/submit", "ampd_" + "0" * 64, headers=dict(JSON), **cancel).status, 401)
        with open(os.path.join(self.ampd.state_dir, "audit.log")) as file:
            last = [json.loads(line) for line in file][-1]
        self.assertEqual((last["method"], last.get("user"), last["code"]), ("CreateJob", None, "UNAUTHENTICATED"))

    def test_a_browser_signs_in_and_out(self):
        ann = self.token("ann", "SUBMITTER")
        nobody = {"tokens": True, "signed_in": False, "user": "", "role": "", "may_change": False}
        self.assertEqual(self.ask("/session").json, nobody)
        for body, status in ((b'{"token": "ampd_0"}', 401), (b'{"token": 1}', 400), (b"{}", 400), (b'{"token": "a\\nb"}', 400)):
            answer = self.ask("/session", method="POST", headers=dict(JSON), body=body)
            self.assertEqual(answer.status, status, body)
            self.assertIsNone(answer.headers["Set-Cookie"])
        cookie, who = self.sign_in(ann["secret"])
        self.assertEqual(who, {"tokens": True, "signed_in": True, "user": "ann", "role": "SUBMITTER", "may_change": True})
        self.assertEqual(self.ask("/session", cookie=cookie).json, who)
        self.assertEqual(self.ask("/jobs", cookie=cookie).json["jobs"], [])
        self.assertEqual(self.ask("/jobs", cookie=cookie + "0").status, 401)
        # A page of another site has no cookie, but for old browsers its request is refused too.
        other = {"Origin": "http://evil.example", **JSON}
        self.assertEqual(self.ask("/session", cookie=cookie, method="DELETE", headers=other, body=b"").status, 403)
        out = self.ask("/session", cookie=cookie, method="DELETE", headers=dict(JSON), body=b"")
        self.assertEqual((out.status, out.json), (200, nobody))
        self.assertIn("Max-Age=0", out.headers["Set-Cookie"])
        self.assertEqual(self.ask("/jobs", cookie=cookie).status, 401)

    def test_a_revoked_token_ends_sessions_and_streams(self):
        ann = self.token("ann", "SUBMITTER")
        job_id = self.submit_as(ann["secret"], "anns")
        cookie, _ = self.sign_in(ann["secret"])
        streams = [Stream(self.ampd, "/api/v1" + path, {"Cookie": cookie, "Host": self.ampd.http_address})
                   for path in (f"/jobs/{job_id}/events?kinds=state_change", "/events")]
        for stream in streams:
            self.addCleanup(stream.close)
            self.assertEqual(stream.status, 200)
        eventually(lambda: self.ask("/jobs/" + job_id, cookie=cookie).json["state"] == "RUNNING", "the job's start")
        self.ctl("tokens", "revoke", ann["token"]["id"], "-o", "json")
        self.assertEqual(self.ask("/jobs", cookie=cookie).status, 401)
        for stream in streams:
            self.assertEqual(stream.until("failure")[-1][1]["code"], "UNAUTHENTICATED")
            self.assertIsNone(stream.next())
        for folder, _, names in os.walk(self.ampd.state_dir):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path):
                    for secret in (ann["secret"][5:], cookie.split("=")[1]):
                        self.assertNotIn(secret.encode(), certificates.read(path), path)

    def test_an_expired_token_ends_streams(self):
        ann = self.token("ann", "SUBMITTER", "--lifetime", "8s")
        job_id = self.submit_as(ann["secret"], "briefly")
        streams = [Stream(self.ampd, "/api/v1" + path, {"Authorization": "Bearer " + ann["secret"]})
                   for path in (f"/jobs/{job_id}/events?kinds=state_change", "/events")]
        for stream in streams:
            self.addCleanup(stream.close)
            self.assertEqual(stream.status, 200)
        for stream in streams:
            error = stream.until("failure")[-1][1]
            self.assertEqual(error["code"], "UNAUTHENTICATED")
            self.assertIn(" expired at ", error["message"])
            self.assertIsNone(stream.next())

    def test_a_daemon_that_stops_ends_streams_at_once(self):
        stream = Stream(self.ampd, "/api/v1/events", {"Authorization": "Bearer " + self.admin})
        self.addCleanup(stream.close)
        stream.until("reset")
        # Calls that begin while it ends.
        askers = [threading.Thread(target=self.ask_until_it_is_gone) for _ in range(8)]
        for asker in askers:
            asker.start()
        self.ampd.process.terminate()
        while stream.next() is not None:
            pass
        self.assertEqual(self.ampd.process.wait(timeout=DEADLINE), 0)
        for asker in askers:
            asker.join()

    def ask_until_it_is_gone(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                self.ask("/devices", self.admin)


class BeyondLoopbackTest(DaemonTest):
    def test_the_api_is_not_there_unless_that_is_accepted(self):
        for insecure, status in ((False, 403), (True, 200)):
            daemon = ampd_process.Daemon(config={"insecure": insecure})
            daemon.http_address = "0.0.0.0:0"
            self.daemons.append(daemon)
            daemon.start()
            daemon.http_address = daemon.http_address.replace("0.0.0.0", "127.0.0.1")
            self.assertEqual(ask(daemon, "/api/v1/jobs", host="gpu-vm").status, status)
            self.assertEqual(ask(daemon, "/api/v1/jobs", host="any.example").status, 403)
            self.assertEqual(ask(daemon, "/metrics").status, 200)


class CertificatesTest(DaemonTest):
    def test_who_needs_a_certificate_for_grpc_does_not_come_in_here_without(self):
        authority = certificates.Authority(os.path.join(self.folder, "authority"))
        certificate, key = authority.issue("server")
        os.chmod(key, 0o600)
        tls = {"certificate": certificate, "private_key": key, "client_ca": authority.certificate}
        token_file = os.path.join(self.folder, "admin.token")
        for auth, status in (({}, 403), ({"tokens": True, "init_admin_token": token_file}, 401)):
            daemon = self.daemon(config={"tls": tls, "auth": auth})
            self.assertEqual(ask(daemon, "/api/v1/jobs").status, status)
            self.assertEqual(ask(daemon, "/metrics").status, 200)
        secret = certificates.read(token_file).decode().strip()
        self.assertEqual(ask(daemon, "/api/v1/jobs", headers={"Authorization": "Bearer " + secret}).status, 200)


if __name__ == "__main__":
    ampd_process.main()
