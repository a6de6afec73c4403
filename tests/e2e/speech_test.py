"""A small speech network learns to spell one speaker's digits from wav files."""

import os
import unittest

import ampd_process
from ampd_process import DaemonTest

DATA = ampd_process.shared_data("fsdd")
JOB = os.path.join(ampd_process.SOURCE, "client/examples/fsdd-speech.yaml")
SMALL = [
    "data.train.wav_folder.include=[0_jackson_*, 1_jackson_*, 2_jackson_*]",
    "data.eval.wav_folder.include=[\"[0-2]_jackson_[0-4].wav\"]", "data.length_buckets=[32, 48, 64, 96]",
    "model.preset.speech={filters: 8, units: 32, layers: 1, recurrent: GRU}", "optimizer.adamw.learning_rate=0.01",
    "optimizer.schedule.cosine.warmup_steps=20",
    "train.batch_size=16", "train.epochs=40", "train.eval_every_epochs=10"
]


@unittest.skipUnless(DATA, "no ../shared/data/fsdd here")
class SpeechTest(DaemonTest):
    def test_learns_to_spell(self):
        ampd = self.daemon(data_roots=[os.path.dirname(DATA)])
        sets = [word for change in SMALL for word in ("--set", change)]
        result = ampd.ctl("submit", JOB, "-q", *sets)
        self.assertEqual(result.returncode, 0, result.stderr)
        job_id = result.stdout.strip()
        self.assert_state(ampd.wait(job_id, seconds=300), "SUCCEEDED")
        evaluations = [event.evaluation for event in ampd.events(job_id) if event.HasField("evaluation")]
        metrics = dict(evaluations[-1].metrics)
        print("after forty epochs:", metrics, flush=True)
        self.assertEqual(evaluations[-1].samples, 15)
        self.assertLess(metrics["label_error_rate"], 0.3)
        self.assertGreater(metrics["exact_match"], 0.3)
        self.assertGreater(metrics["beam_exact_match"], 0.5)


if __name__ == "__main__":
    ampd_process.main()
