"""Jobs that train networks from ONNX files: real ones on real data, and one that PyTorch exported."""

import json
import math
import os
import unittest

import numpy as np

import ampd_process
from ampd_process import DaemonTest
from safetensors_file import read_safetensors

MODELS = ampd_process.shared_data("onnx_models")
ROOT = os.path.dirname(MODELS) if MODELS else None
EXAMPLE = os.path.join(ampd_process.SOURCE, "client/examples/onnx-finetune.yaml")
CLASSES = 4

try:
    import onnx  # which torch.onnx.export needs
    import torch
except ImportError:
    torch = None
try:
    import onnxruntime
except ImportError:
    onnxruntime = None


def fashion(size):
    def files(part):
        return {"idx": {"images": f"fashion_mnist/{part}-images-idx3-ubyte.gz",
                        "labels": f"fashion_mnist/{part}-labels-idx1-ubyte.gz"}}
    return {"train": files("train"), "eval": files("t10k"), "image": {"normalize": "STANDARD", "size": size}}


CIFAR10 = {"train": {"cifar10": {"paths": ["cifar10_bin/data_batch_1.bin"]}},
           "eval": {"cifar10": {"paths": ["cifar10_bin/test_batch.bin"]}}, "image": {"normalize": "STANDARD"}}
# By file: the data, and what that takes. lenet5 is of 10 images of 32x32, the others of one.
JOBS = {
    "lenet5": (fashion(32), "fashion_mnist"),
    "burn_mnist": (fashion(28), "fashion_mnist"),
    "resnet_2b": (CIFAR10, "cifar10_bin"),
}


def onnx_job(name, mode, data, steps=60, **onnx_fields):
    return {
        "name": f"{name}-{mode}",
        "seed": 5,
        "model": {"onnx": {"path": f"onnx_models/{name}.onnx", **onnx_fields}, "loss": {"softmax_cross_entropy": {}}},
        "data": data,
        "precision": {"mode": mode},
        "optimizer": {"adamw": {"learning_rate": 0.001}},
        "train": {"steps": steps, "batch_size": 32},
        "checkpoint": {"every_seconds": 0},
        "resources": {"cpu_threads": 1},
        "report": {"every_steps": 1},
    }


