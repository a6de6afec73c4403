"""Bad input, end to end: the right words, the right class, and a daemon that goes on."""

import gzip
import os
import struct
import zlib

import grpc
import numpy as np

import ampd_process
from ampd_process import DaemonTest, glyphs_job

JOB = """name: bad
model:
  layers:
    - {name: flat, flatten: {}}
    - {name: head, dense: {units: 10}}
  loss: {softmax_cross_entropy: {}}
data:
  train: {glyphs: {samples: 100}}
train: {steps: 2, batch_size: 10}
"""


def idx(values):
    """An IDX file of unsigned bytes."""
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def png(values):
    """A PNG file of a grayscale image."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = values.shape
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class BadInputTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.root = os.path.join(self.folder, "root")
        os.mkdir(self.root)
        self.ampd = self.daemon(data_roots=[self.root])

    def write(self, name, data):
        with open(os.path.join(self.root, name), "wb") as file:
            file.write(data)

    def images(self, count=40):
        rng = np.random.default_rng(1)
        return rng.integers(0, 256, (count, 6, 6), np.uint8), rng.integers(0, 10, count).astype(np.uint8)

    def refused(self, text, *patterns):
        """ampctl refuses the job file with exit code 2 and says each of `patterns`."""
        result = self.ampd.ctl("submit", self.job_file(text, "bad.yaml"))
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        for pattern in patterns:
            self.assertRegex(result.stderr, pattern)

    def fails(self, train, failure, *patterns):
        """A job on `train` fails with class `failure`, a message with each of `patterns`, and ampctl's exit code 1."""
        spec = glyphs_job("bad", data={"train": train}, train={"epochs": 1, "batch_size": 4})
        del spec["report"]
        spec["model"]["layers"] = [{"name": "flat", "flatten": {}}, {"name": "head", "dense": {"units": 10}}]
        result = self.ampd.ctl("submit", self.job_file(spec), "--watch")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        last = result.stdout.splitlines()[-1]
        self.assertRegex(last, f"^FAILED {failure}: ")
        for pattern in patterns:
            self.assertRegex(last, pattern)

    def test_the_job_file_itself_is_fine(self):
        self.assertEqual(self.ampd.ctl("submit", self.job_file(JOB, "good.yaml"), "--watch").returncode, 0)

    def test_unknown_and_mistyped_fields(self):
        self.refused(JOB.replace("batch_size", "batch_sise"),
                     r"bad\.yaml:9: train\.batch_sise: no such field; did you mean batch_size\?")
        self.refused(JOB.replace("units: 10", "units: ten"), r"bad\.yaml:5: model\.layers\[1\]\.dense\.units: ")
        self.refused(JOB.replace("units: 10", "units: null"), r"bad\.yaml:5: model\.layers\[1\]\.dense\.units: ")
        self.refused(JOB + "name: again\n", r"bad\.yaml:10: name: ")
        self.refused(JOB + "precision: {mode: FP61}\n", r"bad\.yaml:10: precision\.mode: .*FP16")
        self.refused("name: [unclosed\n", r"bad\.yaml:")
        self.refused("\xff\xfe\0", r"bad\.yaml")

    def test_values_that_cannot_be(self):
        self.refused(JOB.replace("batch_size: 10", "batch_size: 0"), r"bad\.yaml:9: train\.batch_size: ")
        self.refused(JOB.replace("steps: 2", "steps: -1"), r"train\.steps: ")
        self.refused(JOB.replace("softmax_cross_entropy: {}", ""), r"model\.loss")
        self.refused(JOB + "checkpoint: {keep_best: accuracy}\n", r"bad\.yaml:10: checkpoint\.keep_best: needs data\.eval")
        self.refused(JOB + "precision: {mode: FP16, rules: [{match: heat, dtype: FP32}]}\n",
                     r"bad\.yaml:10: precision\.rules\[0\]\.match: .*head")
        self.refused(JOB + "limits: {max_cost_usd: 5}\n", r"bad\.yaml:10: limits\.max_cost_usd: ")

    def test_shapes_that_do_not_fit(self):
        self.refused(JOB.replace("flatten: {}", "conv2d: {filters: 4, kernel: [40, 40]}"), r"bad\.yaml:4: .*flat")
        self.refused(JOB.replace("{name: flat, flatten: {}}", "{name: flat, global_avg_pool: {}}\n"
                                 "    - {name: twice, global_avg_pool: {}}"), r"bad\.yaml:5: .*twice")
        self.refused(JOB.replace("units: 10", "units: 4000000000000000"), r"bad\.yaml:5: ")

    def test_paths_outside_the_data_roots(self):
        outside = os.path.join(self.folder, "outside.npy")
        np.save(outside, np.zeros((4, 3), np.float32))
        for path in ("/etc/passwd", "../outside.npy", outside, "a/../../outside.npy"):
            self.refused(JOB.replace("glyphs: {samples: 100}", f"npy: {{inputs: {path}, targets: {path}}}"),
                         r"bad\.yaml:8: data\.train\.npy\.inputs: ")
        os.symlink(outside, os.path.join(self.root, "link.npy"))
        os.symlink(self.folder, os.path.join(self.root, "up"))
        self.fails({"npy": {"inputs": "link.npy", "targets": "link.npy"}}, "DATA", "link.npy", "outside|beneath")
        self.fails({"npy": {"inputs": "up/outside.npy", "targets": "up/outside.npy"}}, "DATA", "up/outside.npy")
        self.assert_healthy(self.ampd)

    def test_missing_truncated_and_mislabelled_files(self):
        images, labels = self.images()
        good, good_labels = idx(images), idx(labels)
        self.write("images", good)
        self.write("labels", good_labels)
        files = {"idx": {"images": "images", "labels": "labels"}}
        self.assertEqual(self.ampd.ctl("submit", self.job_file(JOB.replace(
            "glyphs: {samples: 100}", "idx: {images: images, labels: labels}")), "--watch").returncode, 0)

        self.fails({"idx": {"images": "absent", "labels": "labels"}}, "DATA", "absent")
        self.write("images", good[:-1])
        self.fails(files, "DATA", "images")
        self.write("images", good[:9])
        self.fails(files, "DATA", "images")
        self.write("images", b"")
        self.fails(files, "DATA", "images")
        self.write("images", b"PNG, really" * 100)
        self.fails(files, "DATA", "images")
        self.write("images", gzip.compress(good)[:-9])
        self.fails(files, "DATA", "images")
        # Claims more than there is, by far.
        self.write("images", b"\0\0\x08\x03" + struct.pack(">3I", 0xffffffff, 0xffffffff, 0xffffffff))
        self.fails(files, "DATA", "images")
        self.write("images", good)
        self.write("labels", idx(labels[:-1]))
        self.fails(files, "DATA", "labels")
        self.write("labels", good)
        self.fails(files, "DATA", "labels")
        self.assert_healthy(self.ampd)

    def test_a_label_beyond_the_last_class(self):
        images, labels = self.images()
        labels[17] = 10
        self.write("images", idx(images))
        self.write("labels", idx(labels))
        self.refused(JOB.replace("glyphs: {samples: 100}", "idx: {images: images, labels: labels}"),
                     r"bad\.yaml:6: model\.loss: .*10 outputs, the data has 11 classes")

    def test_arrays_that_are_none(self):
        images, labels = self.images()
        np.save(os.path.join(self.root, "x.npy"), images)
        np.save(os.path.join(self.root, "y.npy"), labels)
        files = {"npy": {"inputs": "x.npy", "targets": "y.npy"}}
        with open(os.path.join(self.root, "x.npy"), "rb") as file:
            good = file.read()
        self.write("x.npy", good[:-1])
        self.fails(files, "DATA", "x.npy")
        self.write("x.npy", good.replace(b"(40, 6, 6)", b"(-1, 6, 6)"))
        self.fails(files, "DATA", "x.npy")
        np.save(os.path.join(self.root, "x.npy"), np.array([{"a": 1}], dtype=object), allow_pickle=True)
        self.refused(JOB.replace("glyphs: {samples: 100}", "npy: {inputs: x.npy, targets: y.npy}"),
                     r"bad\.yaml:8: data\.train: x\.npy: .*'\|O'")
        np.savez(os.path.join(self.root, "x.npz"), other=images)
        self.fails({"npy": {"inputs": "x.npz"}}, "DATA", "x.npz")
        self.assert_healthy(self.ampd)

    def test_bytes_that_are_no_utf8(self):
        # What an error quotes of a file can be told, at submit and when the job fails.
        self.write("latin.csv", "caf\xe9,y\n1,0\nna\xefve,1\n".encode("latin-1"))
        spec = glyphs_job("latin", data={"train": {"csv": {"path": "latin.csv", "label": "y"}}}, steps=1)
        spec["model"]["layers"] = [{"name": "head", "dense": {"units": 2}}]
        result = self.ampd.ctl("submit", self.job_file(spec), "--watch")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        last = result.stdout.splitlines()[-1]
        self.assertRegex(last, "^FAILED DATA: .*latin[.]csv, line 3: 'na\ufffdve' in column 0")
        # A file that is damaged, and whose name is no text, is told and left out.
        folder = os.path.join(self.root, "set", "a")
        os.makedirs(folder)
        for i in range(8):
            self.write(f"set/a/{i}.png", png(np.full((8, 8), 30 * i, np.uint8)))
        with open(os.path.join(folder.encode(), b"caf\xe9.png"), "wb") as file:
            file.write(b"no image")
        spec = glyphs_job("junk", data={"train": {"image_folder": {"path": "set"}}, "image": {"size": 8},
                                        "max_corrupt_ratio": 0.2}, train={"epochs": 1, "batch_size": 3})
        spec["model"]["layers"] = [{"name": "flat", "flatten": {}}, {"name": "head", "dense": {"units": 2}}]
        job_id = self.ampd.submit(spec).id
        events = self.ampd.events(job_id)
        self.assert_state(self.ampd.get(job_id), "SUCCEEDED")
        files = [e.corrupt_sample.file for e in events if e.HasField("corrupt_sample")]
        self.assertEqual(files, ["set/a/caf\ufffd.png"])

    def test_cifar10_of_the_wrong_size(self):
        self.write("batch.bin", bytes(3073 * 8 - 1))
        self.fails({"cifar10": {"paths": ["batch.bin"]}}, "DATA", "batch.bin")
        self.write("batch.bin", b"\x0b" + bytes(3073 * 8 - 1))
        self.fails({"cifar10": {"paths": ["batch.bin"]}}, "DATA", "batch.bin")

    def test_more_than_a_batch_is_needed(self):
        spec = glyphs_job(batch_size=2000)
        result = self.ampd.ctl("submit", self.job_file(spec), "--watch")
        self.assertIn(result.returncode, (1, 2), result.stdout)
        self.assertRegex(result.stdout + result.stderr, "batch_size")
        self.assert_healthy(self.ampd)

    def test_a_request_that_is_no_spec(self):
        self.ampd.api()
        create = self.ampd.channel.unary_unary("/ampd.v1.TrainingService/CreateJob")
        for body in (b"", b"\xff" * 100, b"\x0a\x00"):
            with self.assertRaises(grpc.RpcError):
                create(body, timeout=30)
        with self.assertRaises(grpc.RpcError) as caught:
            self.ampd.submit(glyphs_job(name="x" * 2000000))
        self.assertIn(caught.exception.code(), (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED))
        self.assert_healthy(self.ampd)


if __name__ == "__main__":
    ampd_process.main()
