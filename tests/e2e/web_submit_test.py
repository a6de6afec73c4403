"""Jobs submitted from the web page, in a real browser: written, checked, opened from files, made from other jobs, queued once, and sweeps."""

import json
import os
import unittest

import ampd_process
import browser as browser_module
from ampd_process import eventually, glyphs_job, state_name
from ampd.v1 import auth_pb2, job_pb2, training_service_pb2 as api

MISSING = browser_module.missing()
HOSTILE = '<img src=x onerror="window.broken=1">'
EDITOR = "#job-file"
STARTED = f"const e = document.querySelector('{EDITOR}'); return e && e.value.length > 100;"


@unittest.skipIf(MISSING, MISSING)
class WebSubmitTest(browser_module.PageTest):
    def jobs(self, ampd):
        return list(ampd.api().ListJobs(api.ListJobsRequest()).jobs)

    def text(self):
        return self.browser.js(f"return document.querySelector('{EDITOR}').value;")

    def write(self, spec):
        """Puts a job file in place of the text, as a person who pastes it."""
        text = spec if isinstance(spec, str) else json.dumps(spec)
        self.browser.until(f"const e = document.querySelector('{EDITOR}'); return e && e.value !== '';", "the editor")
        self.browser.js(f"const e = document.querySelector('{EDITOR}'); e.focus(); e.select(); document.execCommand('insertText', false, arguments[0]);",
                        text)

    def until_job(self):
        """The id of the job whose page is shown."""
        shown = "return document.getElementById('job-state') && location.hash.match(/^#.jobs.([0-9a-z]{26})/);"
        return self.browser.until(shown, "the job's page")[1]

    def lose_answers(self, count):
        """The next answers to submits do not reach the page."""
        self.browser.js("""
            const real = window.fetch;
            let left = arguments[0];
            window.fetch = async (url, options) => {
              const answer = await real(url, options);
              if (String(url).includes('/submit') && left-- > 0) throw new TypeError('lost');
              return answer;
            };""", count)

    def test_the_starter_is_checked_and_submitted_by_keys_alone(self):
        from selenium.webdriver.common.keys import Keys
        ampd = self.daemon()
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelector('.jobs') !== null;", "the list")
        page.press("n")
        page.until(STARTED, "the starter")
        page.until(f"return document.activeElement === document.querySelector('{EDITOR}');", "focus")
        starter = self.text()
        self.assertIn("#priority", starter)
        # Keys of the page are letters here; the line goes on with the indentation of the one before.
        page.press("n", "ENTER", "t")
        self.assertEqual(self.text(), "n\nt" + starter)
        page.js(f"const e = document.querySelector('{EDITOR}'); const at = e.value.indexOf('layers:') + 7; e.setSelectionRange(at, at);")
        page.press("ENTER", "#", "x", "ENTER", "y")
        self.assertIn("  layers:\n    #x\n    y\n", self.text())
        page.click(".new-job .toolbar button:nth-of-type(2)")
        self.assertEqual(self.text(), starter)
        page.js(f"document.querySelector('{EDITOR}').focus();")
        page.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": "Enter", "code": "Enter", "modifiers": 2, "windowsVirtualKeyCode": 13})
        page.until_text("#result", "Valid: my-job. Nothing was submitted.")
        self.assertEqual(page.count("#result tbody tr"), 5)
        self.assertIn("conv2d", page.text("#result"))
        self.assertEqual(self.jobs(ampd), [])
        # Tab leads out of the text and leaves it as it is, to what was found, and back to the buttons.
        page.press("TAB")
        self.assertEqual((page.js("return document.activeElement.closest('#result') !== null;"), self.text()), (True, starter))
        page.driver.switch_to.active_element.send_keys(Keys.SHIFT + Keys.TAB + Keys.TAB)
        self.assertEqual(page.js("return document.activeElement.id;"), "submit")
        page.press("ENTER")
        job_id = self.until_job()
        self.assertEqual([job.id for job in self.jobs(ampd)], [job_id])
        self.assertEqual(ampd.get(job_id).spec.name, "my-job")
        self.assert_never_reloaded()

    def hold_answers(self):
        """Answers to submits reach the page once release() is called; window.submits counts what it sent."""
        self.browser.js("""
            const real = window.fetch;
            const released = new Promise((release) => { window.release = release; });
            window.submits = 0;
            window.fetch = async (url, options) => {
              if (String(url).includes('/submit')) ++window.submits;
              const answer = await real(url, options);
              if (String(url).includes('/submit')) await released;
              return answer;
            };""")

    def release(self):
        self.browser.js("window.release();")

    def names(self, ampd):
        return sorted(job.spec.name for job in self.jobs(ampd))

    def disabled(self):
        return self.browser.js("return ['check', 'submit'].map((id) => document.getElementById(id).disabled);")

    def test_what_is_written_while_a_submit_is_under_way_stays(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        self.write(glyphs_job("sent", steps=1))
        self.hold_answers()
        page.click("#submit")
        page.until_text("#result", "Submitting")
        self.assertEqual(self.disabled(), [True, True])
        self.write(glyphs_job("written-since", steps=1))
        # Nothing more is sent before the answer, whatever is pressed.
        page.js("document.getElementById('submit').click();")
        page.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": "Enter", "code": "Enter", "modifiers": 2, "windowsVirtualKeyCode": 13})
        eventually(lambda: self.names(ampd) == ["sent"], "the job")
        self.assertEqual((page.text("#result"), page.js("return window.submits;")), ("Submitting …", 1))
        self.release()
        page.until_text("h1", "sent")
        page.press("n")
        page.until_text("h1", "New job")
        page.until(STARTED, "the draft")
        self.assertEqual(json.loads(self.text())["name"], "written-since")
        self.assertEqual(self.disabled(), [False, False])
        page.click("#submit")
        page.until_text("h1", "written-since")
        self.assertEqual(self.names(ampd), ["sent", "written-since"])
        page.press("n")
        page.until_text("h1", "New job")
        page.until(STARTED, "the starter")
        self.assertIn("my-job", self.text())
        self.assert_never_reloaded()

    def test_lines_of_another_text_are_not_marked(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/new")
        page = self.browser
        page.until(STARTED, "the starter")
        wrong = self.text().replace("batch_size: 64", "batch_size: 0")
        self.write(wrong)
        self.hold_answers()
        page.click("#submit")
        page.until_text("#result", "Submitting")
        self.write("# One more line.\n" + wrong)
        self.release()
        page.until_text("#result", "train.batch_size")
        self.assertEqual(page.count(".numbers .wrong"), 0)
        self.check()
        page.until("return document.querySelectorAll('.numbers .wrong').length === 1;", "a mark on its line")

    def test_who_leaves_the_page_has_the_job_all_the_same(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        self.write(glyphs_job("left", steps=1))
        self.hold_answers()
        page.click("#submit")
        page.until_text("#result", "Submitting")
        page.js("document.activeElement.blur();")
        page.press("u")
        page.until("return document.querySelector('table.jobs') !== null;", "the list")
        self.release()
        page.until("return sessionStorage.getItem('ampd.draft') === null;", "the end of the draft")
        (job,) = self.jobs(ampd)
        page.until_text(self.row(job), "left")
        self.assertEqual(page.js("return location.hash;"), "#/", "nobody is taken away from the page")
        page.press("n")
        page.until(STARTED, "the starter")
        self.assertIn("my-job", self.text())
        # The same text once more is another job.
        self.write(glyphs_job("left", steps=1))
        page.click("#submit")
        self.assertNotEqual(self.until_job(), job.id)
        self.assertEqual(self.names(ampd), ["left", "left"])

    def test_an_answer_that_says_nothing_of_the_job_is_asked_for_again(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        for status in (503, 504):
            name = f"told-{status}"
            self.write(glyphs_job(name, steps=1))
            page.js("""
                const real = window.fetch;
                window.ids = [];
                window.fetch = async (url, options) => {
                  const answer = await real(url, options);
                  if (!String(url).includes('/submit')) return answer;
                  window.ids.push(new URL(url, location.href).searchParams.get('request_id'));
                  if (window.ids.length > 1) return answer;
                  return new Response(JSON.stringify({code: 'UNAVAILABLE', message: 'not now'}), {status: arguments[0]});
                };""".replace("arguments[0]", str(status)))
            page.click("#submit")
            page.until_text("#result .error", "not now Submit again once it can: that makes no second job.")
            self.assertEqual(self.disabled(), [False, False])
            page.click("#submit")
            page.until_text("h1", name)
            ids = page.js("return window.ids;")
            self.assertEqual((len(ids), len(set(ids))), (2, 1))
            self.assertEqual(self.names(ampd).count(name), 1)
            # Without what was put before fetch().
            self.open(ampd, "#/new")

    def test_a_spec_that_cannot_be_read_is_read_again(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("found", steps=1))
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelector('table.jobs') !== null;", "the list")
        page.js("""
            const real = window.fetch;
            window.away = true;
            window.fetch = async (url, options) => {
              if (window.away && String(url).includes('/spec')) throw new TypeError('away');
              return real(url, options);
            };""")
        page.js("location.hash = arguments[0];", f"#/new?from={job.id}")
        page.until_text("main .notice.error", "cannot be reached")
        self.assertEqual(self.disabled(), [True, True])
        self.assertEqual(page.js(f"const e = document.querySelector('{EDITOR}'); return [e.value, e.readOnly];"), ["", True])
        page.js("window.away = false;")
        page.until(STARTED, "the spec")
        self.assertIn("name: found", self.text())
        self.assertEqual(self.disabled(), [False, False])
        self.assertEqual(page.count("main .notice.error"), 0)
        self.assertFalse(page.js(f"return document.querySelector('{EDITOR}').readOnly;"))

    def test_a_double_click_and_a_lost_answer_make_one_job(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/new")
        page = self.browser
        self.write(glyphs_job("once", steps=1))
        self.lose_answers(1)
        page.js("const b = document.getElementById('submit'); b.click(); b.click();")
        page.until_text("#result", "makes no second job")
        self.assertEqual(len(self.jobs(ampd)), 1)
        # Also after the page was loaded anew.
        self.open(ampd, "#/new")
        page.until(STARTED, "the draft")
        self.assertEqual(json.loads(self.text())["name"], "once")
        page.js("const b = document.getElementById('submit'); b.click(); b.click();")
        job_id = self.until_job()
        self.assertEqual([job.id for job in self.jobs(ampd)], [job_id])
        # Asked for once more on purpose it is another job, and the text that was submitted is no draft any more.
        page.press("n")
        page.until_text("h1", "New job")
        page.until(STARTED, "the starter")
        self.assertIn("my-job", self.text())
        self.write(glyphs_job("once", steps=1))
        page.click("#submit")
        page.until("const id = location.hash.match(/^#.jobs.([0-9a-z]{26})/); return id && id[1] !== arguments[0];", "another job", job_id)
        self.assertEqual([job.spec.name for job in self.jobs(ampd)], ["once", "once"])

    def lines(self):
        return self.browser.js("return [...document.querySelectorAll('.violations li')].map((li) => "
                               "[Number((li.querySelector('button') || {dataset: {}}).dataset.line) || 0, li.querySelector('span').innerText]);")

    def check(self):
        self.browser.click("#check")
        self.browser.until("return document.querySelector('#result .notice') !== null;", "an answer")

    def test_what_is_wrong_stands_beside_the_text_with_its_line(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/new")
        page = self.browser
        page.until(STARTED, "the starter")
        starter = self.text()
        self.write(starter.replace("batch_size: 64", "batch_sise: 64").replace("name: my-job", f"nane: '{HOSTILE}'"))
        self.check()
        at = {key: 1 + next(i for i, line in enumerate(self.text().split("\n")) if key in line) for key in ("nane", "batch_sise")}
        (name, name_text), (batch, batch_text) = self.lines()
        self.assertEqual((name, batch), (at["nane"], at["batch_sise"]))
        self.assertIn("did you mean batch_size?", batch_text)
        self.assertIn("nane", name_text)
        self.assertEqual(page.js("return [...document.querySelectorAll('.numbers .wrong')].map((e) => Number(e.innerText));"),
                         [at["nane"], at["batch_sise"]])
        page.click(f".violations button[data-line='{batch}']")
        selected = page.js(f"const e = document.querySelector('{EDITOR}'); return e.value.slice(e.selectionStart, e.selectionEnd);")
        self.assertEqual(selected, "  batch_sise: 64")
        # What the server finds in a file whose fields are all known; then what it finds in a point of a sweep, and no YAML at all.
        for text, field, line in (
                (starter.replace("batch_size: 64", "batch_size: 0"), "train.batch_size", "batch_size"),
                (starter + "sweep:\n  list:\n    - {seed: 1}\n    - {train.batch_size: 0}\n", "sweep.list[1].train.batch_size", "train.batch_size"),
                (starter + "model: {onnx: {path: ./a.onnx}}\n", "model", "onnx"),
                (starter + "}", "", "}")):
            self.write(text)
            self.assertEqual(page.count(".numbers .wrong"), 0, "marks of the text before")
            self.check()
            [(number, words)] = self.lines()
            self.assertIn(line, self.text().split("\n")[number - 1])
            self.assertIn(field, words)
        self.write(dict(glyphs_job("local"), model={"onnx": {"path": f"./{HOSTILE}.onnx"}}))
        self.check()
        self.assertIn("submit with ampctl", self.lines()[0][1])
        self.assertIn("<img src=x", self.lines()[0][1])
        page.click("#submit")
        page.until_text("#result", "submit with ampctl")
        self.assertEqual(self.jobs(ampd), [])
        self.assertIsNone(page.js("return window.broken || null;"), "text became HTML")

    def test_what_is_odd_about_a_job_is_told(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        warnings = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText);"
        slow = {"adamw": {"learning_rate": 0.002}, "schedule": {"cosine": {"warmup_steps": 500}}}
        self.write(glyphs_job("odd", steps=4, optimizer=slow))
        self.check()
        self.assertIn("Valid: odd.", page.text("#result .notice"))
        [warning] = page.js(warnings, "#result .warning")
        self.assertRegex(warning, r"^Warning: optimizer\.schedule\.cosine\.warmup_steps: is 500, and the job takes 4 steps")
        self.write(dict(glyphs_job("swept", steps=4, optimizer=slow), sweep={"grid": {"seed": [1, 2]}}))
        self.check()
        self.assertEqual(page.js(warnings, "#result .warning"), [warning])
        self.write(glyphs_job("even", steps=4))
        self.check()
        self.assertEqual(page.js(warnings, "#result .warning"), [])
        # It is told beside the plan, too, once it is a job.
        self.write(glyphs_job("odd", steps=4, optimizer=slow))
        page.click("#submit")
        self.open(ampd, f"#/jobs/{self.until_job()}/plan")
        page.until_text("#panel .warning", warning)
        self.assertEqual(self.jobs(ampd)[0].plan.warnings, [warning.removeprefix("Warning: ")])

    def test_mistakes_that_are_not_listed_are_counted(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/new")
        layers = [{"name": f"layer{i}", "dense": {"units": 0}} for i in range(150)]
        self.write(dict(glyphs_job("many"), model={"layers": layers, "loss": {"softmax_cross_entropy": {}}}))
        self.check()
        self.assertEqual(self.browser.text("#result .notice"), "150 things are wrong with the job:")
        lines = self.lines()
        self.assertIn("model.layers[0].dense.units", lines[0][1])
        self.assertEqual(lines[-1], [0, f"and {150 - (len(lines) - 1)} more"])

    def test_files_are_opened_from_the_disk_and_dropped(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        page.until(STARTED, "the starter")
        starter = self.text()
        spec = json.dumps(glyphs_job("picked"), indent=1)
        picker = page.driver.find_element("css selector", "input[type=file]")
        picker.send_keys(self.job_file(spec, "picked.yaml"))
        page.until(f"return document.querySelector('{EDITOR}').value === arguments[0];", "the file", spec)
        # The browser's own undo brings back what was there.
        page.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": "z", "code": "KeyZ", "modifiers": 2, "commands": ["undo"]})
        page.until(f"return document.querySelector('{EDITOR}').value === arguments[0];", "the starter again", starter)
        for name, content, told in (("large.yaml", "#" * 65537, "64 KiB"), ("model.onnx", b"\xff\xfe\x00", "no text (UTF-8)")):
            path = os.path.join(self.folder, name)
            with open(path, "wb") as file:
                file.write(content if isinstance(content, bytes) else content.encode())
            picker.send_keys(path)
            page.until_text("main .notice.error", told)
            self.assertEqual(self.text(), starter)
        drop = """
            const files = new DataTransfer();
            files.items.add(new File([arguments[0]], 'dropped.yaml'));
            const event = new DragEvent('drop', {dataTransfer: files, bubbles: true, cancelable: true});
            document.querySelector('footer, main').dispatchEvent(event);
            return event.defaultPrevented;"""
        self.assertTrue(page.js(drop, "name: dropped\n"), "the browser would show the file in place of the page")
        page.until(f"return document.querySelector('{EDITOR}').value === 'name: dropped\\n';", "the dropped file")
        page.until("return document.querySelector('main .notice.error').hidden;", "nothing is wrong any more")
        # Words that are dragged stay with the browser.
        self.assertFalse(page.js("const event = new DragEvent('drop', {dataTransfer: new DataTransfer(), bubbles: true, cancelable: true}); "
                                 "document.querySelector('main').dispatchEvent(event); return event.defaultPrevented;"))
        self.write("#" * 65537)
        page.click("#submit")
        page.until_text("main .notice.error", "ampctl submit")

    def test_a_job_is_edited_and_submitted_again(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("first", steps=2, labels={"team": HOSTILE}))
        self.open(ampd, f"#/jobs/{job.id}/spec")
        page = self.browser
        page.until_text("#spec", "first")
        page.click(f"a[href='#/new?from={job.id}']")
        page.until(STARTED, "the editor")
        spec = self.text()
        self.assertEqual(spec, ampd.http(f"/api/v1/jobs/{job.id}/spec?format=yaml")[1])
        self.write(spec.replace("name: first", "name: second"))
        # What was written outlives a look at another page and a reload.
        page.js("document.activeElement.blur();")
        page.press("u")
        page.until("return document.querySelector('table.jobs') !== null;", "the list")
        self.open(ampd, f"#/new?from={job.id}")
        page.until(STARTED, "the editor")
        self.assertIn("name: second", self.text())
        page.click("#submit")
        page.until_text("h1", "second")
        second = ampd.wait(self.until_job())
        expected = job_pb2.JobSpec()
        expected.CopyFrom(ampd.get(job.id).spec)
        expected.name = "second"
        self.assertEqual(second.spec, expected)
        self.assertIsNone(page.js("return window.broken || null;"), "text became HTML")

    def test_a_sweep_is_submitted_and_shown(self):
        ampd = self.daemon()
        self.open(ampd, "#/new")
        page = self.browser
        spec = dict(glyphs_job("swept", steps=3), sweep={"grid": {"seed": [7, 8], "labels.team": [HOSTILE]}})
        self.write(spec)
        self.check()
        self.assertIn("Valid: a sweep of 2 jobs", page.text("#result"))
        self.assertEqual(self.jobs(ampd), [])
        page.click("#submit")
        page.until("return location.hash.startsWith('#/sweeps/') && document.querySelectorAll('table.sweep tbody tr').length === 2;", "the sweep")
        self.assertEqual(page.js("return [...document.querySelectorAll('table.sweep thead th')].slice(0, 4).map((th) => th.innerText);"),
                         ["#", "team", "seed", "State"])
        self.assertEqual(len(self.jobs(ampd)), 2)
        page.until_text("#sweep-counts", "2 SUCCEEDED")
        for job in self.jobs(ampd):
            page.until_text(self.row(job), "SUCCEEDED")
            cells = page.js("return [...document.querySelector(arguments[0]).cells].map((td) => td.innerText);", self.row(job))
            self.assertEqual(cells[:5], [str(job.sweep.index), HOSTILE, str(6 + job.sweep.index), "SUCCEEDED", "3 / 3"])
        page.click(f"{self.row(job)} a")
        page.until_text("h1", "swept")
        page.until_text(".job-head .facts", f"{job.sweep.index} of 2")
        page.click(".job-head a[href^='#/sweeps/']")
        page.until("return document.querySelectorAll('table.sweep tbody tr').length === 2;", "the sweep again")
        self.assertIsNone(page.js("return window.broken || null;"), "text became HTML")
        # Sweeps are found again, and a new one comes by itself.
        page.press("s")
        page.until_text("table.sweeps tbody tr:first-child", "2 SUCCEEDED")
        request = api.CreateSweepRequest()
        ampd_process.json_format.ParseDict(dict(glyphs_job("other", steps=1), sweep={"grid": {"seed": [1, 2, 3]}}), request.spec)
        sweep = ampd.api().CreateSweep(request)
        page.until_text(f"tr[data-sweep='{sweep.id}']", "3 SUCCEEDED")
        self.assertEqual(page.js("return [...document.querySelectorAll('table.sweeps tbody .name')].map((a) => a.innerText);"), ["other", "swept"])
        page.click(f"tr[data-sweep='{sweep.id}'] a")
        page.until("return document.querySelectorAll('table.sweep tbody tr').length === 3;", "its jobs")
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/sweeps/01m0000000000000000000000")
        page.until_text("main [role=alert]", "01m0000000000000000000000")

    def test_sweeps_that_came_while_nobody_looked_are_there(self):
        ampd = self.daemon()

        def sweep(name):
            request = api.CreateSweepRequest()
            waits = dict(glyphs_job(name, steps=1), not_before="2100-01-01T00:00:00Z", sweep={"grid": {"seed": [1]}})
            ampd_process.json_format.ParseDict(waits, request.spec)
            return ampd.api().CreateSweep(request)

        oldest = [sweep(name) for name in "abc"][0]
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelector('table.jobs') !== null;", "the list")
        # Pages of two.
        page.js("const real = window.fetch; "
                "window.fetch = (url, options) => real(String(url).replace('/sweeps?page_size=50', '/sweeps?page_size=2'), options);")
        page.js("location.hash = '#/sweeps';")
        shown = "return [...document.querySelectorAll('table.sweeps tbody .name')].map((a) => a.innerText).join('') === arguments[0];"
        page.until(shown, "the newest", "cb")
        page.click("p.more button")
        page.until(shown, "all", "cba")
        self.assertEqual(page.count("p.more button"), 0)
        look = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments[0]}); document.dispatchEvent(new Event('visibilitychange'));"
        page.js("const hidden = arguments[0]; " + look.replace("arguments[0]", "hidden"), True)
        for name in "defgh":
            sweep(name)
        ampd.api().CancelSweep(api.CancelSweepRequest(sweep_id=oldest.id))
        page.js("const hidden = arguments[0]; " + look.replace("arguments[0]", "hidden"), False)
        page.until(shown, "what came meanwhile, without a gap", "hgfedcba")
        page.until_text(f"tr[data-sweep='{oldest.id}']", "1 CANCELLED")
        # More than a page at once, while somebody looks.
        for name in "ijkl":
            sweep(name)
        page.until(shown, "the new ones", "lkjihgfedcba")

    def test_a_viewer_submits_nothing(self):
        admin_file = os.path.join(self.folder, "admin.token")
        ampd = self.daemon(config={"auth": {"tokens": True, "init_admin_token": admin_file}})
        with open(admin_file) as file:
            metadata = (("authorization", f"Bearer {file.read().strip()}"),)
        viewer, submitter, bob = (ampd.api().CreateToken(auth_pb2.CreateTokenRequest(user=user, role=role), metadata=metadata).secret
                                  for user, role in (("ann", "VIEWER"), ("ann", "SUBMITTER"), ("bob", "SUBMITTER")))
        self.expected.append("Failed to load resource")
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelector('dialog #token') !== null;", "the form")
        self.sign_in(viewer)
        page.until_text("table.jobs + .empty", "No jobs")
        self.assertEqual(page.count("#new-job"), 0)
        page.press("n")
        self.assertEqual(page.js("return location.hash;"), "")
        page.js("location.hash = '#/new';")
        page.until_text("main .notice", "VIEWER")
        self.assertEqual(page.js("return ['check', 'submit'].map((id) => document.getElementById(id).disabled);"), [True, True])
        page.click("#sign-in")
        page.until("return document.querySelector('dialog #token') !== null;", "the form again")
        self.sign_in(submitter)
        page.until("const b = document.getElementById('submit'); return b && !b.disabled;", "a button")
        self.write(glyphs_job("hers", steps=1))
        page.click("#submit")
        job = ampd.api().GetJob(api.GetJobRequest(job_id=self.until_job()), metadata=metadata)
        self.assertEqual((job.user, job.spec.name), ("ann", "hers"))
        # Who signs out leaves no draft behind for the next one, and nobody is shown another's.
        page.press("n")
        self.write("name: private\n")
        page.js("window.done = fetch('/api/v1/session', {method: 'POST', headers: {'Content-Type': 'application/json'}, "
                "body: JSON.stringify({token: arguments[0]})}).then(() => { window.signed = true; });", bob)
        page.until("return window.signed;", "another user")
        self.open(ampd, "#/new")
        page.until(STARTED, "the starter")
        self.assertIn("my-job", self.text())
        self.write("name: private\n")
        page.click("#sign-in")
        page.until("return document.querySelector('dialog #token') !== null;", "signed out")
        self.assertNotIn("private", page.js("return JSON.stringify(sessionStorage);"))

    def test_a_phone_never_scrolls_sideways(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        request = api.CreateSweepRequest()
        ampd_process.json_format.ParseDict(dict(glyphs_job("s", steps=1), sweep={"grid": {"seed": [1, 2], "train.batch_size": [8, 16]}}), request.spec)
        sweep = ampd.api().CreateSweep(request)
        self.browser.size(375, 800)
        wide = ["return [document.documentElement.scrollWidth, innerWidth];"]
        self.open(ampd, "#/sweeps/" + sweep.id)
        self.browser.until("return document.querySelectorAll('table.sweep tbody tr').length === 4;", "the sweep")
        self.assertEqual(self.browser.js(*wide), [375, 375])
        self.open(ampd, "#/sweeps")
        self.browser.until("return document.querySelectorAll('table.sweeps tbody tr').length === 1;", "the sweeps")
        self.assertEqual(self.browser.js(*wide), [375, 375])
        self.open(ampd, "#/new")
        self.browser.until(STARTED, "the editor")
        self.check()
        self.assertEqual(self.browser.js(*wide), [375, 375])
        self.write("a" * 300 + ": 1\n")
        self.check()
        self.browser.until_text("#result", "wrong")
        self.assertEqual(self.browser.js(*wide), [375, 375])


if __name__ == "__main__":
    ampd_process.main()