def run_onnx(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


class OnnxJob(DaemonTest):
    def losses(self, ampd, job_id):
        losses = [e.step.phases[0].loss for e in ampd.events(job_id) if e.HasField("step")]
        return [loss for loss in losses if math.isfinite(loss)]

    def home(self, ampd, job_id):
        """The trained network as an ONNX file."""
        path = os.path.join(self.folder, f"{job_id}.onnx")
        result = ampd.ctl("download", job_id, path, "--form", "onnx")
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def checkpoint(self, ampd, job_id):
        folder = os.path.join(self.folder, job_id)
        result = ampd.ctl("download", job_id, folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        for root, _, files in os.walk(folder):
            if "model.safetensors" in files:
                return read_safetensors(os.path.join(root, "model.safetensors"))
        self.fail(f"no model.safetensors beneath {folder}")


@unittest.skipUnless(MODELS, "no ../shared/data/onnx_models here")
class RealFilesTest(OnnxJob):
    def check(self, name):
        data, folder = JOBS[name]
        if not ampd_process.shared_data(folder):
            self.skipTest(f"no ../shared/data/{folder} here")
        ampd = self.daemon(data_roots=[ROOT])
        for mode in ("FP32", "FP16", "BF16"):
            job = ampd.run(onnx_job(name, mode, data), seconds=600)
            self.assert_state(job, "SUCCEEDED")
            losses = self.losses(ampd, job.id)
            first, last = sum(losses[:6]) / 6, sum(losses[-6:]) / 6
            print(f"{name} {mode}: loss {first:.3f} -> {last:.3f}, accuracy {job.summary.accuracy:.3f}", flush=True)
            if name == "resnet_2b":
                # Trained on this data: it begins where its file left off.
                self.assertLess(first, 1.2, mode)
                self.assertGreater(job.summary.accuracy, 0.55, mode)
            else:
                self.assertLess(last, 0.8 * first, mode)
                self.assertGreater(job.summary.accuracy, 0.3, mode)

    def test_lenet5(self):
        self.check("lenet5")

    def test_burn_mnist(self):
        self.check("burn_mnist")

    def test_resnet_2b(self):
        self.check("resnet_2b")

    def test_new_weights_in_the_files_architecture(self):
        if not ampd_process.shared_data("cifar10_bin"):
            self.skipTest("no ../shared/data/cifar10_bin here")
        ampd = self.daemon(data_roots=[ROOT])
        job = ampd.run(onnx_job("resnet_2b", "BF16", CIFAR10, steps=80, weights=False), seconds=300)
        self.assert_state(job, "SUCCEEDED")
        losses = self.losses(ampd, job.id)
        self.assertGreater(losses[0], 2.2)
        self.assertLess(sum(losses[-6:]) / 6, 2.1)

    def test_checkpoints_have_the_files_names_and_what_is_frozen_stays(self):
        if not ampd_process.shared_data("fashion_mnist"):
            self.skipTest("no ../shared/data/fashion_mnist here")
        ampd = self.daemon(data_roots=[ROOT])
        frozen = ["conv?.*", "norm1.*"]
        job = ampd.run(onnx_job("burn_mnist", "FP32", fashion(28), steps=5, freeze=frozen), seconds=300)
        self.assert_state(job, "SUCCEEDED")
        tensors = self.checkpoint(ampd, job.id)
        with open(os.path.join(MODELS, "burn_mnist.onnx"), "rb") as file:
            content = file.read()
        kept = {name for name, tensor in tensors.items() if np.ascontiguousarray(tensor).tobytes() in content}
        convolutions = {f"conv{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias")}
        norm = {f"norm1.{part}" for part in ("weight", "bias", "running_mean", "running_var")}
        trained = {f"fc{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
        trained |= {f"norm2.{part}" for part in ("weight", "bias", "running_mean", "running_var")}
        self.assertEqual(set(tensors), convolutions | norm | trained | {"norm2.num_batches_tracked"})
        self.assertEqual(kept, convolutions | norm)
        self.assertEqual(tensors["conv2.weight"].shape, (16, 8, 3, 3))
        self.assertEqual(int(tensors["norm2.num_batches_tracked"]), 5)

    def test_plan_and_errors_name_what_is_in_the_file(self):
        ampd = self.daemon(data_roots=[ROOT])
        dry = ampd.ctl("submit", EXAMPLE, "--dry-run")
        self.assertEqual(dry.returncode, 0, dry.stderr)
        for line in ("Conv_0", "Gemm_16", "Flatten_13"):
            self.assertIn(line, dry.stdout)
        for setting, message in (
                ("model.onnx.path=onnx_models/nothing.onnx", "model.onnx.path: onnx_models/nothing.onnx: no such file"),
                ("model.onnx.path=upload:" + "0" * 64, "no file was uploaded with the checksum"),
                ("model.onnx.freeze=[layer1.*, lin*, convv1*]", "model.onnx.freeze[2]: no initializer"),
                ("precision.rules=[{match: Conv_99, dtype: FP32}]", "precision.rules[0].match: no layer matches"),
                ("model.onnx.outputs=[nothing]", "nothing writes output")):
            result = ampd.ctl("submit", EXAMPLE, "--dry-run", "--set", setting)
            self.assertNotEqual(result.returncode, 0, setting)
            self.assertIn(message, result.stderr + result.stdout)


@unittest.skipIf(torch is None, "PyTorch and onnx are not installed for this python")
class TorchExportTest(OnnxJob):
    def network(self):
        nn = torch.nn
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, stride=2), nn.BatchNorm2d(12), nn.SiLU(), nn.Flatten(),
            nn.Linear(12 * 2 * 2, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))

    def export(self, path, batch):
        # Kept as trained: folding would leave no batch norm.
        torch.onnx.export(self.network(), (torch.zeros(batch, 3, 12, 12),), path, input_names=["image"],
                          output_names=["logits"], training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=17, dynamo=False)

    def test_trained_here_it_gives_pytorchs_logits(self):
        rng = np.random.default_rng(3)
        labels = rng.integers(0, CLASSES, 320)
        images = rng.normal(0, 1, (320, 12, 12, 3)).astype(np.float32)
        images[np.arange(320), labels * 3] += 1.5
        np.save(os.path.join(self.folder, "train_x.npy"), images)
        np.save(os.path.join(self.folder, "train_y.npy"), labels)
        sample = images[:1] + 0.25
        np.save(os.path.join(self.folder, "eval_x.npy"), sample)
        ampd = self.daemon(data_roots=[self.folder])
        for batch in (1, 16):
            self.export(os.path.join(self.folder, "net.onnx"), batch)
            log_probabilities = []
            for label in range(CLASSES):
                np.save(os.path.join(self.folder, "eval_y.npy"), np.array([label]))
                job = onnx_job("net", "FP32", {
                    "train": {"npy": {"inputs": "train_x.npy", "targets": "train_y.npy"}},
                    "eval": {"npy": {"inputs": "eval_x.npy", "targets": "eval_y.npy"}}}, steps=40)
                job["model"]["onnx"]["path"] = "net.onnx"
                done = ampd.run(job)
                self.assert_state(done, "SUCCEEDED")
                evaluations = [e.evaluation for e in ampd.events(done.id) if e.HasField("evaluation")]
                log_probabilities.append(-evaluations[-1].loss)
                losses = self.losses(ampd, done.id)
                self.assertLess(sum(losses[-5:]), 0.8 * sum(losses[:5]))
            network = self.network()
            tensors = self.checkpoint(ampd, done.id)
            state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in tensors.items()}
            network.load_state_dict(state, strict=True)
            network.eval()
            with torch.no_grad():
                logits = network(torch.from_numpy(sample).permute(0, 3, 1, 2))[0]
                expected = torch.log_softmax(logits, 0).numpy()
            np.testing.assert_allclose(log_probabilities, expected, rtol=1e-5, atol=1e-5)
            print(f"batch {batch} in the file: largest difference {np.abs(log_probabilities - expected).max():.1e}",
                  flush=True)
            if onnxruntime is not None:
                home = run_onnx(self.home(ampd, done.id), sample.transpose(0, 3, 1, 2))[0]
                np.testing.assert_allclose(home, logits.numpy(), rtol=1e-5, atol=1e-5)
                print(f"exported back: largest difference {np.abs(home - logits.numpy()).max():.1e}", flush=True)


