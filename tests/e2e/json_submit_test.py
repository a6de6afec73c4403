"""Job files over HTTP at a real daemon: jobs and sweeps as `ampctl submit` makes them, once however often they are asked for, what is wrong
with its line, and who may."""

import json
import os
import urllib.parse

import ampd_process
from ampd.v1 import training_service_pb2 as api
from ampd_process import DaemonTest, OneDaemonTest, glyphs_job
from json_api_test import ask

YAML = {"Content-Type": "application/yaml"}


def submit(daemon, text, headers=None, **parameters):
    query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
    body = text if isinstance(text, bytes) else text.encode()
    return ask(daemon, "/api/v1/submit" + query, method="POST", headers={**YAML, **(headers or {})}, body=body)


class JsonSubmitTest(OneDaemonTest):
    def accepted(self, text, **parameters):
        answer = submit(self.ampd, text, **parameters)
        self.assertEqual(answer.status, 200, answer.bytes[:500])
        return answer.json

    def refused(self, text, status, code, **arguments):
        answer = submit(self.ampd, text, **arguments)
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.bytes[:500])
        return answer.json

    def jobs(self):
        return [job.id for job in self.ampd.api().ListJobs(api.ListJobsRequest(page_size=1000)).jobs]

    def test_a_job_file_makes_one_job_however_often_it_is_asked_for(self):
        text = "# A comment.\n" + json.dumps(glyphs_job("over-http", steps=2))
        before = self.jobs()
        checked = self.accepted(text, validate_only="true")["job"]
        self.assertEqual((checked["id"], checked["spec"]["name"]), ("", "over-http"))
        self.assertEqual([layer["name"] for layer in checked["plan"]["layers"]][:2], ["conv", "bn"])
        self.assertEqual(self.jobs(), before)
        job = self.accepted(text, request_id="once")["job"]
        for _ in range(3):
            self.assertEqual(self.accepted(text, request_id="once", validate_only="false")["job"]["id"], job["id"])
        self.refused(text.replace("over-http", "other"), 409, "ALREADY_EXISTS", request_id="once")
        self.assertEqual(sorted(self.jobs()), sorted(before + [job["id"]]))
        self.assert_state(self.ampd.wait(job["id"]), "SUCCEEDED")
        # What the API tells as a spec is taken again, and so is JSON by its own name.
        spec = ask(self.ampd, f"/api/v1/jobs/{job['id']}/spec?format=yaml").bytes
        again = self.accepted(spec)["job"]
        as_json = self.accepted(text.split("\n")[1], headers={"Content-Type": "application/json; charset=utf-8"})["job"]
        for other in (again, as_json):
            self.assertEqual(self.ampd.get(other["id"]).spec, self.ampd.get(job["id"]).spec)
        with open(os.path.join(self.ampd.state_dir, "audit.log")) as file:
            made = [line for line in map(json.loads, file) if line["method"] == "CreateJob" and line.get("made") == job["id"]]
        self.assertRegex(made[0]["peer"], r"^ipv4:127\.0\.0\.1:\d+$")

    def test_a_file_with_a_sweep_makes_one_sweep(self):
        spec = dict(glyphs_job("swept", steps=1), sweep={"grid": {"seed": [1, 2], "precision.mode": ["FP32", "BF16"]}})
        before = self.jobs()
        checked = self.accepted(json.dumps(spec), validate_only="true")["sweep"]
        self.assertEqual((checked["id"], checked["count"], checked["jobs"]), ("", 4, []))
        self.assertEqual(self.jobs(), before)
        sweep = self.accepted(json.dumps(spec), request_id="a-sweep")["sweep"]
        self.assertEqual(self.accepted(json.dumps(spec), request_id="a-sweep")["sweep"]["id"], sweep["id"])
        self.assertEqual(len(self.jobs()), len(before) + 4)
        values = [job["sweep"]["values"] for job in ask(self.ampd, f"/api/v1/sweeps/{sweep['id']}").json["jobs"]]
        self.assertEqual(values[1], {"seed": 2, "precision.mode": "FP32"})
        for job in sweep["jobs"]:
            self.assert_state(self.ampd.wait(job["id"]), "SUCCEEDED")
        other = self.accepted(json.dumps(dict(spec, name="other")))["sweep"]
        page = ask(self.ampd, "/api/v1/sweeps?page_size=1").json
        self.assertEqual([(one["id"], one["name"], one["count"]) for one in page["sweeps"]], [(other["id"], "other", 4)])
        page = ask(self.ampd, "/api/v1/sweeps?page_size=1&page_token=" + page["next_page_token"]).json
        self.assertEqual([(one["id"], one["states"]) for one in page["sweeps"]], [(sweep["id"], [{"state": "SUCCEEDED", "jobs": 4}])])
        for query in ("page_token=x", "page_size=1001", "states=RUNNING"):
            answer = ask(self.ampd, "/api/v1/sweeps?" + query)
            self.assertEqual((answer.status, answer.json["violations"][0]["field"]), (400, query.split("=")[0]))

    def violations(self, text):
        answer = self.refused(text, 400, "INVALID_ARGUMENT", request_id="wrong")
        return [(violation["field"], violation.get("line")) for violation in answer["violations"]]

    def test_what_is_wrong_is_told_with_its_line(self):
        before = self.jobs()
        job = json.dumps(glyphs_job("wrong")["model"])
        self.assertEqual(self.violations("name: a\ntrain:\n  batch_sise: 3\nmodle: {}\n"), [("train.batch_sise", 3), ("modle", 4)])
        self.assertEqual(self.violations("name: a\ntrain: [\n"), [("", 3)])
        self.assertEqual(self.violations("a: 1\n---\nb: 2\n"), [("", None)])
        text = f"name: wrong\nmodel: {job}\ndata: {{train: {{glyphs: {{samples: 64}}}}}}\ntrain:\n  steps: 1\n  batch_size: 0\n"
        self.assertEqual(self.violations(text), [("train.batch_size", 6)])
        # What only planning finds.
        text = text.replace("batch_size: 0", "batch_size: 8")
        text = text.replace('{"name": "pool", "max_pool": {"size": [2, 2]}}', '\n  {"name": "pool", "max_pool": {"size": [64, 64]}}\n ')
        self.assertEqual([line for _, line in self.violations(text)], [3])
        swept = json.dumps(glyphs_job("s"))[:-1] + ', "sweep":\n {"list": [\n {"train.steps": 1},\n {"train.steps": 0}]}}'
        self.assertEqual(self.violations(swept), [("sweep.list[1].train.steps", 4)])
        local = f"name: a\nmodel: {{onnx: {{path: ./net.onnx}}}}\ndata: {{train: {{glyphs: {{samples: 64}}}}}}\n"
        answer = self.refused(local, 400, "INVALID_ARGUMENT")
        self.assertEqual((answer["violations"][0]["field"], answer["violations"][0]["line"]), ("model.onnx.path", 2))
        self.assertIn("ampctl", answer["violations"][0]["description"])
        self.assertEqual(self.jobs(), before)

    def test_long_names_are_told_in_part_and_with_their_lines(self):
        """What is quoted leaves room for the rest of the answer."""
        long = "a" * 4000
        text = json.dumps(dict(glyphs_job("long"), start_from={"path": f"a/../{long}.safetensors"}), indent=1)
        line = 1 + next(i for i, line in enumerate(text.split("\n")) if long in line)
        answer = self.refused(text, 400, "INVALID_ARGUMENT")
        self.assertEqual([(one["field"], one["line"]) for one in answer["violations"]], [("start_from.path", line)])
        self.assertRegex(answer["violations"][0]["description"], r'^"a/\.\./a{195}\.\.\. \(3817 more bytes\)" \w+')
        for job in (dict(glyphs_job("long"), **{long: 1}), dict(glyphs_job("long"), sweep={"list": [{long[:1000]: 1}]}),
                    dict(glyphs_job("long"), sweep={"grid": {"labels.team": [long], "train.steps": [0]}}),
                    dict(glyphs_job("long"), labels={"team": long}), dict(glyphs_job("long"), start_from={"job_id": long})):
            answer = self.refused(json.dumps(job), 400, "INVALID_ARGUMENT")
            self.assertTrue(answer["violations"])
            self.assertLess(len(json.dumps(answer)), 3000)

    def test_hostile_files_get_clear_errors(self):
        levels = "\n".join(" " * i + "a:" for i in range(300))
        for text, status in (("[" * 60000, 400), (levels, 400), (b"\xff", 400), ("", 400), ("a", 400), ("&a {b: *a}", 400),
                             ("{a: " * 500, 400), (" " * 70000, 413), ("name: " + "a" * 60000, 400)):
            with self.subTest(text[:20]):
                answer = self.refused(text, status, "INVALID_ARGUMENT")
                self.assertLess(len(json.dumps(answer)), 4000)
        for parameters in ({"validate_only": "yes"}, {"nonsense": "1"}, {"request_id": "a" * 201}):
            self.refused(json.dumps(glyphs_job()), 400, "INVALID_ARGUMENT", **parameters)
        # What a page of another site can send without being asked about, and what it cannot hide.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", "text/yaml", ""):
            self.refused("name: a", 415, "INVALID_ARGUMENT", headers={"Content-Type": kind})
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            self.refused(json.dumps(glyphs_job()), 403, "PERMISSION_DENIED", headers=headers)
        # YAML is taken here alone.
        cancel = ask(self.ampd, "/api/v1/jobs/aaaa/cancel", method="POST", headers=YAML, body=b"{}")
        self.assertEqual(cancel.status, 415)
        self.assertEqual(ask(self.ampd, "/api/v1/submit").headers["Allow"], "POST")
        self.assert_healthy(self.ampd)


class SubmitRightsTest(DaemonTest):
    def test_who_may_submit_over_grpc_may_here(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})

        def token(user, role):
            result = ampd.ctl("--token-file", admin_file, "tokens", "create", "--user", user, "--role", role, "-o", "json")
            return {"Authorization": "Bearer " + json.loads(result.stdout)["secret"]}

        ann, bob, viewer = token("ann", "SUBMITTER"), token("bob", "SUBMITTER"), token("ann", "VIEWER")
        text = json.dumps(glyphs_job("hers", steps=1))
        for headers, status in (({}, 401), (viewer, 403)):
            for parameters in ({}, {"validate_only": "true"}):
                self.assertEqual(submit(ampd, text, headers=headers, **parameters).status, status)
        job = submit(ampd, text, headers=ann, request_id="one").json["job"]
        self.assertEqual(job["user"], "ann")
        # Requests are told apart by user.
        self.assertNotEqual(submit(ampd, text, headers=bob, request_id="one").json["job"]["id"], job["id"])
        self.assertEqual(ask(ampd, "/api/v1/jobs/" + job["id"], headers=bob).status, 404)


if __name__ == "__main__":
    ampd_process.main()
