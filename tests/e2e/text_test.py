"""A tiny GPT-2 learns from a text file, and shows what it would write; on Shakespeare where the data are."""

import os
import unittest

import ampd_process
from ampd_process import DaemonTest

DATA = ampd_process.shared_data("tinyshakespeare")
JOB = os.path.join(ampd_process.SOURCE, "client/examples/shakespeare-gpt.yaml")
# Of bytes drawn by how often each occurs in the text: 3.3 nats; a model of pairs of bytes gets to 2.5.
CEILING = 2.9
TINY = ["--set", "model.preset.gpt2={layers: 1, heads: 2, features: 32, positions: 32, dropout: 0}"]


def windows(path, **part):
    fields = ", ".join(f"{name}: {value}" for name, value in {"path": path, "sequence_length": 32, **part}.items())
    return "{text: {" + fields + "}}"


class TextTest(DaemonTest):
    def submit(self, ampd, *sets):
        args = [arg for item in sets for arg in ("--set", item)]
        result = ampd.ctl("submit", JOB, "-q", *TINY, *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        job = ampd.wait(result.stdout.strip(), seconds=200)
        self.assert_state(job, "SUCCEEDED")
        return job

    def test_a_cycle_is_learned_and_written(self):
        root = os.path.join(self.folder, "data")
        os.makedirs(root)
        cycle = "to be, or not to be: that is the question. "
        with open(os.path.join(root, "cycle.txt"), "w") as f:
            f.write(cycle * 60)
        ampd = self.daemon(data_roots=[root])
        job = self.submit(ampd, f"data.train={windows('cycle.txt', stride=5)}", f"data.eval={windows('cycle.txt')}",
                          "train={steps: 150, batch_size: 16}", "optimizer.adamw.learning_rate=0.01",
                          "report.samples={every_steps: 100, text: {prompt: 'or not', length: 86, temperature: 0}}")
        self.assertLess(job.summary.eval_loss, 0.3)
        lines = ampd.ctl("watch", job.id).stdout.splitlines()
        samples = [line for line in lines if "sample after step" in line]
        self.assertEqual(len(samples), 2, lines)
        self.assertIn("sample after step 150: or not to be: that is the question. to be, or not to be", samples[-1])

    @unittest.skipUnless(DATA, "no ../shared/data/tinyshakespeare here")
    def test_shakespeare_begins_to_be_learned(self):
        ampd = self.daemon(data_roots=[os.path.dirname(DATA)])
        path = "tinyshakespeare/input.txt"
        job = self.submit(ampd, f"data.train={windows(path, end=0.9)}",
                          f"data.eval={{text: {{path: {path}, sequence_length: 32, begin: 0.9}}, limit: 512}}",
                          "train={steps: 300, batch_size: 16}", "optimizer.adamw.learning_rate=0.005",
                          "report.samples=null")
        print("nats a byte after 300 steps:", job.summary.eval_loss, flush=True)
        self.assertLess(job.summary.eval_loss, CEILING)


if __name__ == "__main__":
    ampd_process.main()