def interpolating():
    """A module that PyTorch writes with Resize and Einsum, and with single numbers that it trains."""
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.up = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 6, 3, padding=1), nn.PReLU())
            self.wide = nn.Upsample(size=(9, 7), mode="bilinear", align_corners=True)
            self.gate = nn.ParameterDict({"gamma": nn.Parameter(torch.tensor(0.5))})
            self.weight = nn.Parameter(torch.randn(6, 9, 5) / 5)
            self.head = nn.Linear(7 * 5, CLASSES)
            self.logit_scale = nn.Parameter(torch.tensor(0.3))

        def forward(self, x):
            y = torch.relu(self.down(x))
            y = self.up(y) + self.gate["gamma"] * torch.nn.functional.interpolate(
                y[:, :6], scale_factor=2, mode="bilinear", align_corners=False)
            y = torch.einsum("nchw,cho->nwo", self.wide(y), self.weight)
            return self.head(y.flatten(1)) * self.logit_scale.exp()

    return Net()


class InterpolatingTest(TorchExportTest):
    def network(self):
        torch.manual_seed(2)
        return interpolating()

    def test_plans_and_logs_tell_what_is_trained(self):
        self.export(os.path.join(self.folder, "net.onnx"), 1)
        np.save(os.path.join(self.folder, "x.npy"), np.zeros((64, 12, 12, 3), np.float32))
        np.save(os.path.join(self.folder, "y.npy"), np.arange(64) % CLASSES)
        ampd = self.daemon(data_roots=[self.folder])
        job = onnx_job("net", "FP32", {"train": {"npy": {"inputs": "x.npy", "targets": "y.npy"}}}, steps=2)
        job["model"]["onnx"]["path"] = "net.onnx"
        note = "single numbers of the ONNX file that are trained (model.onnx.freeze holds them): "
        path = os.path.join(self.folder, "job.json")
        with open(path, "w") as file:
            json.dump(job, file)
        plan = ampd.ctl("plan", path)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        line = next(line for line in plan.stdout.splitlines() if line.startswith(note))
        self.assertEqual(set(line[len(note):].split(", ")), {"gate.gamma", "logit_scale", "up.2.weight"})
        done = ampd.run(job)
        self.assert_state(done, "SUCCEEDED")
        logged = [e.log.text for e in ampd.events(done.id) if e.HasField("log")]
        self.assertIn(line, logged)


