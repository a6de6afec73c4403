"""The kinds of jobs that live through the chaos, and what must hold of each once it has ended."""

import copy
import os
import struct

from ampd_process import TERMINAL, failure_class, glyphs_job, state_name
from ampd.v1 import job_pb2

TEXT = "cycle.txt"
# Failures by kills are the test's own.
MANY = {"max_attempts": 1000}
# Steps of `half`.
HALF = 200


def write_data(root):
    os.makedirs(root)
    with open(os.path.join(root, TEXT), "w") as file:
        file.write("to be, or not to be: that is the question. " * 60)


def perceptron():
    """FP32, evaluated every epoch, with a limit that only a clock that jumps could reach."""
    spec = glyphs_job("perceptron", steps=600, batch_size=128, every_steps=50, retry=MANY)
    spec["model"]["layers"] = [{"name": "flat", "flatten": {}}, {"name": "fc", "dense": {"units": 256}},
                               {"name": "act", "relu": {}}, {"name": "drop", "dropout": {"rate": 0.2}},
                               {"name": "head", "dense": {"units": 10}}]
    spec["optimizer"] = {"sgd": {"learning_rate": 0.05, "momentum": 0.9}}
    spec["limits"] = {"max_run_seconds": 1800}
    return spec


def convolution():
    """FP16 with dropout, batch norm and a running average."""
    return glyphs_job("convolution", steps=400, mode="FP16", batch_size=64, every_steps=37, retry=MANY,
                      optimizer={"adamw": {"learning_rate": 0.002}, "ema": {"decay": 0.99}})


def half():
    """The first half of `convolution`."""
    spec = convolution()
    spec["name"] = "half"
    spec["train"]["steps"] = HALF
    return spec


def continued():
    """Goes on where a `half` stands; whoever submits it says which."""
    spec = convolution()
    spec["name"] = "continued"
    spec["start_from"] = {"continue_training": True}
    return spec


def adversaries():
    """Two phases, each with its own loss scale."""
    generator = [{"name": "fc", "dense": {"units": 784}}, {"name": "image", "sigmoid": {}},
                 {"name": "shape", "reshape": {"shape": [28, 28, 1]}}]
    judge = [{"name": "flat", "flatten": {}}, {"name": "fc", "dense": {"units": 64}}, {"name": "act", "relu": {}},
             {"name": "head", "dense": {"units": 1}}]
    entropy = {"sigmoid_cross_entropy": {}}
    spec = glyphs_job("adversaries", steps=300, mode="FP16", batch_size=32, every_steps=60, retry=MANY)
    spec["model"] = {"networks": [{"name": "generator", "layers": generator}, {"name": "judge", "layers": judge}],
                     "noise": [{"name": "z", "shape": [16]}]}
    spec["data"] = {"train": {"glyphs": {"samples": 1024}}}
    fake = {"name": "fake", "network": "generator", "inputs": ["z"]}
    on_fake = {"name": "on_fake", "network": "judge", "inputs": ["fake"]}
    on_real = {"name": "on_real", "network": "judge", "inputs": ["data"]}
    spec["phases"] = [
        {"name": "judge", "trains": ["judge"], "calls": [fake, on_real, on_fake],
         "losses": [{"input": "on_real", "loss": entropy, "target": 1},
                    {"input": "on_fake", "loss": entropy, "target": 0}]},
        {"name": "generator", "trains": ["generator"], "calls": [fake, on_fake],
         "losses": [{"input": "on_fake", "loss": entropy, "target": 1}]}]
    return spec


def text():
    """A transformer in BF16 on a file."""
    spec = glyphs_job("text", steps=150, mode="BF16", batch_size=16, every_steps=30, retry=MANY)
    spec["model"] = {"preset": {"gpt2": {"layers": 1, "heads": 2, "features": 32, "positions": 32, "dropout": 0.1}}}
    part = {"text": {"path": TEXT, "sequence_length": 32, "stride": 5}}
    spec["data"] = {"train": part, "eval": part}
    return spec


def bench():
    spec = glyphs_job("bench", retry=MANY)
    spec["bench"] = {"modes": ["FP32", "BF16", "FP16"], "batch_sizes": [16, 32], "steps": 10, "warmup_steps": 1}
    return spec


def diverging():
    """Fails by itself, at the same step, whatever happens around it."""
    spec = convolution()
    spec["name"] = "diverging"
    spec["precision"] = {"mode": "FP32"}
    spec["optimizer"] = {"sgd": {"learning_rate": 1e30}}
    spec["limits"] = {"max_skip_ratio": 0.5, "skip_window_steps": 100}
    return spec


