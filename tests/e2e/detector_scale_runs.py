"""Trains the detector of detector_scale_test.py to the end in FP32 and in FP16 at scale 1, 8 and with dynamic scaling.

usage: detector_scale_runs.py [MODE...]

Prints a table of what each reached. Takes some minutes a mode on one thread.
"""

import os
import sys
import tempfile

import ampd_process
import drawn_scenes
from detector_scale_test import BITS, MODES, SIZE, job

BATCH, EPOCHS = 4096, 48
OPTIMIZER = {"sgd": {"learning_rate": 0.07, "momentum": 0.9}, "schedule": {"cosine": {"warmup_steps": 8}},
             "groups": [{"match": "head*.weight", "learning_rate_scale": 1.5e-8}]}


def run(ampd, mode):
    spec = job(mode, BATCH, {"epochs": EPOCHS, "eval_every_epochs": EPOCHS // 3})
    spec["data"]["eval"] = {"npy": {"inputs": "eval.npz"}}
    spec["optimizer"] = OPTIMIZER
    spec["report"] = {"every_steps": 1, "diagnostics_every_steps": EPOCHS // 2}
    done = ampd.wait(ampd.submit(spec).id, seconds=3600)
    if ampd_process.state_name(done.state) != "SUCCEEDED":
        raise SystemExit(f"{mode}: {done.failure}")
    events = list(ampd.events(done.id))
    last = [event.evaluation for event in events if event.HasField("evaluation")][-1]
    loss = [event.step.phases[0].loss for event in events if event.HasField("step")][-1]
    tensors = [t for event in events if event.HasField("gradient_diagnostics")
               for t in event.gradient_diagnostics.tensors if not t.of_parameter]
    flushed = sum(t.nonzero * t.flushed_unscaled for t in tensors) / sum(t.nonzero for t in tensors)
    print(f"| {mode} | {loss:.3f} | {last.loss:.3f} | {last.metrics['mean_average_precision']:.3f} | {flushed:.1%} | "
          f"{done.summary.loss_scale:g} | {done.summary.steps_skipped} |", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, samples, seed in (("train", BATCH, 1), ("eval", 64, 2)):
            drawn_scenes.save(os.path.join(folder, name + ".npz"), samples, SIZE, 2, seed, BITS)
        ampd = ampd_process.Daemon(data_roots=[folder]).start()
        print("| mode | training loss | evaluation loss | mean average precision | gradients that fp16 flushes unscaled | "
              "last scale | skipped |\n|---|---|---|---|---|---|---|")
        try:
            for mode in sys.argv[1:] or MODES:
                run(ampd, mode)
        finally:
            ampd.close()


if __name__ == "__main__":
    main()
