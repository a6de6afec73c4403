"""Trained models come home as ONNX, in 16 bits and as running averages: whole, rounded right, or refused with a reason."""

import os
import unittest

import grpc
import numpy as np

import ampd_process
from ampd.v1 import training_service_pb2
from ampd_process import DaemonTest, eventually, glyphs_job
from exported_models import TOLERANCE, Trained, glyphs, jobs, run_tool, write_data
from gan_networks import acgan_job, classes, drawings
from safetensors_file import read_safetensors

Request = training_service_pb2.ExportModelRequest


def bfloat16(values):
    """The upper halves of f32 numbers, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class OnnxExportTest(DaemonTest):
    def test_models_compute_what_the_engine_does(self):
        write_data(self.folder)
        ampd = self.daemon(data_roots=[self.folder])
        for name in jobs():
            with self.subTest(name):
                trained = Trained(self, ampd, name, self.folder)
                trained.assert_close(self, trained.imported(), trained.logits(), "our importer")
        self.assertEqual(os.listdir(os.path.join(ampd.state_dir, "exports")), [])

    def test_sixteen_bits_are_the_nearest(self):
        ampd = self.daemon()
        job_id = ampd.run(glyphs_job(steps=4)).id
        paths = {dtype: os.path.join(self.folder, f"{dtype}.safetensors") for dtype in ("fp32", "fp16", "bf16")}
        for dtype, path in paths.items():
            self.assertEqual(ampd.ctl("download", job_id, path, "--dtype", dtype).returncode, 0)
        exact, half, brain = (read_safetensors(path) for path in paths.values())
        self.assertEqual(exact.keys(), half.keys())
        self.assertEqual(exact.keys(), brain.keys())
        self.assertIn("bn.running_var", exact)
        for name, values in exact.items():
            if values.dtype == np.int64:
                np.testing.assert_array_equal(values, half[name], name)
                np.testing.assert_array_equal(values, brain[name], name)
                continue
            self.assertEqual(half[name].dtype, np.float16)
            np.testing.assert_array_equal(values.astype(np.float16), half[name], name)
            np.testing.assert_array_equal(bfloat16(values), brain[name], name)
        # As the checkpoint has them.
        folder = os.path.join(self.folder, "checkpoint")
        self.assertEqual(ampd.ctl("download", job_id, folder).returncode, 0)
        for name, values in read_safetensors(os.path.join(folder, "model.safetensors")).items():
            np.testing.assert_array_equal(values, exact[name], name)

    def test_running_average(self):
        ampd = self.daemon()
        job_id = ampd.run(glyphs_job(steps=6, optimizer={"adamw": {"learning_rate": 0.01}, "ema": {"decay": 0.5}})).id
        folder, path = os.path.join(self.folder, "checkpoint"), os.path.join(self.folder, "ema.safetensors")
        self.assertEqual(ampd.ctl("download", job_id, folder).returncode, 0)
        self.assertEqual(ampd.ctl("download", job_id, path, "--ema").returncode, 0)
        average = read_safetensors(os.path.join(folder, "ema.safetensors"))
        for name, values in read_safetensors(path).items():
            np.testing.assert_array_equal(values, average[name], name)
        masters = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.assertGreater(np.abs(average["head.weight"] - masters["head.weight"]).max(), 0)

    def refused(self, ampd, code, text, **fields):
        with self.assertRaises(grpc.RpcError) as refused:
            list(ampd.api().ExportModel(Request(**fields)))
        self.assertEqual(refused.exception.code(), code, refused.exception.details())
        self.assertIn(text, refused.exception.details())

    def test_what_cannot_be_done_is_refused_by_name(self):
        ampd = self.daemon()
        job_id = ampd.run(glyphs("plain", {"preset": {"mlp": {"outputs": 10}}})).id
        codes = grpc.StatusCode
        self.refused(ampd, codes.NOT_FOUND, "", job_id="01hzzzzzzzzzzzzzzzzzzzzzzz")
        self.refused(ampd, codes.NOT_FOUND, "step-000000009", job_id=job_id, checkpoint="step-000000009")
        self.refused(ampd, codes.INVALID_ARGUMENT, "", job_id=job_id, checkpoint="../x")
        self.refused(ampd, codes.INVALID_ARGUMENT, "FLOAT32", job_id=job_id, form=Request.ONNX, dtype=Request.FLOAT16)
        self.refused(ampd, codes.INVALID_ARGUMENT, "form", job_id=job_id, form=77)
        self.refused(ampd, codes.FAILED_PRECONDITION, "no running average", job_id=job_id, ema=True)
        self.assertEqual(os.listdir(os.path.join(ampd.state_dir, "exports")), [])
        # Damage is found, and named.
        weights = os.path.join(ampd.state_dir, "checkpoints", job_id, "step-000000003", "model.safetensors")
        with open(weights, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
        self.refused(ampd, codes.DATA_LOSS, "model.safetensors", job_id=job_id, form=Request.ONNX)
        path = os.path.join(self.folder, "model.onnx")
        self.assertNotEqual(ampd.ctl("download", job_id, path, "--form", "onnx").returncode, 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_networks_of_several_come_home_one_by_one(self):
        ampd = self.daemon()
        ended = ampd.run(acgan_job())
        self.assert_state(ended, "SUCCEEDED")
        paths = {}
        for network in ("generator", "class"):
            for form in ("onnx", "safetensors"):
                paths[network, form] = os.path.join(self.folder, f"{network}.{form}")
                result = ampd.ctl("download", ended.id, paths[network, form], "--form", form, "--network", network)
                self.assertEqual(result.returncode, 0, result.stderr)
        whole = os.path.join(self.folder, "model.safetensors")
        self.assertEqual(ampd.ctl("download", ended.id, whole, "--form", "safetensors").returncode, 0)
        weights = read_safetensors(whole)
        own = read_safetensors(paths["generator", "safetensors"])
        self.assertEqual({f"generator.{name}" for name in own}, {n for n in weights if n.startswith("generator.")})
        for name, values in own.items():
            np.testing.assert_array_equal(values, weights[f"generator.{name}"], name)

        rng = np.random.default_rng(3)
        noise, labels = rng.normal(0, 1, (6, 8)).astype(np.float32), np.array([0, 9, 3, 3, 7, 1])
        drawn = self.computed(paths["generator", "onnx"], 6, z=noise, labels=labels.astype(np.float32))
        expected = drawings(own, noise, labels)
        self.assertGreater(np.ptp(expected), 0.01)
        self.assert_near(drawn.reshape(expected.shape), expected)
        images = rng.uniform(0, 1, (6, 1, 28, 28)).astype(np.float32)
        expected = classes(weights, images)
        self.assertGreater(np.ptp(expected, axis=0).max(), 1e-4)
        self.assert_near(self.computed(paths["class", "onnx"], 6, input=images).reshape(expected.shape), expected)

        # One graph is of one network.
        self.refused(ampd, grpc.StatusCode.FAILED_PRECONDITION, "generator or trunk or source or class",
                     job_id=ended.id, form=Request.ONNX)
        self.refused(ampd, grpc.StatusCode.INVALID_ARGUMENT, "it has generator or trunk or source or class", job_id=ended.id, form=Request.ONNX,
                     network="clas")
        path = os.path.join(self.folder, "half.safetensors")
        self.assertEqual(ampd.ctl("download", ended.id, path, "--dtype", "bf16").returncode, 0)

    def assert_near(self, got, expected):
        largest = np.abs(expected).max()
        self.assertLessEqual(np.abs(got - expected).max(), TOLERANCE * max(largest, 1))

    def computed(self, model, batch, **inputs):
        """What our importer says of a model that came home."""
        files = []
        for name, values in inputs.items():
            values.tofile(os.path.join(self.folder, name))
            files.append(f"{name}={os.path.join(self.folder, name)}")
        output = model + ".output"
        run_tool("onnx", model, str(batch), output, *files)
        return np.fromfile(output, np.float32)

    def test_a_running_job_gives_what_it_has(self):
        ampd = self.daemon()
        job_id = ampd.submit(glyphs_job(steps=100000, every_steps=5)).id
        eventually(lambda: any(e.HasField("checkpoint") for e in self.first_events(ampd, job_id)), "a checkpoint")
        path = os.path.join(self.folder, "model.onnx")
        # Checkpoints come and go meanwhile.
        result = ampd.ctl("download", job_id, path, "--form", "onnx")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(os.path.getsize(path), 1000)
        ampd.ctl("cancel", job_id)

    @staticmethod
    def first_events(ampd, job_id):
        ampd.wait_for_step(job_id, 12)
        call, events = ampd.watch(job_id), []
        for event in call:
            events.append(event)
            if event.HasField("step") and event.step.last_step >= 12:
                break
        call.cancel()
        return events


if __name__ == "__main__":
    ampd_process.main()