@unittest.skipUnless(torch and onnxruntime, "PyTorch, onnx and ONNX Runtime are not installed for this python")
class BiasBeforeNormTest(OnnxJob):
    """Training does not add the bias in front of a batch norm; its running mean has to hold it all the same."""

    BATCH, STEPS, RATE, DECAY = 64, 12, 0.05, 0.02

    def network(self):
        nn = torch.nn
        torch.manual_seed(4)
        net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                            nn.Linear(6 * 4 * 4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, CLASSES))
        with torch.no_grad():
            # Far from the running means, which begin at 0.
            net[0].bias.copy_(torch.linspace(-4, 5, 6))
            net[4].bias.copy_(torch.linspace(6, -3, 10))
        return net

    def test_statistics_and_logits_are_pytorchs(self):
        rng = np.random.default_rng(6)
        x = rng.normal(0, 1, (self.BATCH, 6, 6, 3)).astype(np.float32)
        y = rng.integers(0, CLASSES, self.BATCH)
        np.save(os.path.join(self.folder, "x.npy"), x)
        np.save(os.path.join(self.folder, "y.npy"), y)
        path = os.path.join(self.folder, "net.onnx")
        torch.onnx.export(self.network(), (torch.zeros(self.BATCH, 3, 6, 6),), path, input_names=["image"],
                          output_names=["logits"], dynamic_axes={"image": {0: "n"}}, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
        data = {"npy": {"inputs": "x.npy", "targets": "y.npy"}}
        job = onnx_job("net", "FP32", {"train": data, "eval": data}, steps=self.STEPS)
        job["model"]["onnx"]["path"] = "net.onnx"
        # Every batch is all of the data, so that its order says nothing.
        job["train"]["batch_size"] = self.BATCH
        job["optimizer"] = {"sgd": {"learning_rate": self.RATE, "weight_decay": self.DECAY}}
        ampd = self.daemon(data_roots=[self.folder])
        done = ampd.run(job)
        self.assert_state(done, "SUCCEEDED")

        images, labels = torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y)
        # As the file has it: writing it down moved the statistics.
        first = {t.name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
        net = self.network()
        net.load_state_dict({name: first.get(name, value) for name, value in net.state_dict().items()})
        net = net.double().train()
        optimizer = torch.optim.SGD(net.parameters(), lr=self.RATE, weight_decay=self.DECAY)
        for _ in range(self.STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images.double()), labels).backward()
            optimizer.step()
        tensors = self.checkpoint(ampd, done.id)
        for name, value in net.state_dict().items():
            np.testing.assert_allclose(tensors[name], value.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
        net.eval()
        with torch.no_grad():
            logits = net(images.double())
            loss = torch.nn.functional.cross_entropy(logits, labels).item()
        evaluations = [e.evaluation for e in ampd.events(done.id) if e.HasField("evaluation")]
        self.assertAlmostEqual(evaluations[-1].loss, loss, delta=1e-3 * loss)
        home = run_onnx(self.home(ampd, done.id), images.numpy())
        np.testing.assert_allclose(home, logits.numpy(), rtol=1e-3, atol=1e-3)


@unittest.skipUnless(MODELS, "no ../shared/data/onnx_models here")
@unittest.skipUnless(torch and onnxruntime, "onnx and ONNX Runtime are not installed for this python")
class ComesHomeTest(OnnxJob):
    """The exported file computes what the one it came from does, once that has the trained weights."""

    def interface(self, path):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        # The batch, which may be fixed in the file, comes home open.
        return [(value.name, value.type, value.shape[1:]) for value in session.get_inputs() + session.get_outputs()[:1]]

    def with_weights(self, name, weights):
        model = onnx.load(os.path.join(MODELS, f"{name}.onnx"))
        known = {tensor.name: tensor for tensor in model.graph.initializer}
        changed = 0
        for key in sorted(set(known) & set(weights)):
            changed += not np.array_equal(onnx.numpy_helper.to_array(known[key]), weights[key])
            known[key].CopyFrom(onnx.numpy_helper.from_array(np.array(weights[key], np.float32), key))
        self.assertGreaterEqual(changed, 4, "training changed next to nothing")
        path = os.path.join(self.folder, f"{name}-trained.onnx")
        onnx.save(model, path)
        return path

    def test_real_files(self):
        ampd = self.daemon(data_roots=[ROOT, self.folder])
        for name, shape, batch in (("lenet5", (32, 32, 1), 10), ("burn_mnist", (28, 28, 1), 1), ("resnet_2b", (32, 32, 3), 1)):
            rng = np.random.default_rng(4)
            np.save(os.path.join(self.folder, f"{name}_x.npy"), rng.standard_normal((320, *shape), np.float32))
            np.save(os.path.join(self.folder, f"{name}_y.npy"), np.arange(320) % 10)
            data = {"train": {"npy": {"inputs": f"{name}_x.npy", "targets": f"{name}_y.npy"}}}
            done = ampd.run(onnx_job(name, "FP32", data, steps=8))
            self.assert_state(done, "SUCCEEDED")
            trained = self.with_weights(name, self.checkpoint(ampd, done.id))
            home = self.home(ampd, done.id)
            self.assertEqual(self.interface(home), self.interface(trained))
            x = rng.standard_normal((batch, shape[2], *shape[:2]), np.float32)
            ours, theirs = (run_onnx(path, x) for path in (home, trained))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
            print(f"{name}: largest difference {np.abs(ours - theirs).max():.1e} of {np.abs(theirs).max():.1f}", flush=True)


if __name__ == "__main__":
    ampd_process.main()
