"""Datasets that clients send: what jobs read of them, uploads that break, and what is refused."""

import hashlib
import json
import os
import struct

import grpc
import numpy as np

import ampd_process
from ampd_process import DEADLINE, DaemonTest, OneDaemonTest, eventually, glyphs_job, losses_by_step
from ampd.v1 import training_service_pb2 as messages


def idx(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def write_idx_folder(folder):
    """64 images whose label is where they are bright."""
    draw = np.random.RandomState(5)
    labels = draw.randint(0, 4, 64).astype(np.uint8)
    images = draw.randint(0, 60, (64, 8, 8)).astype(np.uint8)
    for i, label in enumerate(labels):
        images[i, 2 * label:2 * label + 2] += 150
    write(os.path.join(folder, "train", "images.idx"), idx(images))
    write(os.path.join(folder, "train", "labels.idx"), idx(labels))
    return images, labels


def idx_job(images, labels, name="idx", steps=60, **fields):
    spec = glyphs_job(name, steps=steps, batch_size=16, **fields)
    spec["model"]["layers"] = [{"flatten": {}}, {"name": "head", "dense": {"units": 4}}]
    spec["data"] = {"train": {"idx": {"images": images, "labels": labels}}}
    return spec


IMAGES, LABELS = "dataset:d/train/images.idx", "dataset:d/train/labels.idx"


class DatasetsTest(OneDaemonTest):
    def upload(self, requests):
        return self.ampd.api().UploadDataset(iter(requests), timeout=DEADLINE)

    def refused(self, code, *requests):
        with self.assertRaises(grpc.RpcError) as raised:
            self.upload(requests)
        self.assertEqual(raised.exception.code(), code, raised.exception.details())
        return raised.exception.details()

    @staticmethod
    def file(path, data, **fields):
        return messages.UploadDatasetRequest(file=path, file_size=len(data), data=data,
                                             file_sha256=hashlib.sha256(data).hexdigest(), **fields)

    def listed(self, name=""):
        return self.ampd.api().ListDatasets(messages.ListDatasetsRequest(name=name), timeout=DEADLINE).datasets

    def received(self, name):
        try:
            return sum(file.received_bytes for file in self.listed(name)[0].files)
        except grpc.RpcError as error:
            self.assertEqual(error.code(), grpc.StatusCode.NOT_FOUND)
            return 0

    def big_file(self, mebibytes=256):
        """Sparse, but for its ends."""
        path = os.path.join(self.folder, "big")
        with open(path, "wb") as file:
            file.write(b"begin")
            file.truncate(mebibytes << 20)
            file.seek(-3, os.SEEK_END)
            file.write(b"end")
        return path

    def begun_upload(self, path):
        """ampctl in the middle of an upload."""
        client = self.ampd.ctl_start("datasets", "upload", "d", path)
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        eventually(lambda: self.received("d") > 0, "the first bytes")
        return client

    def test_jobs_train_on_what_was_sent(self):
        folder = os.path.join(self.folder, "data")
        write_idx_folder(folder)
        sent = self.ctl(0, "datasets", "upload", "d", folder)
        self.assertIn("2 files", sent.stderr)
        self.assertIn("dataset:d ", sent.stdout)
        result = self.ctl(0, "submit", self.job_file(idx_job(IMAGES, LABELS)), "-q")
        job = self.ampd.wait(result.stdout.strip())
        self.assert_state(job, "SUCCEEDED")
        losses = losses_by_step(self.ampd.events(job.id))
        self.assertLess(losses[60], 0.5 * losses[1])
        # The same numbers as from a data root.
        other = self.daemon(data_roots=[folder])
        plain = other.run(idx_job("train/images.idx", "train/labels.idx"))
        self.assertEqual(losses_by_step(other.events(plain.id)), losses)
        # Again is harmless; another content is not taken for it.
        self.assertIn("dataset:d ", self.ctl(0, "datasets", "upload", "d", folder).stdout)
        write(os.path.join(folder, "train", "labels.idx"), idx(np.zeros(64, np.uint8)))
        self.assertIn("with other files", self.ctl(2, "datasets", "upload", "d", folder).stderr)

    def test_a_single_file_and_listing(self):
        path = os.path.join(self.folder, "line.csv")
        write(path, b"x,y\n" + b"".join(b"%d,%d\n" % (i % 7, 2 * (i % 7)) for i in range(64)))
        self.ctl(0, "datasets", "upload", "csv", path)
        spec = glyphs_job("csv", steps=5)
        spec["model"] = {"layers": [{"name": "head", "dense": {"units": 1}}], "loss": {"mean_squared_error": {}}}
        spec["data"] = {"train": {"csv": {"path": "dataset:csv/line.csv", "targets": ["y"]}}}
        self.assert_state(self.ampd.run(spec), "SUCCEEDED")
        self.upload([self.file("half", b"12", name="begun"), messages.UploadDatasetRequest()])
        table = self.ctl(0, "datasets", "list").stdout
        self.assertRegex(table, r"csv +\d+ B .* whole\n")
        self.assertRegex(table, r"begun +2 B .* unfinished\n")
        files = json.loads(self.ctl(0, "datasets", "list", "csv", "-o", "json").stdout)["datasets"][0]["files"]
        with open(path, "rb") as file:
            self.assertEqual(files[0]["sha256"], hashlib.sha256(file.read()).hexdigest())
        self.ctl(0, "datasets", "delete", "begun")
        self.assertEqual([d.name for d in self.listed()], ["csv"])
        self.ctl(2, "datasets", "list", "begun")

    def test_an_upload_goes_on_after_its_client_was_killed(self):
        path = self.big_file()
        client = self.begun_upload(path)
        client.kill()
        client.wait()
        had = self.received("d")
        self.assertLess(had, os.path.getsize(path))
        result = self.ctl(0, "datasets", "upload", "d", path)
        self.assertIn("the server has ", result.stderr)
        self.assertTrue(self.listed("d")[0].committed)

    def test_an_upload_goes_on_after_the_daemon_was_killed(self):
        path = self.big_file()
        client = self.begun_upload(path)
        self.ampd.kill()
        self.ampd.start()
        self.assertGreater(self.received("d"), 0)
        _, errors = client.communicate(timeout=DEADLINE)
        self.assertEqual(client.returncode, 0, errors)
        self.assertIn("going on", errors)
        self.assertIn("the server has ", errors)
        dataset = self.listed("d")[0]
        self.assertTrue(dataset.committed)
        stored = os.path.join(self.ampd.state_dir, "datasets", "d", "files", "big")
        digests = []
        for name in path, stored:
            with open(name, "rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        self.assertEqual(digests, [dataset.files[0].sha256] * 2)
        # And it outlives the next.
        self.ampd.kill()
        self.ampd.start()
        self.assertEqual(self.listed("d")[0], dataset)

    def test_wrong_bytes_and_hostile_names_are_refused(self):
        wrong = self.file("a", b"abc", name="d")
        wrong.data = b"abd"
        self.assertIn("nothing of it is kept", self.refused(grpc.StatusCode.INVALID_ARGUMENT, wrong))
        self.assertEqual(self.received("d"), 0)
        for name in "", "..", ".new", "a/b", "a b", "x" * 101:
            self.refused(grpc.StatusCode.INVALID_ARGUMENT, self.file("a", b"abc", name=name))
        for path in "../x", "/etc/x", "a/../b", "a//b", "a/", "a\nb", "x" * 256:
            details = self.refused(grpc.StatusCode.INVALID_ARGUMENT, self.file(path, b"abc", name="d"))
            self.assertIn("the path", details)
        self.refused(grpc.StatusCode.OUT_OF_RANGE, self.file("b", b"abc", name="d", offset=1))
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, messages.UploadDatasetRequest(name="d", commit=True))
        self.refused(grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(sorted(os.listdir(os.path.join(self.ampd.state_dir, "datasets"))), [".new"])
        for path in "dataset:d/a", "dataset:none/a", "dataset:../../x", "dataset:d/../x":
            with self.assertRaises(grpc.RpcError) as raised:
                self.ampd.submit(idx_job(path, path))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("data.train.idx.images", raised.exception.details())
        self.assert_healthy(self.ampd)

    def test_a_dataset_in_use_stays(self):
        folder = os.path.join(self.folder, "data")
        write_idx_folder(folder)
        self.ctl(0, "datasets", "upload", "d", folder)
        running = self.ampd.submit(idx_job(IMAGES, LABELS, steps=10_000_000, report={"max_per_second": 5}))
        queued = self.ampd.submit(idx_job(IMAGES, LABELS))
        self.ampd.wait_for_step(running.id, 1)
        # This way round: once it has the device, the short one may end.
        for job in queued, running:
            refusal = self.ctl(1, "datasets", "delete", "d").stderr
            self.assertRegex(refusal, "job [0-9a-z]{26} names dataset d and has not ended")
            self.ctl(0, "cancel", job.id)
            self.assert_state(self.ampd.wait(job.id), "CANCELLED")
        self.ctl(0, "datasets", "delete", "d")
        self.assertFalse(os.path.exists(os.path.join(self.ampd.state_dir, "datasets", "d")))
        with self.assertRaises(grpc.RpcError) as raised:
            self.ampd.api().RetryJob(messages.RetryJobRequest(job_id=queued.id), timeout=DEADLINE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("no dataset is called 'd'", raised.exception.details())
        # A dataset of the same name is another one: what was planned with the first does not count.
        images, labels = write_idx_folder(folder)
        write(os.path.join(folder, "train", "images.idx"), idx(images[:, :4]))
        self.ctl(0, "datasets", "upload", "d", folder)
        self.assert_state(self.ampd.run(idx_job(IMAGES, LABELS)), "SUCCEEDED")
        with self.assertRaises(grpc.RpcError) as raised:
            self.ampd.api().RetryJob(messages.RetryJobRequest(job_id=queued.id), timeout=DEADLINE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("dataset d is not the one", raised.exception.details())
        # The same files sent once more are the same dataset.
        self.ctl(0, "datasets", "delete", "d")
        write_idx_folder(folder)
        self.ctl(0, "datasets", "upload", "d", folder)
        self.ampd.api().RetryJob(messages.RetryJobRequest(job_id=queued.id), timeout=DEADLINE)
        self.assert_state(self.ampd.wait(queued.id), "SUCCEEDED")

    def test_a_damaged_one_is_listed_refused_and_deletable(self):
        folder = os.path.join(self.folder, "data")
        write_idx_folder(folder)
        self.ctl(0, "datasets", "upload", "d", folder)
        self.ampd.kill()
        with open(os.path.join(self.ampd.state_dir, "datasets", "d", "MANIFEST"), "r+b") as file:
            file.write(b"x")
        self.ampd.start()
        self.assertIn("damaged", self.ctl(0, "datasets", "list").stdout)
        self.assertIn("damaged", self.ctl(1, "datasets", "list", "d").stderr)
        with self.assertRaises(grpc.RpcError) as raised:
            self.ampd.submit(idx_job(IMAGES, LABELS))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("dataset d is damaged", raised.exception.details())
        self.ctl(1, "datasets", "upload", "d", folder)
        self.ctl(0, "datasets", "delete", "d")
        self.ctl(0, "datasets", "upload", "d", folder)
        self.assert_state(self.ampd.run(idx_job(IMAGES, LABELS)), "SUCCEEDED")


class QuotaTest(DaemonTest):
    def test_what_is_too_much_is_refused_and_leaves_room(self):
        self.ampd = self.daemon(config={"max_upload_bytes": 4000, "max_uploads_bytes": 2 * (3000 + 5 * 1024)})
        for name, size in ("a", 4001), ("b", 3000), ("c", 3001):
            write(os.path.join(self.folder, name), os.urandom(size))
        result = self.ampd.ctl("datasets", "upload", "a", os.path.join(self.folder, "a"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("max_upload_bytes", result.stderr)
        self.assertEqual(self.ampd.ctl("datasets", "upload", "b", os.path.join(self.folder, "b")).returncode, 0)
        result = self.ampd.ctl("datasets", "upload", "c", os.path.join(self.folder, "c"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("max_uploads_bytes", result.stderr)
        self.assertEqual(self.ampd.ctl("datasets", "delete", "b").returncode, 0)
        self.assertEqual(self.ampd.ctl("datasets", "upload", "c", os.path.join(self.folder, "c")).returncode, 0)
        self.assert_healthy(self.ampd)

    def test_nothing_is_taken_while_the_disk_is_short_of_room(self):
        ampd = self.daemon(config={"min_free_bytes": 1 << 60})
        write(os.path.join(self.folder, "a"), b"abc")
        result = ampd.ctl("datasets", "upload", "a", os.path.join(self.folder, "a"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("min_free_bytes", result.stderr)
        with self.assertRaises(grpc.RpcError) as raised:
            ampd.api().UploadModel(iter([messages.UploadModelRequest(sha256="0" * 64, data=b"abc")]), timeout=DEADLINE)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("min_free_bytes", raised.exception.details())
        # Of that which was refused nothing is kept.
        self.assertEqual(os.listdir(os.path.join(ampd.state_dir, "uploads")), [])
        listed = ampd.api().ListDatasets(messages.ListDatasetsRequest(), timeout=DEADLINE).datasets
        self.assertEqual([dataset.size_bytes for dataset in listed], [0])


if __name__ == "__main__":
    ampd_process.main()
