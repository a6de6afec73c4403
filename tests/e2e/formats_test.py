"""docs/formats.md against what a daemon leaves: the state directory, a checkpoint's files and fields, the database's tables."""

import glob
import hashlib
import json
import os
import re
import sqlite3

import ampd_process
from ampd_process import DaemonTest, glyphs_job
from safetensors_file import read_safetensors

with open(os.path.join(ampd_process.SOURCE, "docs/formats.md")) as page:
    PAGE = page.read()


def first_column(text):
    """What stands in backticks in the first column of the tables of a text."""
    return {name for line in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`([^`]+)`", line)}


def rows(section):
    (found,) = [part for part in re.split(r"^## ", PAGE, flags=re.M) if part.startswith(section)]
    return first_column(found)


def keys(value):
    """Names of all the fields within."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


class FormatsTest(DaemonTest):
    def test_a_daemon_leaves_what_the_page_says(self):
        ampd = self.daemon()
        spec = glyphs_job("formats", mode="FP8", optimizer={"adamw": {"learning_rate": 0.002}, "ema": {"decay": 0.9}},
                          checkpoint={"every_steps": 4, "keep_best": "accuracy"},
                          train={"epochs": 3, "batch_size": 32, "early_stopping": {"patience": 9}},
                          data={"train": {"glyphs": {"samples": 128}}, "eval": {"glyphs": {"samples": 64}}})
        # The first and the last layer do not compute in FP8.
        spec["model"]["layers"].insert(-1, {"name": "middle", "dense": {"units": 16}})
        job = ampd.run(spec)
        self.assert_state(job, "SUCCEEDED")
        folder = os.path.join(ampd.state_dir, "checkpoints", job.id, job.summary.checkpoint)
        self.check_directory(ampd.state_dir)
        self.check_manifest(folder)
        self.check_state(folder)
        self.check_tensors(folder)
        self.check_tables(ampd.state_dir)

    def check_directory(self, state_dir):
        named = {name.split("/")[0] for name in rows("The state directory")}
        self.assertEqual(set(os.listdir(state_dir)) - named - {"ampd.log"}, set())
        self.assertEqual(len(glob.glob(os.path.join(state_dir, "tensorboard/*/events.out.tfevents.*.ampd"))), 1)

    def check_manifest(self, folder):
        with open(os.path.join(folder, "MANIFEST")) as file:
            lines = file.readlines()
        listed = {line.split()[2] for line in lines}
        self.assertEqual(listed, set(os.listdir(folder)))
        self.assertEqual({name for name in rows("A checkpoint") if "." in name or name.isupper()}, listed)
        for line in lines[:-1]:
            checksum, size, name = line.split()
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            self.assertEqual((hashlib.sha256(data).hexdigest(), len(data)), (checksum, int(size)), name)
        before = "".join(lines[:-1]).encode()
        self.assertEqual(lines[-1], f"{hashlib.sha256(before).hexdigest()} {len(before)} MANIFEST\n")

    def check_state(self, folder):
        with open(os.path.join(folder, "state.json")) as file:
            state = json.load(file)
        self.assertEqual(str(state["format_version"]), re.search(r"\| `format_version` \| (\d+)", PAGE)[1])
        followed = {field for field, value in json.loads(state["spec"]).items() if value}
        self.assertEqual(followed, {"seed", "model", "data", "precision", "optimizer", "train"})
        fields = re.split(r"\*\*Fields of `state.json`:\*\*", PAGE)[1].split("\n## ")[0]
        self.assertEqual(keys(state) - set(re.findall(r"`(\w+)`", fields)), set())
        # This job is of no file.
        self.assertEqual(first_column(fields) - keys(state), {"onnx_sha256"})

    def check_tensors(self, folder):
        model, optimizer, average = (read_safetensors(os.path.join(folder, f"{name}.safetensors"))
                                     for name in ("model", "optimizer", "ema"))
        self.assertEqual(set(average), set(model))
        parameters = {name for name in model if "running_" not in name and "num_batches" not in name}
        moments = {name for name in optimizer if re.search(r"\.m\d$", name)}
        self.assertEqual(moments, {f"{name}.m{i}" for name in parameters for i in (1, 2)})
        self.assertEqual({name.rsplit(".", 1)[1] for name in set(optimizer) - moments}, {"amax_history", "amax_count", "scale"})

    def check_tables(self, state_dir):
        with sqlite3.connect(f"file:{state_dir}/ampd.db?mode=ro", uri=True) as database:
            tables = {name for name, in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            (version,) = database.execute("SELECT max(version) FROM migrations").fetchone()
        self.assertEqual(rows("The database"), tables)
        self.assertEqual(str(version), re.search(r"the schema's version (\d+)", PAGE)[1])


if __name__ == "__main__":
    ampd_process.main()
