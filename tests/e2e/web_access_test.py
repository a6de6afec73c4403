"""The web page and the server it talks to: who asks, what is refused, sessions that end, and a server that goes away."""

import os
import unittest

import ampd_process
import browser as browser_module
from ampd_process import glyphs_job
from ampd.v1 import auth_pb2, job_pb2, training_service_pb2 as api

MISSING = browser_module.missing()


def endless_job(name):
    """Trains until it is stopped, and reports ten times a second."""
    return glyphs_job(name, steps=10000000, report={})


@unittest.skipIf(MISSING, MISSING)
class WebAccessTest(browser_module.PageTest):
    def test_who_is_not_signed_in_sees_nothing_and_a_viewer_changes_nothing(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})
        with open(admin_file) as file:
            admin = file.read().strip()
        metadata = (("authorization", f"Bearer {admin}"),)
        viewer = ampd.api().CreateToken(auth_pb2.CreateTokenRequest(user="ann", role="VIEWER"), metadata=metadata).secret
        spec = job_pb2.JobSpec()
        ampd_process.json_format.ParseDict(endless_job("secret"), spec)
        job = ampd.api().CreateJob(api.CreateJobRequest(spec=spec), metadata=metadata)
        self.expected.append("Failed to load resource")
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelector('dialog #token') !== null;", "the form")
        self.assertNotIn("secret", page.text("main"))
        self.sign_in("ampd_" + "0" * 64)
        page.until("return document.querySelector('.problem').innerText !== '';", "a refusal")
        self.sign_in(viewer)
        page.until("return document.querySelector('dialog') === null;", "signed in")
        page.until_text("#sign-in", "ann")
        page.until_text("table.jobs + .empty", "No jobs")
        page.click("#sign-in")
        page.until("return document.querySelector('dialog #token') !== null;", "the form again")
        self.sign_in(admin)
        page.until_text(self.row(job), "secret")
        page.js("location.hash = arguments[0];", f"#/jobs/{job.id}")
        page.click("button[data-verb=pause]")
        page.until_text("#job-state", "PAUSED")
        page.click("button[data-verb=cancel]")
        page.click("dialog button.danger")
        page.until_text("#job-state", "CANCELLED")
        # The token is nowhere where a script could read it.
        kept = page.js("return JSON.stringify([localStorage, sessionStorage, document.cookie]);")
        self.assertNotIn(admin, kept)

    def test_a_viewer_has_no_buttons(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})
        with open(admin_file) as file:
            metadata = (("authorization", f"Bearer {file.read().strip()}"),)
        secrets = {role: ampd.api().CreateToken(auth_pb2.CreateTokenRequest(user="ann", role=role), metadata=metadata).secret
                   for role in ("VIEWER", "SUBMITTER")}
        spec = job_pb2.JobSpec()
        ampd_process.json_format.ParseDict(endless_job("hers"), spec)
        hers = (("authorization", f"Bearer {secrets['SUBMITTER']}"),)
        job = ampd.api().CreateJob(api.CreateJobRequest(spec=spec), metadata=hers)
        self.expected.append("Failed to load resource")
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        for role, buttons in (("VIEWER", 0), ("SUBMITTER", 2)):
            page.until("return document.querySelector('dialog #token') !== null;", "the form")
            self.sign_in(secrets[role])
            page.until_text("#job-state", "RUNNING")
            page.until("const n = document.querySelectorAll('.actions button').length; return arguments[0] === 0 ? n === 0 : n >= arguments[0];",
                       f"{role}'s buttons", buttons)
            page.click("#sign-in")

    def test_a_lost_server_is_told_of_and_found_again(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("before", steps=3))
        self.open(ampd)
        page = self.browser
        page.until_text(f"{self.row(job)} .state", "SUCCEEDED")
        self.expected += ["Failed to load resource", "net::ERR_"]
        ampd.kill()
        page.until_text("#lost", "No connection")
        page.until_text("#live", "offline")
        ampd.start()
        page.until("return document.getElementById('lost').hidden;", "the connection is back")
        after = ampd.run(glyphs_job("after", steps=3))
        page.until_text(f"{self.row(after)} .state", "SUCCEEDED")
        self.assert_never_reloaded()

    def test_a_job_is_followed_again_after_signing_in_again(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})
        with open(admin_file) as file:
            admin = file.read().strip()
        metadata = (("authorization", f"Bearer {admin}"),)
        spec = job_pb2.JobSpec()
        ampd_process.json_format.ParseDict(endless_job("followed"), spec)
        job = ampd.api().CreateJob(api.CreateJobRequest(spec=spec), metadata=metadata)
        self.expected += ["Failed to load resource", "net::ERR_"]
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until("return document.querySelector('dialog #token') !== null;", "the form")
        self.sign_in(admin)
        page.until_text("#job-state", "RUNNING")
        step = r"""
            const step = document.querySelector('.job-head .facts')?.innerText.match(/Step\s*(\d[\d\s]*) \//);
            return (step ? Number(step[1].replace(/\D/g, '')) : 0)"""
        page.until(step + ";", "a step")
        # Sessions end with the daemon; the worker goes on.
        ampd.kill()
        ampd.start()
        page.until("return document.querySelector('dialog #token') !== null;", "the form again")
        self.sign_in(admin)
        page.until("const e = document.querySelector('.job-head [role=alert]'); return e && e.hidden;", "the refusal to go")
        page.until(step + " > arguments[0];", "later steps", page.js(step + ";"))
        self.assert_never_reloaded()

    def test_what_the_server_refuses_is_told_in_its_words(self):
        ampd = self.daemon()
        port = ampd.http_address.rsplit(":", 1)[1]
        self.origins.add(f"myhost.localhost:{port}")
        self.expected.append("Failed to load resource")
        page = self.browser
        page.open(f"http://myhost.localhost:{port}/")
        page.until_text("main [role=alert]", "without tokens the API is there for localhost and loopback addresses alone")
        self.assertEqual(page.count("#lost"), 0, "the server is there")
        page.js("document.querySelector('main [role=alert]').remove();")
        page.click("main button")
        page.until_text("main [role=alert]", "without tokens")


if __name__ == "__main__":
    ampd_process.main()
