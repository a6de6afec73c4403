"""The Python package as pip and type checkers see it: how it is built, what it needs, and that it works with libraries of all ages."""

import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import ampd
from ampd import plot

import ampd_process

HERE = os.path.dirname(os.path.realpath(__file__))
PYTHON = os.path.join(ampd_process.SOURCE, "client/python")
EXAMPLES = sorted(glob.glob(os.path.join(ampd_process.SOURCE, "client/examples/*.yaml")))
PACKAGE = os.path.realpath(os.path.dirname(os.path.dirname(ampd.__file__)))

# Releases long after Debian's, which lack what was deprecated; fixed ones, so that a run can be repeated.
NEW_LIBRARIES = ["grpcio==1.85.1", "protobuf==7.36.2"]
NEW_TOOLS = ["grpcio-tools==1.85.1", "setuptools==80.9.0", "wheel==0.45.1"]
# Prints what job files, changes to them and mistakes in them mean.
READ_SPECS = """
import google.protobuf, hashlib, json, sys
from ampd import spec, errors
meanings = {}
for path in json.load(sys.stdin):
    for sets in ([], ["model.layers[0].name=x"], ["data.augment=x", "optimizer.adamw.betas=3"], ["labels.a=b", "name.b=3"], ["train=[1]"]):
        try:
            message = spec.read_spec(path, sets).message
            meanings[f"{path} {sets}"] = hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()
        except errors.Error as error:
            meanings[f"{path} {sets}"] = str(error)
print(json.dumps([google.protobuf.__version__, meanings]))
"""


