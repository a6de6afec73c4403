"""Trains by checkpoint_tool, in a process of its own."""
import json
import os
import subprocess
import tempfile

from torch_checkpoint_test import read_safetensors


def train_by_tool(tool, folder, spec):
    """The loss of every step and the weights at the end, of a job of one phase whose data lie in `folder`."""
    with tempfile.TemporaryDirectory() as out:
        paths = {name: os.path.join(out, name) for name in ("spec.json", "checkpoints", "events")}
        with open(paths["spec.json"], "w") as f:
            json.dump(spec, f)
        subprocess.run([tool, "train", paths["spec.json"], paths["checkpoints"], folder, paths["events"]], check=True)
        with open(paths["events"]) as f:
            events = [json.loads(line) for line in f]
        (name,) = os.listdir(paths["checkpoints"])
        weights = read_safetensors(os.path.join(paths["checkpoints"], name, "model.safetensors"))
    return [e["step"]["phases"][0]["loss"] for e in events if "step" in e], weights
