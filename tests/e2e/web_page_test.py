"""The web page in a real browser (headless Chromium) against a real daemon: what is drawn, what comes live, what keys do."""

import hashlib
import math
import os
import shutil
import re
import unittest

import ampd_process
import browser as browser_module
from ampd_process import eventually, glyphs_job
from gan_networks import acgan_job
from ampd.v1 import precision_pb2, training_service_pb2 as api

MISSING = browser_module.missing()
HOSTILE = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
GAN = os.path.join(ampd_process.SOURCE, "client/examples/glyphs-dcgan.yaml")


def overflowing_job(name="overflowing", steps=200):
    """Its scale begins far too high, so that the first steps are skipped, and grows often."""
    return glyphs_job(name, steps=steps, precision={"mode": "FP16", "loss_scale": {"init": 2.0**40, "growth_interval": 20}},
                      report={"every_steps": 1, "diagnostics_every_steps": 50})


def endless_job(name):
    """Trains until it is stopped, and reports ten times a second."""
    return glyphs_job(name, steps=10000000, report={})


def finite_losses(events):
    return sum(1 for e in events if e.HasField("step") and math.isfinite(e.step.phases[0].loss))


def of_kind(events, kind):
    return [getattr(event, kind) for event in events if event.HasField(kind)]


@unittest.skipIf(MISSING, MISSING)
class WebPageTest(browser_module.PageTest):
    def drawn(self, chart, what):
        """A figure of what is drawn on a chart: 'points', 'marks', 'series' or 'skipped'."""
        value = self.browser.js("const c = document.querySelector(`canvas[data-chart='${arguments[0]}']`); return c && c.dataset[arguments[1]];",
                                chart, what)
        return int(value) if value is not None else None

    # The overview

    def test_the_overview_lists_devices_and_jobs_and_follows_them(self):
        ampd = self.daemon()
        first = ampd.submit(endless_job("first"))
        second, third = (ampd.submit(glyphs_job(name, steps=3, labels={"team": HOSTILE})) for name in ("second", "third"))
        ampd.wait_for_step(first.id, 5)
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelectorAll('table.jobs tbody tr[data-job]').length === 3;", "three jobs")
        page.until_text("tbody[data-group=running] .group", "Running (1)")
        page.until_text("tbody[data-group=waiting] .group", "Waiting (2)")
        for place, job in ((1, second), (2, third)):
            page.until_text(f"tbody[data-group=waiting] {self.row(job)}", f"#{place}")
            self.assertIn("RESOURCES", page.text(self.row(job)))
        self.assertEqual(page.count("li.device"), 1)
        page.until_text("li.device .holders a", "first")
        page.until("return Number(document.querySelector('li.device [role=meter]').getAttribute('aria-valuenow')) > 0;", "utilisation")
        self.assertIn("GiB", page.text("li.device"))
        for width in (800, 1181, 1280, 1341, 1920):
            page.size(width)
            room, table = page.js("const t = document.querySelector('table.jobs'); return [t.parentElement.clientWidth, t.scrollWidth];")
            self.assertLessEqual(table, room, f"columns beyond the edge at {width} pixels")
        page.size(1280)
        # Figures of the job that runs, and states of others, come by themselves.
        before = page.text(f"{self.row(first)} .progress")
        page.until("return document.querySelector(arguments[0]).innerText !== arguments[1];", "progress", f"{self.row(first)} .progress", before)
        ampd.api().CancelJob(api.CancelJobRequest(job_id=second.id))
        page.until_text(f"tbody[data-group=ended] {self.row(second)} .state", "CANCELLED")
        page.until_text(f"tbody[data-group=waiting] {self.row(third)}", "#1")
        ampd.submit(glyphs_job("fourth", steps=3))
        page.until_text("tbody[data-group=waiting] .group", "Waiting (2)")
        page.until("return document.querySelector(arguments[0] + ' polyline').getAttribute('points').split(' ').length > 3;", "a line of losses",
                   self.row(first))
        self.assert_never_reloaded()

    def test_keys_lead_from_the_list_to_a_job_and_back(self):
        ampd = self.daemon()
        jobs = [ampd.submit(glyphs_job(name, steps=2)) for name in ("alpha", "beta", "gamma")]
        for job in jobs:
            ampd.wait(job.id)
        self.open(ampd)
        page = self.browser
        page.until("return document.querySelectorAll('tbody[data-group=ended] tr[data-job]').length === 3;", "three jobs")
        focused = "const row = document.activeElement.closest('tr'); return row && row.dataset.job;"
        # Newest first.
        for key, job in (("j", jobs[2]), ("ARROW_DOWN", jobs[1]), ("j", jobs[0]), ("k", jobs[1])):
            page.press(key)
            page.until("const row = document.activeElement.closest('tr'); return row && row.dataset.job === arguments[0];", key, job.id)
        outline = page.js("return getComputedStyle(document.activeElement).outlineStyle;")
        self.assertNotEqual(outline, "none", "the focus cannot be seen")
        page.press("?")
        page.until("return document.querySelector('dialog[open]') !== null;", "the list of keys")
        self.assertIn("filter jobs", page.text("dialog"))
        page.press("ESCAPE")
        page.until("return document.querySelector('dialog') === null;", "no dialog")
        page.press("/")
        page.press("a", "l", "p")
        page.until("return document.querySelectorAll('tbody[data-group=ended] tr[data-job]').length === 1;", "one job that fits")
        page.press("ESCAPE", "j")
        page.until("const row = document.activeElement.closest('tr'); return row && row.dataset.job === arguments[0];", "focus", jobs[0].id)
        self.assertEqual(page.js(focused), jobs[0].id)
        page.press("ENTER")
        page.until_text("h1", "alpha")
        self.assertIn(jobs[0].id, page.js("return location.hash;"))
        page.press("3")
        page.until_text("#panel", "Layers")
        # Every tab can be reached and moved along without a mouse.
        page.js("document.querySelector('[role=tab][aria-selected=true]').focus();")
        page.press("ARROW_RIGHT")
        page.until_text("#panel pre", "alpha")
        page.press("ESCAPE")
        page.until("return document.querySelectorAll('tbody[data-group=ended] tr[data-job]').length === 3;", "the list again")

    def test_jobs_that_are_not_loaded_are_found_by_what_the_filter_promises(self):
        ampd = self.daemon()
        old = ampd.run(glyphs_job("old", steps=1, labels={"team": "vision"}))
        # More than a page of others, newer.
        many = glyphs_job("newer", steps=1, not_before="2099-01-01T00:00:00Z") | {"sweep": {"grid": {"seed": list(range(55))}}}
        self.assertEqual(ampd.ctl("submit", self.job_file(many)).returncode, 0)
        sweep = ampd.api().ListSweeps(api.ListSweepsRequest()).sweeps[0].id
        ampd.api().CancelSweep(api.CancelSweepRequest(sweep_id=sweep))
        page = self.browser
        for text in ("succeeded", "team=vision", "old succ"):
            self.open(ampd)
            page.until("return document.querySelectorAll('tbody[data-group=ended] tr[data-job]').length === 50;", "a page of jobs")
            page.press("/", *text)
            page.until_text(self.row(old), "old")
        page.js("const f = document.getElementById('filter'); f.value = 'nobody'; f.dispatchEvent(new Event('input'));")
        page.until_text("table.jobs + .empty", "among the jobs loaded so far")
        page.click(".more button")
        page.until_text("table.jobs + .empty", "No job fits the filter.")

    # A job

    def test_charts_draw_what_the_events_say(self):
        ampd = self.daemon()
        job = ampd.run(overflowing_job())
        self.assert_state(job, "SUCCEEDED")
        events = ampd.events(job.id)
        skips = of_kind(events, "overflow_skip")
        evaluations = of_kind(events, "evaluation")
        self.assertGreater(len(skips), 5)
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until_text("#job-state", "SUCCEEDED")
        points = finite_losses(events) + len(evaluations)
        eventually(lambda: self.drawn("Loss", "points") == points, f"{points} points")
        self.assertEqual(self.drawn("Loss scale", "skipped"), len(skips))
        self.assertEqual(self.drawn("Loss scale", "marks"), len({skip.step for skip in skips}))
        self.assertEqual(self.drawn("Learning rate", "series"), 1)
        for chart in ("Loss scale", "Learning rate", "Throughput", "Gradient norm", "Evaluation"):
            self.assertGreater(self.drawn(chart, "points"), 0, chart)
        self.assert_ink("Loss", "--series-1", 300)
        self.assert_ink("Loss scale", "--bad", 20)
        self.assertIn(f"{len(skips)} skipped", page.text(".charts"))
        # The histogram of the newest diagnostics: as many values as the event counts.
        newest = of_kind(events, "gradient_diagnostics")[-1]
        page.until("return document.querySelectorAll('.histogram rect.bar').length > 10;", "a histogram")
        total = sum(tensor.nonzero for tensor in newest.tensors)
        label = page.js("return document.querySelector('.histogram svg').getAttribute('aria-label');")
        self.assertEqual(int("".join(c for c in label if c.isdigit())), total, label)

    def assert_ink(self, chart, colour, least):
        """The canvas itself, pixel by pixel, has `colour` on at least so many pixels."""
        count = self.browser.js("""
            const canvas = document.querySelector(`canvas[data-chart='${arguments[0]}']`);
            const probe = document.createElement('i');
            probe.style.color = `var(${arguments[1]})`;
            document.body.append(probe);
            const wanted = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
            probe.remove();
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let i = 0; i < data.length; i += 4) {
              if (data[i + 3] > 120 && wanted.every((value, k) => Math.abs(data[i + k] - value) < 24)) ++found;
            }
            return found;""", chart, colour)
        self.assertGreater(count, least, f"{chart}: {colour}")

    def test_a_closer_look_is_read_from_the_server(self):
        ampd = self.daemon()
        # More reports than there are points in the first answer.
        job = ampd.run(glyphs_job("long", steps=2400, batch_size=4))
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        few = eventually(lambda: self.drawn("Gradient norm", "points"), "a chart")
        self.assertLessEqual(few, 801)
        page.js("document.querySelector(\"canvas[data-chart='Gradient norm']\").focus();")
        page.press("+", "+", "+")
        # An eighth of 2,400 steps, each of which is a point now; with the neighbours that lead out of the frame.
        eventually(lambda: 298 <= self.drawn("Gradient norm", "points") <= 303, "the points of a closer look")
        page.press("0")
        eventually(lambda: self.drawn("Gradient norm", "points") == few, "all steps again")

    def test_a_job_is_followed_and_cancelled_from_the_page(self):
        ampd = self.daemon()
        static = {"mode": "FP16", "loss_scale": {"kind": "STATIC", "init": 65536}}
        job = ampd.submit(endless_job("followed") | {"precision": static})
        ampd.wait_for_step(job.id, 1)
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until_text("#job-state", "RUNNING")
        # One power of two is within reach of a scale that never moves.
        scale = "canvas[data-chart='Loss scale']"
        page.until("return document.querySelector(arguments[0])?.dataset.labels === '2^16';", "the axis of the scale", scale)
        before = eventually(lambda: self.drawn("Loss", "points"), "a chart")
        last = page.js("return document.querySelector(\"canvas[data-chart='Loss']\").getAttribute('aria-label');")
        page.until("return document.querySelector(\"canvas[data-chart='Loss']\").getAttribute('aria-label') !== arguments[0];", "newer points", last)
        self.assertGreater(before, 0)
        page.click("button[data-verb=cancel]")
        page.click("dialog button.danger")
        page.until_text("#job-state", "CANCELLED")
        self.assert_state(ampd.wait(job.id), "CANCELLED")
        page.until("return document.querySelector('button[data-verb=retry]') !== null;", "what may be done now")
        page.until_text("#job-notice", "cancelled by request")
        self.assert_never_reloaded()

    def test_the_head_of_a_running_job_is_changed_in_place(self):
        """What has the focus or is selected there stays so while figures come."""
        ampd = self.daemon()
        result = ampd.ctl("submit", self.job_file(endless_job("swept") | {"sweep": {"list": [{"seed": 1}]}}))
        self.assertEqual(result.returncode, 0, result.stderr)
        job = ampd.api().ListJobs(api.ListJobsRequest()).jobs[0]
        ampd.wait_for_step(job.id, 1)
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until_text(".job-head .facts a", "1 of 1")
        page.js("""
            window.link = document.querySelector('.job-head .facts a');
            window.link.focus();
            getSelection().selectAllChildren(document.querySelector('.job-head code'));""")
        for what in ("figures", "newer ones"):
            before = page.text(".job-head .facts > div")
            page.until("return document.querySelector('.job-head .facts > div').innerText !== arguments[0];", what, before)
        self.assertTrue(page.js("return window.link.isConnected && document.activeElement === window.link;"), "another link")
        self.assertEqual(page.js("return getSelection().toString();"), job.id)
        page.press("ENTER")
        page.until("return location.hash.startsWith('#/sweeps/');", "the sweep")

    def test_priorities_and_devices_are_changed(self):
        ampd = self.daemon()
        # Both wait: nothing starts on a device that is drained.
        device = ampd.api().ListDevices(api.ListDevicesRequest()).devices[0].id
        self.open(ampd)
        page = self.browser
        button = f"li[data-device='{device}'] > button"
        page.until_text(button, "Drain…")
        page.click(button)
        page.click("dialog button.danger")
        dialogs = "return document.querySelectorAll('dialog[open]').length;"
        self.assertEqual(page.js(dialogs), 1, "a reason is required")
        page.js("document.querySelector('#ask-reason').focus();")
        page.press(*"fan <b>")
        page.click("dialog button.danger")
        page.until_text(button, "Undrain")
        page.until_text(f"li[data-device='{device}'] .conditions", "fan <b>")
        self.assertEqual(page.js(dialogs), 0)
        low, high = (ampd.submit(glyphs_job(name, steps=3)).id for name in ("low", "high"))
        page.js("location.hash = arguments[0];", f"#/jobs/{high}")
        page.until_text("#job-notice", "fan <b>")
        page.click("button[data-verb=update]")
        page.js("document.querySelector('#ask-priority').value = '';")
        page.press(*"7", "ENTER")
        page.until_text(".job-head .facts", "Priority")
        self.assertEqual(ampd.get(high).spec.resources.priority, 7)
        # What another does is seen as well.
        self.assertEqual(ampd.ctl("update", high, "--priority", "9").returncode, 0)
        page.until("return /Priority\\s*9/.test(document.querySelector('.job-head .facts').textContent);", "the other's priority")
        page.js("location.hash = '#/';")
        page.click(button)
        page.until_text(button, "Drain…")
        self.assert_state(ampd.wait(low), "SUCCEEDED")
        self.assertLess(ampd.get(high).start_time.ToNanoseconds(), ampd.get(low).start_time.ToNanoseconds())
        self.assert_never_reloaded()

    def test_every_part_of_a_job_is_shown_as_text(self):
        ampd = self.daemon()
        spec = overflowing_job("parts", steps=100)
        spec["labels"] = {"note": HOSTILE}
        job = ampd.run(spec)
        self.open(ampd, f"#/jobs/{job.id}/plan")
        page = self.browser
        page.until("return document.querySelectorAll('#panel tbody tr').length === arguments[0];", "the layers", len(job.plan.layers))
        self.assertIn(HOSTILE, page.text(".job-head"))
        page.press("4")
        page.until_text("#spec", "name: parts")
        self.assertIn("onerror", page.text("#spec"))
        page.press("5")
        page.until_text("ol.log", "SUCCEEDED")
        page.press("6")
        skips = len(of_kind(ampd.events(job.id), "overflow_skip"))
        page.until("return document.querySelectorAll('#panel tr[data-kind=overflow_skip]').length === arguments[0];", "every skip", skips)
        page.press("7")
        page.until_text("#panel table", job.summary.checkpoint)
        self.assertEqual(page.js("return document.querySelectorAll('main img, main script').length;"), 0)
        self.assertIsNone(page.js("return window.broken === undefined ? null : window.broken;"))

    def test_logs_come_live_as_a_reload_shows_them(self):
        ampd = self.daemon()
        result = ampd.ctl("submit", GAN, "--set", "train={steps: 1000000, batch_size: 16}", "--set", "data.train.glyphs.samples=64",
                          "--set", "resources.cpu_threads=1", "--set", "precision.mode=BF16", "--set",
                          "report={every_steps: 50, samples: {every_steps: 100, images: {network: generator, rows: 2, columns: 3, low: 0}}}")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = result.stdout.split()[1]
        self.open(ampd, f"#/jobs/{job}/logs")
        page = self.browser
        page.until_text("ol.log", "RUNNING")
        for kind in ("artifact", "checkpoint"):
            line = f"ol.log li[data-kind={kind}]"
            shown = page.count(line)
            if kind == "checkpoint":
                self.assertEqual(ampd.ctl("checkpoint", job).returncode, 0)
            page.until("return document.querySelectorAll(arguments[0]).length > arguments[1];", f"one more {kind}", line, shown)
        ampd.ctl("cancel", job)
        page.until_text("ol.log", "CANCELLED")
        lines = "return [...document.querySelectorAll('ol.log li')].map((line) => line.textContent);"
        live = page.js(lines)
        self.open(ampd, f"#/jobs/{job}/charts")
        self.open(ampd, f"#/jobs/{job}/logs")
        page.until_text("ol.log", "CANCELLED")
        self.assertEqual(page.js(lines), live)

    def test_pictures_are_shown(self):
        ampd = self.daemon()
        result = ampd.ctl("submit", GAN, "--set", "train={steps: 6, batch_size: 16}", "--set", "data.train.glyphs.samples=64",
                          "--set", "resources.cpu_threads=1", "--set", "precision.mode=BF16", "--set",
                          "report={every_steps: 1, samples: {every_steps: 4, images: {network: generator, rows: 2, columns: 3, low: 0}}}")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = result.stdout.split()[1]
        self.assert_state(ampd.wait(job), "SUCCEEDED")
        self.open(ampd, f"#/jobs/{job}/samples")
        page = self.browser
        page.until("""const images = [...document.querySelectorAll('.picture img')];
            return images.length === 2 && images.every((i) => i.complete && i.naturalWidth === 3 * 30 + 2);""", "two pictures")
        self.assertEqual(page.count(".picture"), 2)
        page.click(".picture button")
        page.until("const i = document.querySelector('dialog img'); return i && i.complete && i.naturalWidth > 0;", "a large picture")
        # Both phases have a line.
        page.press("ESCAPE")
        self.browser.js("location.hash = arguments[0];", f"#/jobs/{job}/charts")
        eventually(lambda: self.drawn("Loss", "series") == 2, "a line a phase")
        # As once retention.file_days are over.
        self.expected.append("/artifacts/samples-")
        shutil.rmtree(os.path.join(ampd.state_dir, "artifacts", job))
        self.open(ampd, f"#/jobs/{job}/samples")
        page.until("return document.querySelectorAll('.picture .empty').length === 2;", "a word in the place of each picture")
        self.assertIn("no longer", page.js("return document.querySelector('.picture .empty').textContent;"))

    def test_why_a_training_ended_early_and_which_checkpoint_is_the_best_is_told(self):
        ampd = self.daemon()
        train = {"steps": 3200, "batch_size": 32, "eval_every_steps": 2, "early_stopping": {"patience": 1, "min_delta": 9}}
        job = ampd.run(glyphs_job("early", train=train, checkpoint={"keep_best": "accuracy"}))
        events = ampd.events(job.id)
        reason = events[-1].state_change.reason
        self.assertIn("stopped early, after step 4 of 3200", reason)
        self.open(ampd, f"#/jobs/{job.id}/checkpoints")
        page = self.browser
        page.until_text("#job-notice", reason)
        best = max(evaluation.metrics["accuracy"] for evaluation in of_kind(events, "evaluation"))
        page.until_text("#panel .badge", f"best: accuracy {best:.4g}")
        # One that ran to its end has none.
        page.js("location.hash = arguments[0];", f"#/jobs/{ampd.run(glyphs_job('whole', steps=3)).id}")
        page.until("return document.querySelector('h1').innerText === 'whole' && document.querySelector('#job-notice').hidden;", "the other")

    def test_files_of_a_checkpoint_can_be_fetched(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("fetched", steps=4, every_steps=2))
        name = job.summary.checkpoint
        folder = os.path.join(ampd.state_dir, "checkpoints", job.id, name)
        self.open(ampd, f"#/jobs/{job.id}/checkpoints")
        page = self.browser
        page.until("return document.querySelector(arguments[0]) !== null;", "the button", f"button[data-files='{name}']")
        # By keyboard.
        page.js("document.querySelector(arguments[0]).focus();", f"button[data-files='{name}']")
        page.press("ENTER")
        page.until("return document.querySelectorAll('tr.files a').length === arguments[0];", "the files", len(os.listdir(folder)))
        fetched = page.js("""
            return Promise.all([...document.querySelectorAll('tr.files a')].map(async (link) => {
              const bytes = await (await fetch(link.href)).arrayBuffer();
              const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
              return [link.innerText, link.download, [...hash].map((byte) => byte.toString(16).padStart(2, '0')).join('')];
            }));""")
        self.assertEqual({file for file, _, _ in fetched}, set(os.listdir(folder)))
        for file, saved_as, digest in fetched:
            with open(os.path.join(folder, file), "rb") as content:
                self.assertEqual(digest, hashlib.sha256(content.read()).hexdigest(), file)
            self.assertEqual(saved_as, f"{job.id}-{name}-{file}")
            self.assertIn(digest, page.text("tr.files"))
        page.press("ENTER")
        page.until("return document.querySelector('tr.files') === null;", "no files")
        # All of them as one file, of each checkpoint.
        archives = page.js("""
            return Promise.all([...document.querySelectorAll("#panel a[href$='format=tar']")].map(async (link) => {
              const bytes = new Uint8Array(await (await fetch(link.href)).arrayBuffer());
              return [link.download, new TextDecoder().decode(bytes.slice(257, 262)), bytes.length % 512];
            }));""")
        self.assertEqual(archives, [[f"{job.id}-step-00000000{step}.tar", "ustar", 0] for step in (4, 2)])

    def ask_for_model(self, *choices, ema=False):
        """Exports the newest checkpoint's model with these choices in the dialog."""
        self.browser.click("#panel button[data-verb=export]")
        self.browser.until("return document.querySelector('dialog select') !== null;", "the dialog")
        self.browser.js("""
            const fields = document.querySelectorAll('dialog select');
            arguments[0].forEach((text, i) => {
              fields[i].value = [...fields[i].options].find((option) => option.text === text).value;
            });
            if (arguments[1]) document.querySelector('dialog input[type=checkbox]').click();
            document.querySelector('dialog form').requestSubmit();""", choices, ema)

    def assert_exported(self, ampd, job, name, choices, options):
        """The page saves the same model, under that name, as the client with `options`."""
        folder = os.path.join(self.folder, f"saved-{len(os.listdir(self.folder))}")
        os.mkdir(folder)
        self.browser.save_into(folder)
        self.ask_for_model(*choices, ema="--ema" in options)
        saved = os.path.join(folder, name)
        eventually(lambda: os.path.exists(saved), f"{name} among {os.listdir(folder)}")
        self.browser.until("return document.querySelector('dialog') === null;", "the dialog's end")
        by_client = os.path.join(folder, "by-client")
        self.assertEqual(ampd.ctl("download", job.id, by_client, *options).returncode, 0)
        with open(saved, "rb") as one, open(by_client, "rb") as other:
            self.assertEqual(one.read(), other.read(), name)

    def test_a_model_is_exported(self):
        ampd = self.daemon()
        job = ampd.run(glyphs_job("exported", steps=4, every_steps=2, optimizer={"adamw": {}, "ema": {"decay": 0.5}}))
        self.open(ampd, f"#/jobs/{job.id}/checkpoints")
        stem = f"{job.id}-{job.summary.checkpoint}"
        self.assert_exported(ampd, job, f"{stem}.onnx", ["ONNX"], ["--form", "onnx"])
        self.assertEqual(self.browser.count("dialog"), 0)
        self.assert_exported(ampd, job, f"{stem}.safetensors", ["safetensors, BF16"], ["--dtype", "bf16"])
        self.assert_exported(ampd, job, f"{stem}.safetensors", ["safetensors, FP32"], ["--dtype", "fp32", "--ema"])

    def test_one_network_of_several_is_exported(self):
        ampd = self.daemon()
        job = ampd.run(acgan_job())
        self.open(ampd, f"#/jobs/{job.id}/checkpoints")
        self.assert_exported(ampd, job, f"{job.id}-{job.summary.checkpoint}-generator.onnx", ["ONNX", "generator"],
                             ["--form", "onnx", "--network", "generator"])
        # What cannot be done is said in the dialog.
        self.expected.append("/export?form=onnx - ")
        self.ask_for_model("ONNX", "All, as safetensors")
        self.browser.until_text("dialog .problem", "generator or trunk or source or class")

    # Measurements

    def table_of_the_page(self):
        """Rows of text, the heading first, as the page shows them; without badges."""
        return self.browser.js("""
            return [...document.querySelectorAll('.bench tr')].map((row) => [...row.children].map((cell) => {
              const badge = cell.querySelector('.badge');
              return cell.textContent.replace(badge ? badge.textContent : '', '').trim();
            }));""")

    @staticmethod
    def table_of_the_program(text):
        """Columns of `ampctl bench`, which stand apart by two blanks at least."""
        head, *lines = text.splitlines()
        columns = re.split(r"\s{2,}", head.strip())
        rows = [re.split(r"\s{2,}", line.strip(), maxsplit=len(columns) - 1) for line in lines]
        return [[name.lower() for name in columns]] + [row + [""] * (len(columns) - len(row)) for row in rows]

    def test_a_measurement_is_the_table_that_the_program_prints_and_grows_live(self):
        ampd = self.daemon()
        # Holds the device until the page is there.
        blocker = ampd.submit(endless_job("blocker"))
        ampd.wait_for_step(blocker.id, 1)
        spec = self.job_file(glyphs_job("measured", data={"train": {"glyphs": {"samples": 1 << 20}}}))
        bench = ampd.ctl_start("bench", spec, "--modes", "bf16,fp16", "--batch", "16,24,1048576", "--steps", "3", "--warmup", "1")
        job = eventually(lambda: next((job for job in ampd.api().ListJobs(api.ListJobsRequest()).jobs if job.spec.name == "measured"), None), "the job")
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until_text("#panel", "Nothing is measured yet.")
        self.assertEqual(page.js("return [...document.querySelectorAll('[role=tab]')].slice(0, 2).map((tab) => tab.innerText);"), ["Bench", "Charts"])
        ampd.api().CancelJob(api.CancelJobRequest(job_id=blocker.id))
        output, complaints = bench.communicate(timeout=ampd_process.DEADLINE)
        self.assertEqual(bench.returncode, 0, complaints)
        page.until_text("#panel", "9 of 9 measured")
        wanted = self.table_of_the_program(output)
        self.assertEqual(len(wanted), 10, output)
        shown = self.table_of_the_page()
        self.assertEqual([[name.lower() for name in shown[0]]] + shown[1:], wanted)
        self.assertIn("OUT_OF_MEMORY", shown[9][-1])
        self.assert_never_reloaded()
        # The same read at once, and with the tab's key.
        self.open(ampd, f"#/jobs/{job.id}/spec")
        page.until_text("#spec", "name: measured")
        page.press("1")
        page.until_text("#panel", "9 of 9 measured")
        self.assertEqual(self.table_of_the_page(), shown)
        for column, field in ((shown[0].index("Speed-up"), "speed_up"), (shown[0].index("Memory"), "peak_memory_bytes")):
            self.assert_bars(shown[1:], column, field)

    def assert_bars(self, rows, column, field):
        """As long as the figures say, in the colour of their mode, against the longest, which fills its place."""
        bars = self.browser.js("""
            return [...document.querySelectorAll('.bench tbody tr')].map((row) => {
              const bar = row.querySelector('.bar.' + arguments[0]);
              if (!bar) return null;
              const ink = bar.firstChild;
              return [ink.getBoundingClientRect().width / bar.getBoundingClientRect().width, getComputedStyle(ink).backgroundColor];
            });""", field)
        self.assertEqual([bar is None for bar in bars], [row[column] == "-" for row in rows], "a bar a figure")
        units = {"KiB": 1, "MiB": 1024, "GiB": 1024**2, "x": 1}
        figures = [re.fullmatch(r"([\d.]+) ?(\w+)", row[column]) for row in rows]
        values = [float(figure[1]) * units[figure[2]] if figure else 0 for figure in figures]
        for value, bar in zip(values, bars):
            if bar:
                self.assertAlmostEqual(bar[0], value / max(max(values), 1), delta=0.06)
        self.assertGreater(max(bar[0] for bar in bars if bar), 0.99)
        self.assertEqual(len({bar[1] for bar in bars if bar}), len({row[1] for row, bar in zip(rows, bars) if bar}), "a colour a mode")

    def test_what_auto_measured_and_took_is_told(self):
        ampd = self.daemon()
        spec = glyphs_job("automatic", steps=5, mode="AUTO")
        spec["precision"]["auto"] = {"modes": ["BF16", "FP16"], "steps": 10}
        job = ampd.run(spec)
        self.assert_state(job, "SUCCEEDED")
        chosen = of_kind(ampd.events(job.id), "mode_chosen")[-1]
        mode = precision_pb2.PrecisionSpec.Mode.Name(chosen.mode)
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        eventually(lambda: self.drawn("Loss", "points"), "the charts first")
        page.press("2")
        page.until_text("#panel", f"AUTO takes {mode}")
        self.assertEqual(page.js("return document.querySelector('.choice p').textContent;"), chosen.reason)
        rows = self.table_of_the_page()[1:]
        self.assertEqual([row[1] for row in rows], ["FP32", "BF16", "FP16"])
        self.assertEqual(page.js("return document.querySelector('.bench .badge').closest('tr').dataset.mode;"), mode)
        # A job that measures nothing has no such tab.
        plain = ampd.run(glyphs_job("plain", steps=2))
        self.open(ampd, f"#/jobs/{plain.id}/bench")
        eventually(lambda: self.drawn("Loss", "points"), "the charts")
        self.assertEqual(page.count("#tab-bench"), 0)

    def test_figures_are_rounded_as_the_program_rounds_them(self):
        self.open(self.daemon())
        self.browser.until("return document.querySelector('#main section') !== null;", "the page")
        values = [0.0, 0.5, 1.5, 2.5, -2.5, 0.125, 0.375, 2.3125, 2.34375, 99.95, 999.5, 1023.4, 12345.5, 123450.0, 1e9, 1e22, 0.0001, 0.00001234,
                  5e-324, 1.7e308, 1 / 3, -1 / 7, 100.0, 1024.0, 9.995, 0.99951, math.nan, math.inf, -math.inf]
        values += [math.ldexp(mantissa, power) for mantissa in (3, 5, 21, 1001) for power in range(-12, 12)]
        sent = [str(value) if not math.isfinite(value) else value for value in values]
        sent = [{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(value, value) for value in sent]
        shown = self.browser.js("""
            const module = document.querySelector('link[rel=modulepreload][href$="cli_text.js"]').href;
            const values = arguments[0].map(Number);
            return import(module).then(({fixed, general, figure}) =>
                values.map((v) => [fixed(v, 0), fixed(v, 1), fixed(v, 2), general(v, 4), figure(v)]));""", sent)
        for value, texts in zip(values, shown):
            whole = math.isfinite(value) and value == math.floor(value) and abs(value) < 1e9
            wanted = ["%.0f" % value, "%.1f" % value, "%.2f" % value, "%.4g" % value, ("%.0f" if whole else "%.4g") % value]
            self.assertEqual(texts, wanted, value)

    # Several jobs

    def test_jobs_are_compared_in_one_plot(self):
        ampd = self.daemon()
        jobs = [ampd.submit(glyphs_job(name, steps=steps, seed=steps)) for name, steps in (("one", 20), ("two", 30))]
        ampd.submit(glyphs_job("three", steps=2))
        counts = []
        for job in jobs:
            ampd.wait(job.id)
            counts.append(finite_losses(ampd.events(job.id)))
        self.open(ampd)
        page = self.browser
        for job in jobs:
            page.until("return document.querySelector(arguments[0] + ' a') !== null;", "the row", self.row(job))
            page.js("document.querySelector(arguments[0] + ' a').focus();", self.row(job))
            page.press("x")
        page.until_text("#bar nav", "Compare (2)")
        page.press("c")
        eventually(lambda: self.drawn("Training loss", "points") == sum(counts), "both jobs' points")
        self.assertEqual(self.drawn("Training loss", "series"), 2)
        self.assertEqual(page.count("table.compare tbody tr"), 2)
        for colour in ("--series-1", "--series-2"):
            self.assert_ink("Training loss", colour, 50)
        page.js("const s = document.getElementById('figure'); s.value = 'Evaluation accuracy'; s.dispatchEvent(new Event('change'));")
        eventually(lambda: self.drawn("Evaluation accuracy", "series") is None and self.drawn("Training loss", "series") == 2 and
                   "Evaluation accuracy" in page.text("figure.chart"), "another figure")
        page.click("table.compare tbody tr:first-child td:last-child button")
        page.until("return document.querySelectorAll('table.compare tbody tr').length === 1;", "one job left")

    # Looks

    def luminance(self, selector="html"):
        red, green, blue = self.browser.js(
            "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number);", selector)
        return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255

    def test_dark_and_light(self):
        ampd = self.daemon()
        job = ampd.run(overflowing_job(steps=60))
        self.browser.prefer("dark")
        self.open(ampd, f"#/jobs/{job.id}")
        eventually(lambda: self.drawn("Loss", "points"), "a chart")
        self.assertLess(self.luminance(), 0.15)
        self.assert_ink("Loss", "--series-1", 50)
        dark = self.browser.js("return document.querySelector(\"canvas[data-chart='Loss']\").toDataURL();")
        # The system, light, dark.
        self.browser.press("t")
        self.assertGreater(self.luminance(), 0.85)
        self.browser.until("return document.querySelector(\"canvas[data-chart='Loss']\").toDataURL() !== arguments[0];", "a chart in light colours", dark)
        self.assert_ink("Loss", "--series-1", 50)
        self.open(ampd)
        self.assertGreater(self.luminance(), 0.85, "the choice is forgotten")
        self.browser.press("t")
        self.assertLess(self.luminance(), 0.15)
        self.browser.press("t")
        self.browser.prefer("light")
        self.browser.until("return getComputedStyle(document.documentElement).colorScheme === 'light dark';", "the system's colours")
        self.assertGreater(self.luminance(), 0.85)

    def test_a_phone_never_scrolls_sideways(self):
        ampd = self.daemon()
        done = ampd.run(overflowing_job("a name of forty-one letters and some more", steps=60))
        measured = ampd.run(glyphs_job("measured", bench={"modes": ["BF16", "FP16"], "batch_sizes": [16, 24], "steps": 2, "warmup_steps": 0}))
        running = ampd.submit(endless_job("running"))
        ampd.submit(endless_job("queued"))
        ampd.wait_for_step(running.id, 1)
        places = [("", "table.jobs tbody tr[data-job]")]
        places += [(f"#/jobs/{done.id}/{tab}", selector) for tab, selector in (
            ("charts", "canvas[data-points]"), ("samples", "#panel .empty"), ("plan", "#panel tbody tr"), ("spec", "#spec"),
            ("logs", "ol.log li"), ("events", "#panel tbody tr"), ("checkpoints", "#panel tbody tr"))]
        places += [(f"#/jobs/{measured.id}", ".bench tbody tr:nth-child(6)")]
        places += [(f"#/jobs/{running.id}", "button[data-verb=cancel]"), (f"#/compare?jobs={done.id},{running.id}", "table.compare tbody tr")]
        for path, selector in places:
            self.browser.size(375, 800)
            self.open(ampd, path)
            self.browser.until("return document.querySelector(arguments[0]) !== null;", f"{path}: {selector}", selector)
            for pixels in (375, 360, 320):
                self.browser.size(pixels, 800)
                shown = self.browser.js("return [document.documentElement.scrollWidth, innerWidth];")
                self.assertEqual(shown, [pixels, pixels], path)
                tops = self.browser.js("""
                    return [...document.querySelectorAll('#bar > *')].map((part) => part.getBoundingClientRect())
                        .filter(({height}) => height > 0).map(({top, height}) => top + height / 2);""")
                self.assertLess(max(tops) - min(tops), 8, f"the bar takes several rows at {pixels} pixels")

    # In passing

    def test_an_unknown_job_is_said_to_be_unknown(self):
        ampd = self.daemon()
        self.expected.append("Failed to load resource")
        self.open(ampd, "#/jobs/01m0000000000000000000000")
        self.browser.until_text("main [role=alert]", "01m0000000000000000000000")

    def test_an_address_that_is_none_leads_to_the_overview(self):
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("there", steps=2))
        self.assert_state(ampd.wait(job.id), "SUCCEEDED")
        self.open(ampd, "#/%")
        self.browser.until("return document.querySelectorAll('table.jobs tbody tr[data-job]').length === 1;", "the job")

    def test_a_retry_from_elsewhere_is_noticed(self):
        ampd = self.daemon()
        job = ampd.submit(endless_job("retried"))
        ampd.wait_for_step(job.id, 1)
        ampd.api().CancelJob(api.CancelJobRequest(job_id=job.id))
        self.assert_state(ampd.wait(job.id), "CANCELLED")
        self.open(ampd, f"#/jobs/{job.id}")
        page = self.browser
        page.until_text("#job-state", "CANCELLED")
        ampd.api().RetryJob(api.RetryJobRequest(job_id=job.id))
        # The tab is looked at again; without that it takes 15 seconds.
        page.js("document.dispatchEvent(new Event('visibilitychange'));")
        page.until_text("#job-state", "RUNNING")
        before = eventually(lambda: self.drawn("Loss", "points"), "a chart")
        eventually(lambda: self.drawn("Loss", "points") != before, "newer points")
        ampd.api().CancelJob(api.CancelJobRequest(job_id=job.id))
        page.until_text("#job-state", "CANCELLED")
        self.assert_never_reloaded()


if __name__ == "__main__":
    ampd_process.main()
