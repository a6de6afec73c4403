"""ONNX models of two files, as PyTorch's exporter writes them: read where the server has them, joined where a client sends them."""

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import unittest

import ampd
import ampd_process
from ampd.v1 import training_service_pb2
from ampd.v1.job_pb2 import Job
from ampd_process import DaemonTest, eventually, glyphs_job

try:
    import onnxscript  # which torch.onnx.export with dynamo=True needs  # noqa: F401
    import torch
except ImportError:
    torch = None

PROTO = "/usr/include/onnx/onnx.proto"


def job(path, **fields):
    model = {"onnx": {"path": path}, "loss": {"softmax_cross_entropy": {}}}
    return glyphs_job("external", **{"steps": 6, "model": model, **fields})


@unittest.skipUnless(os.path.exists(PROTO), f"no {PROTO}, of libonnx-dev")
class OnnxExternalDataTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.onnx = self.messages()
        self.nets = os.path.join(self.folder, "root", "nets")
        os.makedirs(self.nets)
        # Another model's, of the same name in a root that is looked at first.
        self.other = os.path.join(self.folder, "other")
        os.makedirs(os.path.join(self.other, "nets"))
        with open(os.path.join(self.other, "nets", "net.onnx.data"), "wb") as file:
            file.write(bytes(1 << 20))
        self.here = self.daemon(data_roots=[self.other, os.path.join(self.folder, "root")])
        done = self.here.run(glyphs_job(steps=2))
        self.whole = os.path.join(self.nets, "whole.onnx")
        result = self.here.ctl("download", done.id, self.whole)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.split("net.onnx", "net.onnx.data")

    def messages(self):
        """ONNX's own, which write what is read here. Two packages of them cannot be loaded at once."""
        if importlib.util.find_spec("onnx"):
            return importlib.import_module("onnx")
        out = os.path.join(self.folder, "generated")
        os.mkdir(out)
        subprocess.run(["protoc", "-I", os.path.dirname(PROTO), "--python_out", out, PROTO], check=True)
        sys.path.insert(0, out)
        self.addCleanup(sys.path.remove, out)
        return importlib.import_module("onnx_pb2")

    def split(self, name, location, **told):
        """The whole model, with the data of its initializers in another file, at multiples of 4096."""
        model = self.onnx.ModelProto()
        with open(self.whole, "rb") as file:
            model.ParseFromString(file.read())
        data = b""
        for tensor in model.graph.initializer:
            data += bytes(-len(data) % 4096)
            entries = {"location": location, "offset": len(data), "length": len(tensor.raw_data), **told}
            data += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = self.onnx.TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
        path = os.path.join(self.nets, name)
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
        if not told and not location.startswith(("/", "..")):
            os.makedirs(os.path.dirname(os.path.join(self.nets, location)), exist_ok=True)
            with open(os.path.join(self.nets, location), "wb") as file:
                file.write(data)
        return path

    def losses(self, job_id):
        done = self.here.wait(job_id)
        self.assert_state(done, "SUCCEEDED")
        return [event.step.phases[0].loss for event in self.here.events(job_id) if event.HasField("step")]

    def client(self):
        return contextlib.closing(ampd.Client(self.here.grpc_address))

    def test_it_is_trained_as_the_whole_file_is(self):
        self.split("sub.onnx", "parts/of/sub.bin")
        expected = self.losses(self.here.submit(job("nets/whole.onnx")).id)
        self.assertEqual(len(expected), 6)
        for path in ("nets/net.onnx", "nets/sub.onnx", os.path.join(self.nets, "net.onnx")):
            self.assertEqual(self.losses(self.here.submit(job(path)).id), expected, path)
        # Sent by a client.
        file = self.write_job(job("./net.onnx"))
        result = self.here.ctl("submit", file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("net.onnx with net.onnx.data, ", result.stderr)
        sent = result.stdout.split()[1]
        self.assertEqual(self.losses(sent), expected)
        with self.client() as client:
            found = client.submit(job(os.path.join(self.nets, "net.onnx")))
            self.assertTrue(found.proto.spec.model.onnx.path.startswith("upload:"))
            self.assertEqual(self.losses(found.id), expected)
            # Nothing to join: the file itself.
            self.assertEqual(client.upload_model(self.whole), self.upload_name(self.whole))
        # What comes home needs no other file.
        home = os.path.join(self.folder, "home.onnx")
        self.assertEqual(self.here.ctl("download", sent, home).returncode, 0)
        model = self.onnx.ModelProto()
        with open(home, "rb") as stream:
            model.ParseFromString(stream.read())
        self.assertFalse([t.name for t in model.graph.initializer if t.data_location == self.onnx.TensorProto.EXTERNAL])

    @unittest.skipUnless(torch, "PyTorch and onnxscript are not installed for this python")
    def test_what_pytorchs_exporter_writes_by_default(self):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                                  torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).eval()
        losses = {}
        for name, options in (("one.onnx", {"external_data": False}), ("two.onnx", {})):
            path = os.path.join(self.nets, name)
            torch.onnx.export(net, (torch.randn(2, 1, 28, 28),), path, dynamo=True, verbose=False,
                              dynamic_shapes=({0: torch.export.Dim("n")},), **options)
            self.assertEqual(os.path.exists(f"{path}.data"), name == "two.onnx")
            losses[name] = self.losses(self.here.submit(job(f"nets/{name}")).id)
        self.assertEqual(losses["one.onnx"], losses["two.onnx"])
        self.assertEqual(len(losses["two.onnx"]), 6)

    def upload_name(self, path):
        return "upload:" + subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]

    def write_job(self, spec):
        path = os.path.join(self.nets, "job.json")
        with open(path, "w") as file:
            file.write(json.dumps(spec))
        return path

    def test_a_model_whose_other_file_is_lost_or_another_is_refused(self):
        data = os.path.join(self.nets, "net.onnx.data")
        started = self.here.submit(job("nets/net.onnx", steps=1000000))
        self.here.wait_for_step(started.id, 3)
        self.assertEqual(self.here.ctl("pause", started.id).returncode, 0)
        eventually(lambda: self.here.get(started.id).state == Job.PAUSED, "the pause")
        with open(data, "r+b") as file:
            file.write(b"\1")
        self.assertEqual(self.here.ctl("resume", started.id).returncode, 0)
        ended = self.here.wait(started.id)
        self.assert_state(ended, "FAILED")
        self.assertIn("nets/net.onnx is another file than the one that was trained, or tensors of it in 'net.onnx.data' are others",
                      ended.failure.message)
        os.rename(data, data + "2")
        self.assertEqual(self.here.ctl("retry", started.id).returncode, 0)
        self.assertIn("is not what was trained: 'net.onnx.data', where tensors of it lie, is not there",
                      self.here.wait(started.id).failure.message)
        os.rename(data + "2", data)
        os.truncate(data, 5000)
        self.assert_refused("net.onnx", "'net.onnx.data' ends at byte 5000, before ")
        os.remove(data)
        self.assert_refused("net.onnx", "lies outside the model's file, in 'net.onnx.data', which is not there")

    def assert_refused(self, name, message):
        """By the server where it has the files, and where a client sends them."""
        for spec in (job(f"nets/{name}"), job(f"./{name}")):
            result = self.here.ctl("submit", self.write_job(spec))
            self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
            self.assertIn("model.onnx.path", result.stderr)
            self.assertIn(message, result.stderr)
        return result

    def test_a_model_gets_no_file_but_those_of_its_folder(self):
        secret = os.path.join(self.folder, "secret")
        with open(secret, "wb") as file:
            file.write(bytes(1 << 20))
        self.split("up.onnx", "../../secret")
        self.split("absolute.onnx", secret)
        for name in ("up.onnx", "absolute.onnx"):
            self.assert_refused(name, "which is no path within the model's folder")
        self.split("number.onnx", "net.onnx.data", offset="-4")
        self.assert_refused("number.onnx", "lies elsewhere, with offset '-4'")
        self.split("link.onnx", "linked")
        os.remove(os.path.join(self.nets, "linked"))
        os.symlink(secret, os.path.join(self.nets, "linked"))
        for path in ("nets/link.onnx", "./link.onnx"):
            result = self.here.ctl("submit", self.write_job(job(path)))
            self.assertNotEqual(result.returncode, 0, path)
            self.assertIn("linked", result.stderr)
        with self.client() as client:
            for name in ("up.onnx", "absolute.onnx", "link.onnx", "number.onnx"):
                with self.assertRaises(ampd.InvalidArgument, msg=name):
                    client.upload_model(os.path.join(self.nets, name))
        # By HTTP and in other ways the server has the model alone.
        upload = self.upload_name(self.split("alone.onnx", "net.onnx.data"))
        shutil.copy(os.path.join(self.nets, "alone.onnx"), os.path.join(self.here.state_dir, "uploads", upload.partition(":")[2]))
        result = self.here.ctl("submit", self.write_job(job(upload)))
        self.assertIn("which is not there", result.stderr)

    def test_hidden_files_are_not_sent(self):
        with open(os.path.join(self.nets, ".netrc"), "wb") as file:
            file.write(bytes(1 << 20))
        os.symlink(".netrc", os.path.join(self.nets, "shown"))
        for location in (".netrc", ".ssh/id", "./.netrc", "shown"):
            self.split("hidden.onnx", location, length=4)
            result = self.here.ctl("submit", self.write_job(job("./hidden.onnx")))
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("is hidden: such files are not sent", result.stderr)
            with self.client() as client, self.assertRaisesRegex(ampd.InvalidArgument, "is hidden"):
                client.submit(job(os.path.join(self.nets, "hidden.onnx")))
        self.split("plain.onnx", "./plain.data")
        self.assertEqual(self.here.ctl("submit", self.write_job(job("./plain.onnx")), "--dry-run").returncode, 0)

    def test_links_from_root_to_root_are_followed(self):
        shutil.copy(self.whole, os.path.join(self.other, "whole2.onnx"))
        os.symlink(os.path.join(self.nets, "whole.onnx"), os.path.join(self.other, "nets", "linked.onnx"))
        os.symlink(self.nets, os.path.join(self.other, "folder"))
        os.makedirs(os.path.join(self.other, "both"))
        for name in ("net.onnx", "net.onnx.data"):
            os.symlink(os.path.join(self.nets, name), os.path.join(self.other, "both", name))
        expected = self.losses(self.here.submit(job("whole2.onnx")).id)
        for path in ("nets/linked.onnx", "folder/net.onnx", "both/net.onnx"):
            self.assertEqual(self.losses(self.here.submit(job(path)).id), expected, path)

    def test_uploaded_datasets_and_sweeps_may_hold_them(self):
        self.split("dotted.onnx", "./parts//dotted.data")
        result = self.here.ctl("datasets", "upload", "models", self.nets)
        self.assertEqual(result.returncode, 0, result.stderr)
        expected = self.losses(self.here.submit(job("nets/whole.onnx")).id)
        for name in ("net.onnx", "dotted.onnx"):
            self.assertEqual(self.losses(self.here.submit(job(f"dataset:models/{name}")).id), expected)
        file = self.write_job(job("nets/whole.onnx", sweep={"grid": {"model.onnx.path": ["./net.onnx", "nets/net.onnx"]}}))
        result = self.here.ctl("submit", file)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("net.onnx with net.onnx.data, ", result.stderr)
        swept = [one.id for one in self.here.api().ListJobs(training_service_pb2.ListJobsRequest()).jobs if one.HasField("sweep")]
        self.assertEqual([self.losses(one) for one in swept], [expected, expected])

    def test_what_the_output_does_not_depend_on_is_not_read(self):
        model = self.onnx.ModelProto()
        path = os.path.join(self.nets, "net.onnx")
        with open(path, "rb") as file:
            model.ParseFromString(file.read())
        unread = model.graph.initializer.add(name="unread", data_type=1, dims=[4], data_location=self.onnx.TensorProto.EXTERNAL)
        unread.external_data.add(key="location", value="../../secret")
        with open(path, "wb") as file:
            file.write(model.SerializeToString())
        output = model.graph.output[0].name
        self.assert_refused("net.onnx", "which is no path within the model's folder")
        model = {"onnx": {"path": "nets/net.onnx", "outputs": [output]}, "loss": {"softmax_cross_entropy": {}}}
        self.assertEqual(len(self.losses(self.here.submit(job("", model=model)).id)), 6)


if __name__ == "__main__":
    ampd_process.main()
