"""The Python client against a real daemon, beside ampctl, and against a server that misbehaves on purpose."""

import contextlib
import glob
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import grpc
import numpy as np
from google.protobuf import json_format

import ampd
from ampd import errors, plot, safetensors
from ampd.v1 import job_pb2

import ampd_process
from ampd_process import DaemonTest, OneDaemonTest, eventually, glyphs_job, losses_by_step
from fake_training_service import FakeTrainingService, event, manifest_of, serving
from fenced_blocks import fenced_blocks
from safetensors_file import read_safetensors

PYTHON = os.path.join(ampd_process.SOURCE, "client/python")
EXAMPLES = sorted(glob.glob(os.path.join(ampd_process.SOURCE, "client/examples/*.yaml")))
PACKAGE = os.path.realpath(os.path.dirname(os.path.dirname(ampd.__file__)))

# Values that readers of YAML take in different ways.
ODD_FILES = [
    "train: {batch_size: 1e3, steps: 50.0}",
    "labels: {yes: no, 12: \"0x10\", on: off, 1.5: ~x}",
    "seed: 18446744073709551615",
    "not_before: 2099-01-31T12:00:00.5Z",
    "name: \"123\"\nlimits: {max_cost_usd: Infinity}",
    "optimizer: {sgd: {learning_rate: 1_0}}",
    "name: 5",
    "name: true",
    "seed: 07",
    "seed: 0x10",
    "seed: -1",
    "seed: 1.5",
    "seed: 12:30",
    "train: {batch_sise: 3}",
    "train: {batch_size: ~}",
    "model:",
    "model: {layers: [{name: a, dense: {units: 3}, relu: {}}]}",
    "model: {layers: {name: a}}",
    "precision: {mode: fp17}",
    "name: &anchor x",
    "name: !!str 5",
    "a: 1\na: 2",
    "name: x\nname: y",
    "--- {name: a}\n--- {name: b}",
    "[1, 2]",
    "name: \"\\x07\"\ntrain: [",
    "name: 'first try",
    "labels: {a: 'x}",
    "labels:\n\ta: x",
    "optimizer: {adamw: {learning_rate: 1e999}}",
    "checkpoint: {every_seconds: 99999999999999999999}",
]


