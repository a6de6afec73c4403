"""The page of a job of several phases, in a real browser: what it shows of those that take only some of the steps."""

import os
import unittest

import ampd_process
import browser as browser_module

MISSING = browser_module.missing()
GAN = os.path.join(ampd_process.SOURCE, "client/examples/glyphs-dcgan.yaml")


@unittest.skipIf(MISSING, MISSING)
class WebPhasesTest(browser_module.PageTest):
    def test_a_phase_that_took_no_step_has_no_loss(self):
        ampd = self.daemon()
        result = ampd.ctl("submit", GAN, "--set", "train={steps: 60, batch_size: 16}", "--set", "data.train.glyphs.samples=64",
                          "--set", "resources.cpu_threads=1", "--set", "phases[0].every=3", "--set", "report={every_steps: 1}")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = result.stdout.split()[1]
        self.open(ampd, f"#/jobs/{job}/events")
        page = self.browser
        page.js("""window.seen = [];
            const facts = document.querySelector('.job-head');
            new MutationObserver(() => window.seen.push(facts.innerText)).observe(facts, {subtree: true, childList: true,
              characterData: true});""")
        ampd.wait(job)
        page.until("return document.querySelector('#job-state').innerText === 'SUCCEEDED';", "the end")
        self.assertEqual(page.js("return window.seen.filter((text) => text.includes('NaN'));"), [])
        page.js("[...document.querySelectorAll('.kinds label')].find((l) => l.innerText === 'step').click();")
        lines = """return [...document.querySelectorAll('.line[data-kind=step] .words')].map((one) => one.innerText)"""
        page.until(f"{lines}.length === 60;", "a line a step")
        name = next(event.step for event in ampd.events(job) if event.HasField("step")).phases[0].name
        told = [f"{name} loss - scale" in text for text in page.js(f"{lines};")]
        self.assertEqual(told, [step % 3 != 0 for step in range(1, 61)])
        self.assertEqual([text for text in page.js(f"{lines};") if "loss NaN" in text], [])


if __name__ == "__main__":
    ampd_process.main()
