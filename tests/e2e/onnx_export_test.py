"""Trained models come home as ONNX, in 16 bits and as running averages: whole, rounded right, or refused with a reason."""

import os
import unittest

import grpc
import numpy as np

import ampd_process
from ampd.v1 import training_service_pb2
from ampd_process import DaemonTest, eventually, glyphs_job
from exported_models import Trained, glyphs, jobs, write_data
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

    def test_a_model_of_several_networks_has_no_one_graph(self):
        ampd = self.daemon()
        example = os.path.join(ampd_process.SOURCE, "client/examples/glyphs-dcgan.yaml")
        small = [word for change in ("train={steps: 1, batch_size: 8}", "report={every_steps: 1}")
                 for word in ("--set", change)]
        result = ampd.ctl("submit", example, "-q", *small)
        self.assertEqual(result.returncode, 0, result.stderr)
        job_id = result.stdout.strip()
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.refused(ampd, grpc.StatusCode.FAILED_PRECONDITION, "networks", job_id=job_id, form=Request.ONNX)
        path = os.path.join(self.folder, "model.safetensors")
        self.assertEqual(ampd.ctl("download", job_id, path, "--dtype", "bf16").returncode, 0)

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
