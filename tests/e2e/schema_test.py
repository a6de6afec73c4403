"""`ampctl schema` and `ampctl init` against a checker of schemas that is not ours, and against the daemon."""

import copy
import json
import os
import re
import wave

import numpy
import yaml

import ampd_process
from ampd_process import DaemonTest, OneDaemonTest, glyphs_job

try:
    import jsonschema
except ImportError:
    jsonschema = None

STARTERS = ("layers", "mlp", "convnet", "resnet", "gpt2", "unet", "ssd", "speech", "acgan")


class Loader(yaml.SafeLoader):
    """Scalars as YAML 1.2 has them, as job files and editors do: "yes" and times are strings, 1e3 is a number."""


Loader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
        ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"), ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("int", "[-+]?[0-9]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789")):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))

# Path, value (None: a null, "": take it away), and whether a job file may have it.
CHANGES = [
    ("train.batch_size", 64, True),
    ("train.batch_size", "64", True),
    ("train.batch_size", 64.0, True),
    ("train.batch_size", 64.5, False),
    ("train.batch_size", "many", False),
    ("train.batch_size", [64], False),
    ("train.batch_size", None, False),
    ("train.batch_sise", 64, False),
    ("seed", 2**63, True),
    ("seed", -1, False),
    ("name", "x", True),
    ("name", 5, False),
    ("precision.mode", "fp16", True),
    ("precision.mode", "Bf16", True),
    ("precision.mode", 4, True),
    ("precision.mode", "FP17", False),
    ("precision.mode", 99, False),
    ("precision.mode", True, False),
    ("precision.rules", [{"match": "head", "dtype": "fp32"}], True),
    ("precision.rules", {"match": "head"}, False),
    ("optimizer", {"sgd": {"learning_rate": "0.1"}}, True),
    ("optimizer", {"sgd": {"learning_rate": "fast"}}, False),
    ("optimizer", {"sgd": {}, "adam": {}}, False),
    ("model.layers.0", {"name": "conv", "conv2d": {}, "dense": {"units": 3}}, False),
    ("model.layers.0", {"name": "conv", "conv3d": {}}, False),
    ("labels", {"team": "vision"}, True),
    ("labels", {"team": 5}, False),
    ("labels", ["team"], False),
    ("not_before", "2020-01-31T12:00:00Z", True),
    ("not_before", 5, False),
    ("resources.share", "yes", False),
    ("resources.share", True, True),
    ("train", "fast", False),
]


def changed(spec, path, value):
    spec = copy.deepcopy(spec)
    *folders, name = path.split(".")
    place = spec
    for folder in folders:
        place = place[int(folder)] if isinstance(place, list) else place.setdefault(folder, {})
    place[int(name) if isinstance(place, list) else name] = value
    return spec


class SchemaTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.data = os.path.join(self.folder, "data")
        os.mkdir(self.data)
        self.ampd = self.daemon(data_roots=[self.data])
        if jsonschema is None:
            self.skipTest("python3-jsonschema is not installed")
        schema = json.loads(self.ctl(0, "schema").stdout)
        jsonschema.Draft202012Validator.check_schema(schema)
        self.validator = jsonschema.Draft202012Validator(schema)

    def errors(self, document):
        return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in self.validator.iter_errors(document)]

    def test_it_takes_every_example_and_what_get_prints(self):
        folder = os.path.join(ampd_process.SOURCE, "client/examples")
        names = sorted(os.listdir(folder))
        self.assertGreater(len(names), 10)
        for name in names:
            with open(os.path.join(folder, name)) as file:
                self.assertEqual(self.errors(yaml.load(file, Loader)), [], name)
        job_id = self.ctl(0, "submit", "-q", self.job_file(glyphs_job(steps=2))).stdout.strip()
        resolved = yaml.load(self.ctl(0, "get", job_id, "-o", "yaml").stdout, Loader)
        self.assertGreater(len(resolved), 5)
        self.assertEqual(self.errors(resolved), [])

    def test_it_agrees_with_the_daemon(self):
        spec = glyphs_job(steps=2)
        self.assertEqual(self.errors(spec), [])
        for path, value, good in CHANGES:
            with self.subTest(path=path, value=value):
                document = changed(spec, path, value)
                self.assertEqual(self.errors(document) == [], good, self.errors(document))
                self.ctl(0 if good else 2, "submit", "--dry-run", "-q", self.job_file(document))

    def ctl(self, code, *arguments):
        result = self.ampd.ctl(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result

    def arrays(self, x, y):
        for name in ("train.npz", "test.npz"):
            numpy.savez(os.path.join(self.data, name), x=x, y=y)

    def bring_data(self, starter):
        """What the starter's head asks for."""
        if starter == "mlp":
            self.arrays(numpy.zeros((128, 8), numpy.float32), numpy.zeros(128, numpy.float32))
        elif starter == "unet":
            self.arrays(numpy.zeros((64, 32, 32), numpy.uint8), numpy.zeros((64, 32 * 32), numpy.int64))
        elif starter == "ssd":
            self.arrays(numpy.zeros((64, 64, 64, 3), numpy.uint8), numpy.full((64, 2, 5), -1, numpy.float32))
        elif starter == "gpt2":
            with open(os.path.join(self.data, "input.txt"), "w") as file:
                file.write("To be, or not to be: that is the question.\n" * 200)
        elif starter == "speech":
            os.mkdir(os.path.join(self.data, "recordings"))
            for word in ("yes", "no"):
                for take in range(32):
                    with wave.open(os.path.join(self.data, f"recordings/{word}_{take}.wav"), "wb") as file:
                        file.setparams((1, 2, 8000, 0, "NONE", ""))
                        file.writeframes(bytes(2 * 4000))

    def test_starters_pass_both(self):
        for starter in STARTERS:
            with self.subTest(starter=starter):
                self.bring_data(starter)
                path = os.path.join(self.folder, f"{starter}.yaml")
                self.ctl(0, "init", path, "--preset", starter)
                with open(path) as file:
                    text = file.read()
                self.assertEqual(self.errors(yaml.load(text, Loader)), [])
                result = self.ctl(0, "submit", "--dry-run", path)
                self.assertIn(f"valid: {starter}; nothing was submitted", result.stdout)
                self.assertIn(" parameters; memory: ", result.stdout)


class InitTest(OneDaemonTest):
    def test_a_starter_trains(self):
        text = self.ctl(0, "init").stdout
        path = self.job_file(text, "first.yaml")
        result = self.ctl(0, "submit", path, "--set", "train.epochs=null", "--set", "train.steps=3", "--watch")
        self.assertRegex(result.stdout.splitlines()[-1], "^SUCCEEDED accuracy=")

    def test_a_file_that_is_there_stays(self):
        path = self.job_file("mine", "job.yaml")
        self.assertIn("exists already", self.ctl(2, "init", path).stderr)
        with open(path) as file:
            self.assertEqual(file.read(), "mine")
        self.assertIn("No such file", self.ctl(2, "init", os.path.join(self.folder, "none/job.yaml")).stderr)
        self.assertIn("did you mean resnet?", self.ctl(2, "init", "--preset", "resnt").stderr)


if __name__ == "__main__":
    ampd_process.main()
