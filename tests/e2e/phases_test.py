"""The DCGAN example through a real daemon: planned, watched and measured."""

import os
import re

import ampd_process
from ampd_process import OneDaemonTest

JOB = os.path.join(ampd_process.SOURCE, "client/examples/glyphs-dcgan.yaml")
SMALL = ["--set", "train={steps: 6, batch_size: 16}", "--set", "report={every_steps: 1}",
         "--set", "data.train.glyphs.samples=64", "--set", "resources.cpu_threads=1"]


class PhasesTest(OneDaemonTest):
    def test_a_plan_shows_both_phases(self):
        plan = self.ctl(0, "submit", JOB, *SMALL, "--dry-run").stdout
        self.assertRegex(plan, r"generator\.up1 +conv_transpose2d +f16 +7x7x64")
        self.assertRegex(plan, r"discriminator\.judge +conv2d +f16 +1x1x1")
        for phase in ("discriminator", "generator"):
            self.assertRegex(plan, rf"phase {phase} trains \d+ parameters, with [\d.]+ \w+ of activations")

    def test_both_losses_are_watched_and_measured(self):
        shown = self.ctl(0, "submit", JOB, *SMALL, "--set", "precision.mode=BF16", "--watch").stdout
        steps = re.findall(r"step (\d)/6 .* discriminator loss ([\d.]+) .* generator loss ([\d.]+) ", shown)
        self.assertEqual(steps[-1][0], "6", shown)
        metrics = self.ampd.http("/metrics")[1]
        for phase in ("discriminator", "generator"):
            self.assertRegex(metrics, rf'ampd_job_loss{{job_id="[^"]+",phase="{phase}"}} [\d.]+')
            self.assertRegex(metrics, rf'ampd_job_steps_applied_total{{job_id="[^"]+",phase="{phase}"}} 6\n')

    def test_a_mistake_is_told_by_its_field(self):
        result = self.ampd.ctl("submit", JOB, "--set", "phases[1].trains=[generater]")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("phases[1].trains[0]: no network is named 'generater'; did you mean generator?", result.stderr)


if __name__ == "__main__":
    ampd_process.main()