def cancelled():
    return glyphs_job("cancelled", steps=100000, every_steps=200, retry=MANY)


# By name: the spec, and how it ends.
KINDS = {
    "perceptron": (perceptron, "SUCCEEDED"),
    "convolution": (convolution, "SUCCEEDED"),
    "half": (half, "SUCCEEDED"),
    "continued": (continued, "SUCCEEDED"),
    "adversaries": (adversaries, "SUCCEEDED"),
    "text": (text, "SUCCEEDED"),
    "bench": (bench, "SUCCEEDED"),
    "diverging": (diverging, "FAILED"),
    "cancelled": (cancelled, "CANCELLED"),
}


def bits(value):
    return struct.pack("<d", value)


def training_of(events):
    """What the training came to, by step: losses of each phase, evaluations and skips, of the last time it was taken."""
    steps = {}
    for event in events:
        if event.HasField("step"):
            assert event.step.first_step == event.step.last_step, event.step
            steps[("loss", event.step.last_step)] = [
                (phase.name, bits(phase.loss), phase.loss_scale, phase.steps_applied, phase.steps_skipped)
                for phase in event.step.phases]
        if event.HasField("evaluation"):
            steps[("evaluation", event.evaluation.step)] = sorted(
                (name, bits(value)) for name, value in event.evaluation.metrics.items())
        if event.HasField("overflow_skip"):
            skip = copy.deepcopy(event.overflow_skip)
            steps[("skip", skip.step, skip.phase)] = skip.SerializeToString(deterministic=True)
    return steps


def behind(step, training):
    """Of what training_of() tells, what comes behind that step."""
    return {key: value for key, value in training.items() if key[1] > step}


def losses(training):
    """Of what training_of() tells, the losses and scales: counts of steps are a job's own."""
    return {key: [phase[:3] for phase in phases] for key, phases in training.items() if key[0] == "loss"}


def check_sequences(events):
    """1..N, no gap and no duplicate, with the terminal event last and nowhere else."""
    following = 1
    for event in events:
        assert event.first_sequence == following <= event.sequence, (following, event)
        following = event.sequence + 1
    ends = [e.sequence for e in events if e.HasField("state_change") and e.state_change.to in TERMINAL]
    assert ends == [events[-1].sequence], (ends, events[-1])


def check_chain(events):
    """Each state change leaves the state that the one before entered; attempts count up by one."""
    state = job_pb2.Job.STATE_UNSPECIFIED
    attempt = 0
    for event in events:
        if not event.HasField("state_change"):
            assert event.attempt == attempt, event
            continue
        assert event.state_change.__getattribute__("from") == state, event
        state = event.state_change.to
        if state == job_pb2.Job.STARTING:
            attempt += 1


def story(events):
    """What happened to a job besides its steps, and between which of them, a line each."""
    lines, last = [], 0
    for event in events:
        if event.HasField("step"):
            if event.step.first_step != last + 1:
                lines.append(f"{event.sequence}: steps {last} and then {event.step.first_step}")
            last = event.step.last_step
        elif not event.HasField("evaluation"):
            lines.append(f"{event.sequence}: attempt {event.attempt}, behind step {last}: {str(event)!r}"[:600])
    return "\n".join(lines)


def check_repeats(events, last=0):
    """A step report, or a cell of a bench, follows the one before it, or the `rewound` that leads back to it."""
    for event in events:
        if event.HasField("rewound"):
            assert event.rewound.to_step < last, event
            last = event.rewound.to_step
        elif event.HasField("step"):
            assert event.step.first_step == last + 1, f"{last}, {event}\n{story(events)}"
            last = event.step.last_step
        elif event.HasField("bench_cell"):
            assert event.bench_cell.index == last + 1, (last, event)
            last = event.bench_cell.index
    return last


def check_ended(kind, job, events, reference):
    """All that must hold of a job of `kind`; `reference` is what an uninterrupted one came to."""
    check_sequences(events)
    check_chain(events)
    last = check_repeats(events, HALF if kind == "continued" else 0)
    wanted = KINDS[kind][1]
    assert state_name(job.state) == wanted, f"{kind} {job.id}: {state_name(job.state)}: {job.failure}"
    assert job.last_sequence == events[-1].sequence
    if wanted == "CANCELLED":
        return
    if kind == "diverging":
        assert failure_class(job.failure) == "LIMIT", job.failure
    if kind == "bench":
        assert last == 6, events
    got = training_of(events)
    assert sorted(got) == sorted(reference), (kind, sorted(set(got) ^ set(reference)))
    different = [step for step in sorted(got) if got[step] != reference[step]]
    assert not different, f"{kind} {job.id}: not as in the uninterrupted run: {different[:20]}"