class SameAsAmpctlTest(OneDaemonTest):
    """Job files mean to this client what they mean to ampctl."""

    def submit_both(self, path, *sets):
        arguments = [argument for one in sets for argument in ("--set", one)]
        theirs = self.ampd.ctl("submit", path, "--dry-run", "-o", "json", *arguments)
        with ampd.Client(self.ampd.grpc_address) as client:
            try:
                ours, lines = client.validate(path, list(sets)), []
            except ampd.InvalidArgument as error:
                ours, lines = None, str(error).removeprefix("INVALID_ARGUMENT: ").splitlines()
        return theirs, ours, lines

    def assert_same(self, path, *sets):
        """The spec, where both take it; else the errors. Returns whether it was taken."""
        theirs, ours, lines = self.submit_both(path, *sets)
        if ours is None:
            self.assertEqual(theirs.returncode, 2, f"{path}\nampctl took it: {theirs.stdout}{theirs.stderr}\nhere: {lines}")
            return False
        self.assertEqual(theirs.returncode, 0, f"{path}\n{theirs.stderr}")
        spec = json_format.ParseDict(json.loads(theirs.stdout)["spec"], job_pb2.JobSpec())
        self.assertEqual(spec, ours.spec, path)
        return True

    def test_examples(self):
        taken = [os.path.basename(path) for path in EXAMPLES if self.assert_same(path)]
        # The others need data that is not here; both say so.
        self.assertLessEqual({"glyphs-convnet.yaml", "glyphs-dcgan.yaml"}, set(taken))

    def test_refusals_name_the_same_lines(self):
        path = self.job_file(glyphs_job(), "good.yaml")
        with open(path, "w") as file:
            file.write("name: wrong\ntrain:\n  epochs: 1\n  batch_size: -4\nprecision:\n  mode: FP16\n")
        theirs, ours, lines = self.submit_both(path)
        self.assertIsNone(ours)
        self.assertEqual(lines, theirs.stderr.splitlines())
        self.assertIn(f"{path}:4: train.batch_size", theirs.stderr)

    def test_odd_values(self):
        base = glyphs_job(steps=2)
        path = self.job_file(base)
        for text in ODD_FILES:
            with self.subTest(text):
                with open(path, "w") as file:
                    # JSON is YAML; what the odd file sets takes the place of the base's field.
                    top = text.partition(":")[0]
                    rest = {key: value for key, value in base.items() if key != top}
                    whole = text if text[0] in "[-" else text + "\n" + "\n".join(
                        f"{key}: {json.dumps(value)}" for key, value in rest.items()) + "\n"
                    file.write(whole)
                theirs, ours, lines = self.submit_both(path)
                if ours is not None:
                    self.assert_same(path)
                    continue
                self.assertEqual(theirs.returncode, 2, f"ampctl took it\n{theirs.stdout}\nhere: {lines}")
                # Parsers differ in their words; the place is the same.
                place = [line.split(": ")[0] for line in theirs.stderr.splitlines()]
                self.assertEqual([line.split(": ")[0] for line in lines], place, theirs.stderr + "\n".join(lines))

    def test_sets(self):
        path = self.job_file(glyphs_job())
        good = [["train.steps=7"], ["labels.team=vision", "labels.a.b='5'"], ["model.layers[6].dense.units=12"],
                ["model.layers[7]={name: more, relu: {}}"], ["optimizer={sgd: {learning_rate: 0.1}}"], ["seed=null"],
                ["precision.rules=[{match: head, dtype: FP32}]", "precision.rules[0].match=conv"],
                ["model.layers[0].conv2d.kernel=5", "model.layers[3].max_pool.size=2"],
                # In place of the file's train.steps, and of another that is set no more.
                ["train.epochs=1", "train.eval_every_steps=3"], ["train={epochs: 1}", "train.epochs=null", "train.steps=3"]]
        for sets in good:
            with self.subTest(sets):
                self.assertTrue(self.assert_same(path, *sets))
        for sets in [["optimizer.sgd.learning_rate=1"], ["modle=1"], ["model.layers[9].name=a"], ["seed.x=1"], ["model.layers=3"],
                     ["name"], ["train.steps=x"], ["labels.a=[1]"], ["model.layers[0].conv2d.kernel=x"],
                     ["model.layers[0].conv2d.kernel=2.5"], ["data.length_buckets=8"], ["train.epochs=1", "train.steps=3"],
                     ["train={epochs: 1}", "train.steps=3"]]:
            with self.subTest(sets):
                self.assertFalse(self.assert_same(path, *sets))
        swept = self.job_file(glyphs_job(sweep={"grid": {"train.epochs": [1, 2]}}), "swept.json")
        with self.assertRaisesRegex(ampd.InvalidArgument, "train.steps: the sweep gives train.epochs, which excludes it"):
            ampd.read_spec(swept, ["train.steps=7"])
        for wrong, meant in (({"optimizer": {"adamw": {"betas": [0.9, 0.99]}}}, "beta1 and beta2"),
                             ({"precision": {"mode": "half"}}, "FP16"), ({"train": {"lr": 1}}, "optimizer.<kind>.learning_rate")):
            with self.assertRaisesRegex(ampd.InvalidArgument, f"did you mean {meant}"):
                ampd.read_spec(wrong)

    def test_what_is_odd_is_warned_of(self):
        sets = ["train.steps=5", "optimizer.schedule={constant: {warmup_steps: 9}}"]
        odd = r"optimizer\.schedule\.constant\.warmup_steps: is 9, and the job takes 5 steps"
        with self.assertWarnsRegex(ampd.SubmitWarning, odd):
            theirs, _, _ = self.submit_both(self.job_file(glyphs_job()), *sets)
        self.assertRegex(theirs.stderr, "^warning: --set .*" + odd)
        self.assertEqual(theirs.returncode, 0)

    def test_a_mapping_says_what_a_file_says(self):
        spec = glyphs_job(labels={"a": "1"}, seed=np.int64(5))
        spec["train"]["steps"] = np.float32(40)
        with ampd.Client(self.ampd.grpc_address) as client:
            ours = client.validate(spec, {"train.batch_size": np.int32(16), "labels": {"b": "2"}}).spec
            self.assertEqual(client.validate(ours, {"labels.b": "2"}).spec, ours)
        self.assertEqual((ours.seed, ours.train.steps, ours.train.batch_size, dict(ours.labels)), (5, 40, 16, {"b": "2"}))
        for bad in ({"name": 5}, {"seed": "x"}, {"nmae": "x"}, {"train": None}, {"name": object()}, {"seed": True}):
            with self.subTest(bad), self.assertRaises(ampd.InvalidArgument):
                ampd.read_spec(bad)


class DaemonClientTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon()
        self.client = ampd.Client(self.ampd.grpc_address)
        self.addCleanup(self.client.close)

    def test_events_have_no_gap_over_a_killed_daemon(self):
        job = self.client.submit(glyphs_job(steps=150))
        lost, seen = [], []
        followed = threading.Thread(target=lambda: seen.extend(job.events(on_lost=lost.append, timeout=ampd_process.DEADLINE * 2)))
        followed.start()
        for step in (20, 60):
            eventually(lambda: any(e.HasField("step") and e.step.last_step >= step for e in list(seen)), f"step {step}")
            self.ampd.kill()
            self.ampd.start()
        followed.join(ampd_process.DEADLINE * 2)
        self.assert_sequence(seen)
        self.assertEqual(seen, list(job.events(follow=False)))
        # A daemon that is killed before it is found again is one loss.
        self.assertIn(len(lost), (1, 2), lost)
        self.assertEqual(sorted(losses_by_step(seen)), list(range(1, 151)))
        self.assertEqual(job.wait().state, "SUCCEEDED")
        self.assertEqual(list(job.events(after_sequence=seen[-4].sequence)), seen[-3:])
        curves = job.history().curves()
        self.assertEqual(list(curves.step), list(range(1, 151)))
        self.assertEqual(list(curves.loss), [loss for _, loss in sorted(losses_by_step(seen).items())])

    def test_verbs(self):
        first = self.client.submit(glyphs_job("first", steps=100000, labels={"team": "a"}))
        second = self.client.submit(glyphs_job("second", steps=3))
        self.assertEqual([job.id for job in self.client.list(states=["queued", "running", "starting"], page_size=1)],
                         [second.id, first.id])
        self.assertEqual(second.update(priority=7, set_labels={"x": "y"}).proto.spec.resources.priority, 7)
        second.pause()
        self.assertIn(self.client.get(second.id).state, ("PAUSED", "QUEUED"))
        self.ampd.wait_for_step(first.id, 3)
        profile = first.profile(steps=2)
        self.assertEqual(profile.last_step, profile.first_step + 1)
        self.assertIn("update", [part.name for part in profile.parts])
        saved = first.save_checkpoint()
        self.assertIn(saved.name, [checkpoint.name for checkpoint in first.checkpoints()])
        with self.assertRaises(ampd.DeadlineExceeded):
            first.wait(timeout=0.3)
        self.assertEqual(self.client.devices()[0].job_ids, [first.id])
        first.cancel()
        with self.assertRaises(ampd.JobFailed) as failed:
            first.wait()
        self.assertEqual(failed.exception.job.state, "CANCELLED")
        eventually(lambda: second.refresh().state == "PAUSED", "the pause")
        second.resume()
        self.assertEqual(second.wait().state, "SUCCEEDED")
        with self.assertRaises(ampd.FailedPrecondition):
            second.retry()
        self.assertIn(first.retry().state, ("QUEUED", "STARTING", "RUNNING"))
        eventually(lambda: first.refresh().state == "RUNNING", "its second attempt")
        first.cancel(now=True).wait(check=False)
        self.assertEqual(list(first.events(follow=False))[-1].state_change.reason, "cancelled by request, at once")
        device = self.client.devices()[0].id
        self.assertTrue(self.client.drain_device(device, "a test").conditions)
        self.assertFalse(self.client.undrain_device(device).conditions)
        self.assertFalse(self.client.server_info().draining)
        self.assertEqual(self.client.drain_server("the end"), 0)
        self.assertEqual(self.ampd.process.wait(timeout=90), 0)
        with self.assertRaises(ampd.Unavailable):
            self.client.server_info()

    def test_checkpoints_are_those_of_ampctl(self):
        job = self.client.submit(glyphs_job(steps=6, every_steps=3)).wait()
        mine, theirs = os.path.join(self.folder, "mine"), os.path.join(self.folder, "theirs")
        job.download(mine)
        self.assertEqual(self.ampd.ctl("download", job.id, theirs).returncode, 0)
        self.assertEqual(sorted(os.listdir(mine)), sorted(os.listdir(theirs)))
        for name in os.listdir(theirs):
            with open(os.path.join(mine, name), "rb") as one, open(os.path.join(theirs, name), "rb") as other:
                self.assertEqual(one.read(), other.read(), name)
        tensors = job.tensors()
        expected = read_safetensors(os.path.join(theirs, "model.safetensors"))
        self.assertEqual(sorted(tensors), sorted(expected))
        for name in expected:
            np.testing.assert_array_equal(tensors[name], expected[name])
        self.assertEqual(tensors["head.weight"].shape[0], 10)
        with self.assertRaises(ampd.AlreadyExists):
            job.download(mine)
        with self.assertRaises(ampd.NotFound):
            job.checkpoint("step-000000001")
        with self.assertRaises(ampd.NotFound):
            job.checkpoint().read("../state.json")

    def test_the_best_checkpoint_is_told_with_its_metric(self):
        train = {"steps": 6, "batch_size": 32, "eval_every_steps": 2}
        job = self.client.submit(glyphs_job(train=train, checkpoint={"keep_best": "accuracy"})).wait()
        metrics = [event.evaluation.metrics["accuracy"] for event in job.events() if event.HasField("evaluation")]
        self.assertEqual([one.best_metric for one in job.checkpoints() if one.best], [max(metrics)])
        self.assertFalse([one for one in job.checkpoints() if one.HasField("best_metric") and not one.best])

    def test_models_are_exported_uploaded_and_started_from(self):
        job = self.client.submit(glyphs_job(steps=4)).wait()
        exported = os.path.join(self.folder, "half.safetensors")
        job.export(exported, dtype="bf16")
        with open(exported, "rb") as file:
            half = safetensors.parse(file.read())
        bits = read_safetensors(exported)
        for name, weights in job.tensors().items():
            if weights.dtype != np.float32:  # Counters of batches.
                continue
            self.assertEqual(half[name].dtype, np.float32)
            self.assertTrue(np.array_equal(half[name].view(np.uint32) >> 16, bits[name].astype(np.uint32)), name)
            np.testing.assert_allclose(half[name], weights, rtol=2**-8, atol=1e-30)
        with self.assertRaises(ampd.AlreadyExists):
            job.export(exported)
        with self.assertRaises(ampd.InvalidArgument):
            job.export(exported + "2", dtype="fp8")
        for name, options, is_onnx in (("net.ONNX", {}, True), ("told.onnx", {"form": "safetensors"}, False)):
            job.export(os.path.join(self.folder, name), **options)
            with open(os.path.join(self.folder, name), "rb") as file:
                self.assertEqual(b'"data_offsets"' not in file.read(), is_onnx, name)
        named = self.client.upload_model(exported)
        self.assertEqual(named, self.client.upload_model(exported))
        tuned = self.client.submit(glyphs_job("tuned", steps=2), {"start_from.path": exported})
        self.assertEqual(tuned.proto.spec.start_from.path, named)
        self.assertEqual(tuned.wait().state, "SUCCEEDED")
        self.assertEqual(self.client.submit(glyphs_job(steps=1), resume_from=job.id[:12]).proto.spec.start_from.job_id, job.id)
        # What the spec says besides the source stays.
        kept = self.client.submit(glyphs_job(steps=1), {"start_from.allow_missing": True}, resume_from=job.id).proto.spec.start_from
        self.assertEqual((kept.job_id, kept.allow_missing), (job.id, True))
        with self.assertRaisesRegex(ampd.InvalidArgument, "keep_best"):
            self.client.submit(glyphs_job(steps=1), resume_from=f"{job.id}@best")
        longer = self.client.submit(glyphs_job(steps=6), continue_from=f"{job.id[:12]}@step-000000004").wait()
        self.assertEqual((longer.state, longer.proto.spec.start_from.continue_training), ("SUCCEEDED", True))
        self.assertEqual([event.step.first_step for event in longer.events() if event.HasField("step")], [5, 6])
        for wrong in "half.safetensors", named, "@best":
            with self.assertRaisesRegex(ampd.InvalidArgument, "continue_from: expected JOB"):
                self.client.submit(glyphs_job(steps=6), continue_from=wrong)
        with self.assertRaisesRegex(ampd.InvalidArgument, "give one of them"):
            self.client.submit(glyphs_job(steps=6), resume_from=job.id, continue_from=job.id)
        with self.assertRaises(ampd.InvalidArgument) as caught:
            self.client.submit(glyphs_job(), {"start_from.path": "./nowhere.safetensors"})
        self.assertEqual(caught.exception.violations[0].field, "start_from.path")
        # Relative paths of a file start at the file.
        path = self.job_file(glyphs_job(steps=1, start_from={"path": "half.safetensors"}))
        self.assertEqual(self.client.submit(path).proto.spec.start_from.path, named)

    def test_datasets(self):
        folder = os.path.join(self.folder, "set")
        os.makedirs(os.path.join(folder, "deep"))
        for name in ("a.bin", "deep/b.bin"):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(os.urandom(3 << 20))
        try:
            dataset = self.client.upload_dataset(folder, "pairs")
        except ampd.Unimplemented as error:
            self.skipTest(f"the server takes no datasets yet: {error.message}")
        self.assertTrue(dataset.committed)
        with self.assertRaisesRegex(ampd.NotFound, "no file or folder nowhere"):
            self.client.upload_dataset("nowhere", "none")
        self.assertEqual([one.name for one in self.client.datasets()], ["pairs"])
        self.assertEqual(self.client.upload_dataset(folder, "pairs").create_time, dataset.create_time)
        os.unlink(os.path.join(folder, "a.bin"))
        with self.assertRaises(ampd.AlreadyExists):
            self.client.upload_dataset(folder, "pairs")
        self.client.delete_dataset("pairs")
        self.assertEqual(self.client.datasets(), [])

    def test_a_sweep(self):
        spec = glyphs_job(steps=2, sweep={"grid": {"seed": [1, 2]}})
        with self.assertRaisesRegex(ampd.InvalidArgument, "submit_sweep"):
            self.client.submit(spec)
        sweep = self.client.submit_sweep(spec)
        self.assertEqual([job.wait().state for job in sweep.jobs], ["SUCCEEDED"] * 2)
        self.assertEqual(sweep.refresh().proto.count, 2)
        other = self.client.submit_sweep(spec)
        # Page after page.
        self.assertEqual([one.id for one in self.client.sweeps(page_size=1)][:2], [other.id, sweep.id])
        self.assertEqual(next(one.count for one in self.client.sweeps() if one.id == sweep.id), 2)
        self.assertEqual(list(self.client.sweeps(user="nobody")), [])
        self.assertEqual(sweep.cancel().proto.jobs[0].state, job_pb2.Job.SUCCEEDED)

    def test_errors_carry_code_and_fields(self):
        with self.assertRaises(ampd.NotFound) as missing:
            self.client.get("00000000000000000000000000")
        self.assertEqual(missing.exception.code, grpc.StatusCode.NOT_FOUND)
        with self.assertRaises(ampd.InvalidArgument) as wrong:
            self.client.submit(glyphs_job(), {"train.batch_size": 0, "train.steps": -1})
        fields = {violation.field: violation.location for violation in wrong.exception.violations}
        self.assertEqual(fields["train.batch_size"], "set train.batch_size")
        self.assertIn("set train.batch_size: must be", str(wrong.exception))
        self.assertIn("train.steps", fields)
        with self.assertRaises(ampd.InvalidArgument):
            list(self.client.list(states=["RUNING"]))
        with self.assertRaises(ampd.Unavailable):
            ampd.connect(f"127.0.0.1:{ampd_process.free_port()}")
        job = self.client.submit(glyphs_job(), request_id="the same")
        self.assertEqual(self.client.submit(glyphs_job(), request_id="the same").id, job.id)
        with self.assertRaises(ampd.AlreadyExists):
            self.client.submit(glyphs_job(steps=41), request_id="the same")

    def test_the_readme_does_what_it_says(self):
        shutil.copy(os.path.join(ampd_process.SOURCE, "client/examples/glyphs-convnet.yaml"), self.folder)
        blocks = [block for block in fenced_blocks(os.path.join(PYTHON, "README.md")) if block.info == "python"]
        self.assertGreater(len(blocks), 4)
        script = "\n".join(block.text for block in blocks)
        path = self.job_file(script, "readme.py")
        environment = dict(self.ampd.ctl_environment(), PYTHONPATH=PACKAGE)
        result = subprocess.run([sys.executable, path], cwd=self.folder, env=environment, capture_output=True,
                                text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for said in ("(10, 64)", "CANCELLED", "train.batch_size must"):
            self.assertIn(said, result.stdout)
        self.assertTrue(os.path.isfile(os.path.join(self.folder, "glyphs/model.safetensors")))

    def test_a_plot_is_drawn_while_a_job_trains(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("matplotlib is not installed")
        shown = []
        notebook = types.ModuleType("IPython.display")
        notebook.Image = lambda data: data
        notebook.display = lambda picture, display_id: shown.append(picture) or types.SimpleNamespace(update=shown.append)
        shell = types.ModuleType("IPython")
        shell.get_ipython = lambda: None
        with mock.patch.dict(sys.modules, {"IPython": shell, "IPython.display": notebook}):
            job = self.client.submit(glyphs_job(steps=60, mode="FP16"))
            self.assertIn(job.id, job.title)
            history = job.plot(every_seconds=0.0)
        self.assertEqual(list(history.curves().step), list(range(1, 61)))
        self.assertGreater(len(shown), 60)
        self.assertTrue(all(picture.startswith(b"\x89PNG") for picture in shown))
        figure = plot.draw(history, "title")
        loss, scale, speed = figure.axes[:3]
        np.testing.assert_array_equal(loss.lines[0].get_xdata(), np.arange(1, 61))
        np.testing.assert_array_equal(loss.lines[0].get_ydata(), history.curves().loss)
        self.assertEqual(len(scale.lines[1].get_xdata()), len(history.skips))
        self.assertEqual(loss.get_title(loc="left"), "title")


class MisbehavingServerTest(unittest.TestCase):
    def setUp(self):
        self.service = FakeTrainingService()
        self.exits = contextlib.ExitStack()
        self.addCleanup(self.exits.close)
        self.client = ampd.Client(self.exits.enter_context(serving(self.service)))
        self.addCleanup(self.client.close)
        self.job = ampd.Job(self.client, job_pb2.Job(id="01hz"))

    def offsets(self, file):
        return [call.offset for method, call, _ in self.service.calls if method == "DownloadCheckpoint" and call.file == file]

    def test_a_broken_download_goes_on_where_it_broke(self):
        data = os.urandom(1050)
        self.service.files = {"model.safetensors": data}
        self.service.breaks = {"model.safetensors": [300, 700]}
        self.assertEqual(self.job.checkpoint().read("model.safetensors"), data)
        self.assertEqual(self.offsets("model.safetensors"), [0, 300, 700])

    def test_damage_is_found(self):
        good = {"state.json": b"x" * 500, "empty": b""}
        self.service.files = dict(good)
        self.assertEqual(self.job.checkpoint().read("empty"), b"")
        self.service.manifest = manifest_of(good)
        for bad in (b"x" * 499 + b"y", b"x" * 501, b"x" * 400):
            self.service.files["state.json"] = bad
            with self.subTest(bad), self.assertRaises(ampd.DataLoss):
                self.job.checkpoint().read("state.json")
        folder = os.path.join("/tmp", f"ampd-never-{os.getpid()}")
        with self.assertRaises(ampd.DataLoss):
            self.job.download(folder)
        self.assertEqual(glob.glob(folder + "*"), [])
        for manifest in (manifest_of(good)[:-5], b"", manifest_of(good).replace(b"state", b"stale"), b"a b c\n",
                         manifest_of({"../evil": b""}), manifest_of({"a/b": b""}), b"\xff" * 100):
            self.service.manifest = manifest
            with self.subTest(manifest), self.assertRaises(ampd.DataLoss):
                self.job.checkpoint()

    def test_what_is_downloaded_has_the_mode_that_the_user_wants(self):
        self.service.files = {"state.json": b"{}"}
        for mask, file_mode, folder_mode in ((0o077, 0o600, 0o700), (0o002, 0o664, 0o775)):
            with self.subTest(oct(mask)), tempfile.TemporaryDirectory() as parent:
                before = os.umask(mask)
                self.addCleanup(os.umask, before)
                folder = os.path.join(parent, "checkpoint")
                self.job.download(folder)
                self.assertEqual(os.umask(before), mask)
                self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), folder_mode)
                for name in ("state.json", "MANIFEST"):
                    self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode), file_mode, name)

    def test_tensors_of_hostile_bytes(self):
        def file(header, body=b"\0" * 8):
            text = json.dumps(header).encode()
            return len(text).to_bytes(8, "little") + text + body

        good = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
        np.testing.assert_array_equal(safetensors.parse(file(good))["a"], [0, 0])
        bad = [b"", b"\xff" * 8, b"\xff" * 16, (100).to_bytes(8, "little") + b"{}", file([]), file({"a": 1})]
        for change in ({"shape": [3]}, {"shape": [-2]}, {"shape": [2.0]}, {"data_offsets": [0, 16]}, {"data_offsets": [8, 0]},
                       {"data_offsets": [0]}, {"shape": [1 << 62, 4]}, {"shape": None}, {"data_offsets": [-8, 0]}):
            bad.append(file({"a": {**good["a"], **change}}))
        for data in bad:
            with self.subTest(data), self.assertRaises(ampd.DataLoss):
                safetensors.parse(data)
        with self.assertRaisesRegex(ampd.Unimplemented, "F8_E4M3"):
            safetensors.parse(file({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}))

    def test_a_broken_upload_goes_on_where_it_broke(self):
        with tempfile.TemporaryDirectory() as folder:
            contents = {"a.bin": os.urandom(3 << 20), "deep/b.bin": os.urandom(100), "deep/empty": b""}
            for name, data in contents.items():
                os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            self.service.upload_breaks = [2 << 20, 1 << 20]
            self.assertTrue(self.client.upload_dataset(folder, "pairs").committed)
            self.assertEqual({path: data for path, (_, _, data) in self.service.uploaded.items()}, contents)
            sent = sum(len(call.data) for method, call, _ in self.service.calls if method == "UploadDataset")
            self.assertEqual(sent, (3 << 20) + 100, "no byte came twice")
            # It is there: nothing is sent.
            self.client.upload_dataset(folder, "pairs")
            self.assertEqual(self.service.methods()[-1], "ListDatasets")
            with open(os.path.join(folder, "a.bin"), "ab") as file:
                file.write(b"more")
            with self.assertRaises(ampd.AlreadyExists):
                self.client.upload_dataset(folder, "pairs")
        with self.assertRaises(ampd.InvalidArgument):
            self.client.upload_dataset(self.exits.enter_context(tempfile.TemporaryDirectory()), "none")

    def test_left_out_events_are_noticed(self):
        self.service.streams = [[event(1), event(3)]]
        with self.assertRaisesRegex(ampd.DataLoss, "events 2 to 2"):
            list(self.job.events())

    def test_events_over_broken_streams(self):
        self.service.streams = [[event(1), event(2), grpc.StatusCode.UNAVAILABLE], [grpc.StatusCode.CANCELLED],
                                [event(2), event(3, 5)], [event(6, to=job_pb2.Job.SUCCEEDED)]]
        lost = []
        seen = list(self.job.events(on_lost=lost.append))
        self.assertEqual([(one.first_sequence, one.sequence) for one in seen], [(1, 1), (2, 2), (3, 5), (6, 6)])
        self.assertEqual(len(lost), 2)
        asked = [call.after_sequence for method, call, _ in self.service.calls if method == "WatchJob"]
        self.assertEqual(asked, [0, 2, 2, 5])

    def test_the_first_connection_is_tried_once_and_a_lost_one_given_up(self):
        self.service.streams = [[grpc.StatusCode.UNAVAILABLE]]
        with self.assertRaises(ampd.Unavailable):
            list(self.job.events())
        self.service.streams = [[event(1)]]
        with self.assertRaisesRegex(ampd.Unavailable, "gave up"):
            list(self.job.events(give_up_after=0.0))
        self.service.streams = [[event(1), grpc.StatusCode.PERMISSION_DENIED]]
        with self.assertRaises(ampd.PermissionDenied):
            list(self.job.events())

    def test_a_quiet_job_is_waited_for_over_a_restart(self):
        self.service.streams = [[grpc.StatusCode.UNAVAILABLE], [grpc.StatusCode.CANCELLED],
                                [event(1001, to=job_pb2.Job.SUCCEEDED)]]
        self.job.wait(check=False)
        self.assertEqual(self.service.methods(), ["GetJob", "WatchJob", "WatchJob", "WatchJob", "GetJob"])

    def test_a_connection_without_an_event_is_one_too(self):
        # Each is lost at once, or as it seems after a long time; the second loss is no part of the first.
        for longest_dial, survives in ((0.0, True), (30.0, False)):
            self.service.streams = [[event(1), grpc.StatusCode.UNAVAILABLE], [grpc.StatusCode.UNAVAILABLE],
                                    [grpc.StatusCode.UNAVAILABLE], [event(2, to=job_pb2.Job.SUCCEEDED)]]
            with mock.patch("ampd.events._LONGEST_DIAL_SECONDS", longest_dial):
                if survives:
                    self.assertEqual(len(list(self.job.events(give_up_after=0.1))), 2)
                else:
                    with self.assertRaisesRegex(ampd.Unavailable, "gave up"):
                        list(self.job.events(give_up_after=0.1))

    def test_what_no_field_holds_is_an_argument_that_is_wrong(self):
        for call in (lambda: self.job.update(priority=1 << 40), lambda: self.job.profile(steps=1 << 80),
                     lambda: list(self.client.list(page_size=1 << 40)), lambda: list(self.job.events(after_sequence=-1)),
                     lambda: self.client.get("\ud800")):
            with self.assertRaises(ampd.InvalidArgument):
                call()

    def test_leaving_the_loop_ends_the_stream(self):
        self.service.streams = [[event(number) for number in range(1, 1000)]]
        for one in self.job.events():
            if one.sequence == 3:
                break
        self.assertEqual(self.service.methods(), ["WatchJob"])

    def test_calls_are_repeated_where_that_helps(self):
        self.service.errors = [(grpc.StatusCode.UNAVAILABLE, "away", ())] * 2
        self.assertEqual(self.job.refresh().state, "RUNNING")
        self.service.errors = [(grpc.StatusCode.UNAVAILABLE, "away", ())] * 5
        with self.assertRaises(ampd.Unavailable):
            self.job.refresh()
        self.service.errors = [(grpc.StatusCode.NOT_FOUND, "none", ())]
        with self.assertRaises(ampd.NotFound):
            self.job.refresh()
        self.assertEqual(self.service.methods(), ["GetJob"] * 9)

    def test_the_time_to_wait_is_told_and_kept(self):
        if "google.rpc.RetryInfo" not in errors._message_types():
            self.skipTest("proto/google/rpc declares no RetryInfo")
        # google.rpc.Status{details: [Any{RetryInfo{retry_delay: 10 ms}}]}, written by hand.
        delay = b"\x0a\x05\x10\x80\xad\xe2\x04"
        url = b"type.googleapis.com/google.rpc.RetryInfo"
        any_message = b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(delay)]) + delay
        status = b"\x08\x08\x1a" + bytes([len(any_message)]) + any_message
        metadata = (("grpc-status-details-bin", status),)
        self.service.errors = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", metadata)]
        self.assertEqual(self.job.refresh().state, "RUNNING")
        self.service.errors = [(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", metadata)] * 5
        with self.assertRaises(ampd.ResourceExhausted) as caught:
            self.job.refresh()
        self.assertAlmostEqual(caught.exception.retry_after, 0.01)

    def test_details_that_are_none_leave_code_and_message(self):
        self.service.errors = [(grpc.StatusCode.INVALID_ARGUMENT, "bad", (("grpc-status-details-bin", b"\xff\xff"),))]
        with self.assertRaises(ampd.InvalidArgument) as caught:
            self.job.refresh()
        self.assertEqual((caught.exception.message, caught.exception.violations), ("bad", ()))


class TransportTest(unittest.TestCase):
    """TLS and tokens, by arguments and by the environment."""

    @classmethod
    def setUpClass(cls):
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("openssl is not installed")
        cls.folder = tempfile.mkdtemp(prefix="ampd-e2e-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name in ("server", "client"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                            "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
                            "-keyout", cls.path(name, "key"), "-out", cls.path(name, "crt")], check=True, capture_output=True)

    @classmethod
    def path(cls, name, kind):
        return os.path.join(cls.folder, f"{name}.{kind}")

    @classmethod
    def bytes(cls, name, kind):
        with open(cls.path(name, kind), "rb") as file:
            return file.read()

    def serving(self, service, mutual=False):
        pair = (self.bytes("server", "key"), self.bytes("server", "crt"))
        roots = self.bytes("client", "crt") if mutual else None
        return serving(service, grpc.ssl_server_credentials([pair], roots, mutual))

    def token_seen(self, service):
        return service.calls[-1][2].get("authorization")

    def test_tls_and_a_token(self):
        service = FakeTrainingService()
        with self.serving(service) as server:
            with ampd.connect(server, ca=self.path("server", "crt"), token="s3cret") as client:
                self.assertEqual(client.server_info().version, "fake")
            self.assertEqual(self.token_seen(service), "Bearer s3cret")
            with self.assertRaises(ampd.Unavailable):
                ampd.connect(server, ca=self.path("client", "crt"))
            with self.assertRaises(ampd.Unavailable):
                ampd.connect(server)

    def test_mutual_tls(self):
        with self.serving(FakeTrainingService(), mutual=True) as server:
            ca = self.path("server", "crt")
            ampd.connect(server, ca=ca, cert=self.path("client", "crt"), key=self.path("client", "key")).close()
            with self.assertRaises(ampd.Unavailable):
                ampd.connect(server, ca=ca)
        with self.assertRaisesRegex(ampd.InvalidArgument, "belong together"):
            ampd.Client("localhost:1", cert=self.path("client", "crt"))

    def test_the_environment(self):
        service = FakeTrainingService()
        token_file = self.path("token", "txt")
        with open(token_file, "w") as file:
            file.write("from-a-file\n")
        with self.serving(service) as server:
            environment = {"AMPD_SERVER": server, "AMPD_CA": self.path("server", "crt"), "AMPD_TOKEN_FILE": token_file}
            with mock.patch.dict(os.environ, environment):
                ampd.connect().close()
                self.assertEqual(self.token_seen(service), "Bearer from-a-file")
                ampd.connect(token="given").close()
                self.assertEqual(self.token_seen(service), "Bearer given")
                # As for ampctl, it comes first.
                with mock.patch.dict(os.environ, {"AMPD_TOKEN": "itself"}):
                    ampd.connect().close()
                self.assertEqual(self.token_seen(service), "Bearer itself")

    def test_without_a_token_none_is_sent_and_streams_carry_one(self):
        service = FakeTrainingService()
        service.streams = [[event(1, to=job_pb2.Job.SUCCEEDED)]]
        with serving(service) as server:
            ampd.connect(server).close()
            self.assertIsNone(self.token_seen(service))
            with ampd.Client(server, token="t") as client:
                self.assertEqual(len(list(ampd.Job(client, job_pb2.Job(id="01hz")).events())), 1)
            self.assertEqual(self.token_seen(service), "Bearer t")

    def test_a_token_does_not_leave_the_machine_in_plain_text(self):
        for server in ("10.0.0.7:7070", "gpu1:7070", "127.evil.example:7070", "[2001:db8::1]:7070"):
            with self.subTest(server):
                with self.assertRaisesRegex(ampd.InvalidArgument, "plain text"):
                    ampd.Client(server, token="t")
                ampd.Client(server, token="t", tls=True).close()
                ampd.Client(server, token="t", insecure=True).close()
                ampd.Client(server).close()
        for server in ("127.0.0.1:7070", "127.1.2.3:7070", "localhost:7070", "[::1]:7070", "unix:/run/ampd"):
            ampd.Client(server, token="t").close()

    def test_bad_options(self):
        for options in ({"server": "nowhere"}, {"server": "http://a:1"}, {"server": "a:99999"}, {"ca": "/nowhere"},
                        {"token_file": "/nowhere"}, {"token": "two words"}, {"token": "a\nb"}, {"token": "a", "token_file": "b"}, {"token": ""},
                        {"ca": __file__}, {"ca": os.devnull}, {"token": "a" * 5000}):
            with self.subTest(options), self.assertRaises(ampd.InvalidArgument):
                ampd.Client(**{"server": "localhost:1", **options})


if __name__ == "__main__":
    ampd_process.main()
