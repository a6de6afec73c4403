"""The page's Profile tab, in a real browser: a running job is profiled from there, and what is shown are the event's figures."""

import os
import unittest

import ampd_process
import browser as browser_module
from ampd_process import glyphs_job
from ampd.v1 import auth_pb2, job_pb2, training_service_pb2 as api

MISSING = browser_module.missing()
ENDLESS = 1000000
ROWS = "return Array.from(document.querySelectorAll('.profile tbody tr'), (tr) => Array.from(tr.cells, (td) => td.textContent.trim()));"
ASK = "#panel > .toolbar > button"


@unittest.skipIf(MISSING, MISSING)
class WebProfileTest(browser_module.PageTest):
    def rows(self):
        return self.browser.js(ROWS)

    def test_a_running_job_is_profiled_and_its_figures_are_the_events(self):
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("profiled", steps=ENDLESS)).id
        ampd.wait_for_step(job, 3)
        self.open(ampd, f"#/jobs/{job}/profile")
        page = self.browser
        page.until_text("#panel", "No profile yet.")
        page.click(ASK)
        page.until("return document.querySelectorAll('.profile tbody tr').length > 3;", "the profile's rows")
        page.until_text("#panel .note", "timed by the host")
        shown = {row[0]: row for row in self.rows()}
        self.assertIn("update", shown)
        total = sum(float(row[2].rstrip("%")) for row in self.rows())
        self.assertAlmostEqual(total, 100, delta=len(shown) * 0.05 + 0.1)
        # Sums by stage are those of the rows.
        page.js("const by = document.getElementById('profile-by'); by.value = 'stage'; by.dispatchEvent(new Event('change'));")
        stages = [row[0] for row in self.rows()]
        self.assertTrue({"forward", "backward", "update"} <= set(stages), stages)
        page.js("const by = document.getElementById('profile-by'); by.value = 'kernel'; by.dispatchEvent(new Event('change'));")
        page.until_text(".profile", "CUPTI")
        # Another is shown at once, and the first can be looked at again.
        page.click(ASK)
        page.until("return document.querySelectorAll('#profile-steps option').length === 2;", "the second profile")
        ampd.ctl("cancel", job, "--now")
        ampd.wait(job)
        page.until(f"return document.querySelector('{ASK}').hidden;", "the button to go with the job's end")
        profiles = [e.step_profile for e in ampd.events(job) if e.HasField("step_profile")]
        self.assertEqual([p.last_step - p.first_step for p in profiles], [19, 19])
        by_name = {part.name: part for part in profiles[0].parts}
        milliseconds = by_name["update"].seconds / 20 * 1e3
        said = shown["update"][1].split()
        self.assertAlmostEqual(float(said[0]) * {"s": 1e3, "ms": 1, "\u00b5s": 1e-3}[said[1]], milliseconds, delta=milliseconds * 0.01)

    def test_who_may_not_change_the_job_sees_profiles_alone(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})
        with open(admin_file) as file:
            admin = (("authorization", f"Bearer {file.read().strip()}"),)
        secrets = {role: ampd.api().CreateToken(auth_pb2.CreateTokenRequest(user="ann", role=role), metadata=admin).secret
                   for role in ("VIEWER", "SUBMITTER")}
        hers = (("authorization", f"Bearer {secrets['SUBMITTER']}"),)
        spec = job_pb2.JobSpec()
        ampd_process.json_format.ParseDict(glyphs_job("guarded", steps=ENDLESS), spec)
        job = ampd.api().CreateJob(api.CreateJobRequest(spec=spec), metadata=hers)
        self.expected.append("Failed to load resource")
        self.open(ampd, f"#/jobs/{job.id}/profile")
        page = self.browser
        page.until("return document.querySelector('dialog #token') !== null;", "the form")
        self.sign_in(secrets["VIEWER"])
        page.until_text("#panel", "No profile yet. A running job can be profiled")
        self.assertTrue(page.js(f"return document.querySelector('{ASK}').hidden;"))
        profile = ampd.api().ProfileJob(api.ProfileJobRequest(job_id=job.id, steps=3), metadata=hers)
        page.until("return document.querySelectorAll('.profile tbody tr').length > 3;", "hers")
        self.assertEqual(profile.last_step - profile.first_step, 2)
        self.assertTrue(page.js(f"return document.querySelector('{ASK}').hidden;"))


if __name__ == "__main__":
    ampd_process.main()