class PackageTest(unittest.TestCase):
    def test_plots_say_what_is_missing(self):
        with mock.patch.dict(sys.modules, {"matplotlib": None, "matplotlib.figure": None}):
            with self.assertRaisesRegex(ImportError, "python3-matplotlib"):
                plot.draw(ampd.History())
        result = subprocess.run([sys.executable, "-c", "import sys, ampd; sys.exit('matplotlib' in sys.modules)"])
        self.assertEqual(result.returncode, 0, "matplotlib is imported only where something is drawn")

    def test_types(self):
        if shutil.which("mypy") is None:
            self.skipTest("mypy is not installed")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(PACKAGE, "ampd"), os.path.join(folder, "ampd"))
            result = subprocess.run(["mypy", "--config-file", os.path.join(PYTHON, "pyproject.toml"), "--cache-dir",
                                     os.path.join(folder, "cache")], cwd=folder, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def copied_sources(self, folder):
        """The package's folder beneath a copy of the checkout: a build writes beside its sources."""
        shutil.copytree(os.path.join(ampd_process.SOURCE, "proto"), os.path.join(folder, "proto"))
        return shutil.copytree(PYTHON, os.path.join(folder, "client/python"),
                               ignore=shutil.ignore_patterns("build", "*.egg-info", "v1"))

    def test_a_build_asks_for_a_compiler_of_protos_where_there_is_none(self):
        if importlib.util.find_spec("setuptools") is None or importlib.util.find_spec("wheel") is None:
            self.skipTest("setuptools or wheel is not installed")
        code = "import build_backend as b; print(b.get_requires_for_build_wheel(), b.get_requires_for_build_editable())"
        with tempfile.TemporaryDirectory() as folder:
            source = self.copied_sources(folder)
            for path, wanted in [(os.environ["PATH"], 0), (folder, 2)]:
                result = subprocess.run([sys.executable, "-c", code], cwd=source, env=dict(os.environ, PATH=path),
                                        capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stdout.splitlines()[-1].count("grpcio-tools"), wanted, result.stdout)

    def test_it_needs_what_its_stubs_need(self):
        with mock.patch.object(sys, "path", [PYTHON, *sys.path]):
            generate = importlib.import_module("generate")
        versions = {"probe_pb2.py": "_runtime_version.Domain.PUBLIC,\n    8,\n    35,\n    1,\n",
                    "probe_pb2_grpc.py": "GRPC_GENERATED_VERSION = '1.85.1'\n"}

        def protoc(command, check):
            for name, text in versions.items():
                with open(os.path.join(os.path.dirname(command[-1]), name), "w") as file:
                    file.write(text)

        with mock.patch.object(generate.subprocess, "run", protoc):
            self.assertEqual(generate.requirements(), ["grpcio>=1.85.1,<2", "protobuf>=8.35.1,<9"])
            # Of old compilers, which say nothing.
            versions.update({name: "" for name in versions})
            self.assertEqual(generate.requirements(), ["grpcio>=1.51,<2", "protobuf>=4.21,<8"])

    def test_with_new_libraries_and_no_compiler_of_the_system(self):
        if importlib.util.find_spec("pip") is None:
            self.skipTest("pip is not installed")
        with tempfile.TemporaryDirectory() as folder:
            target = self.installed_with_new_libraries(folder)
            (metadata,) = glob.glob(os.path.join(target, "ampd-*.dist-info/METADATA"))
            with open(metadata) as file:
                self.assertIn("protobuf<8,>=7.", file.read())
            old, new = (self.read_specs(path) for path in (os.environ["PYTHONPATH"], target))
            self.assertNotEqual(old[0], new[0])
            self.assertEqual(old[1], new[1])
            tests = ["python_client_test.MisbehavingServerTest", "python_client_test.TransportTest"]
            result = subprocess.run([sys.executable, "-m", "unittest", *tests], capture_output=True, text=True,
                                    cwd=HERE, env=dict(os.environ, PYTHONPATH=target))
            self.assertEqual(result.returncode, 0, result.stderr)

    def installed_with_new_libraries(self, folder):
        """A folder that pip put the package into, built in an environment of its own without protoc, and NEW_LIBRARIES."""
        constraints, target = os.path.join(folder, "constraints.txt"), os.path.join(folder, "target")
        with open(constraints, "w") as file:
            file.write("\n".join([*NEW_LIBRARIES, *NEW_TOOLS]))
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        environment = dict(os.environ, PIP_ROOT_USER_ACTION="ignore", PIP_CONSTRAINT=constraints, PATH=folder)
        environment.pop("PYTHONPATH")
        there = subprocess.run([*pip, "install", "--only-binary=:all:", "--target", target, *NEW_LIBRARIES],
                               capture_output=True, text=True, env=environment)
        if there.returncode != 0:
            self.skipTest(f"pip cannot install {NEW_LIBRARIES}: {there.stderr.strip()[-200:]}")
        built = subprocess.run([*pip, "install", "--no-deps", "--target", target, self.copied_sources(folder)], capture_output=True,
                               text=True, env=environment)
        self.assertEqual(built.returncode, 0, built.stderr)
        return target

    def read_specs(self, python_path):
        result = subprocess.run([sys.executable, "-W", "error", "-c", READ_SPECS], input=json.dumps(EXAMPLES), capture_output=True,
                                text=True, env=dict(os.environ, PYTHONPATH=python_path))
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_pip_installs_it(self):
        if importlib.util.find_spec("pip") is None or importlib.util.find_spec("wheel") is None:
            self.skipTest("pip or wheel is not installed")
        with tempfile.TemporaryDirectory() as folder:
            source = self.copied_sources(folder)
            target = os.path.join(folder, "target")
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
                            "--target", target, source], check=True, env=dict(os.environ, PIP_ROOT_USER_ACTION="ignore"))
            for wanted in ("py.typed", "google_rpc.binpb", "v1/training_service_pb2.pyi"):
                self.assertTrue(os.path.isfile(os.path.join(target, "ampd", wanted)), wanted)
            code = "import ampd, ampd.v1.job_pb2; print(ampd.__file__, ampd.__version__)"
            result = subprocess.run([sys.executable, "-c", code], cwd=folder, env=dict(os.environ, PYTHONPATH=target),
                                    capture_output=True, text=True, check=True)
        self.assertTrue(result.stdout.startswith(target), result.stdout)
        with open(os.path.join(ampd_process.SOURCE, "CMakeLists.txt")) as file:
            self.assertIn(f"project(ampd VERSION {ampd.__version__} ", file.read())


if __name__ == "__main__":
    ampd_process.main()
