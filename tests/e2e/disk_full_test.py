"""A state directory without room: the job fails and says so, nothing half-written stays, and the daemon goes on."""

import os
import subprocess
import tempfile

import grpc

import ampd_process
from ampd_process import DaemonTest, eventually, failure_class, glyphs_job
from ampd.v1 import training_service_pb2


def mount_tmpfs(folder, size):
    """Whether a file system of `size` is mounted at `folder` now."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


class DiskFullTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.small = tempfile.mkdtemp(prefix="ampd-e2e-small-")
        self.addCleanup(os.rmdir, self.small)
        if not mount_tmpfs(self.small, "12m"):
            self.skipTest("no small file system can be mounted here (needs root and CAP_SYS_ADMIN)")
        self.addCleanup(subprocess.run, ["umount", "-l", self.small], check=True)
        self.addCleanup(self._close)

    def partial_files(self):
        """Everything beneath the checkpoints that is not a whole checkpoint."""
        whole = {"MANIFEST", "model.safetensors", "optimizer.safetensors", "state.json"}
        found = []
        for folder, folders, files in os.walk(os.path.join(self.small, "checkpoints")):
            if files and set(files) != whole:
                found.append((folder, files))
        return found

    def test_a_checkpoint_that_does_not_fit(self):
        ampd = self.daemon(state_dir=self.small)
        # Weights and AdamW's moments: 784 * 2048 * 12 bytes, 19 MB.
        spec = glyphs_job("too large", steps=5, retry={"max_attempts": 1})
        spec["model"]["layers"] = [{"name": "flat", "flatten": {}}, {"name": "fc", "dense": {"units": 2048}},
                                   {"name": "head", "dense": {"units": 10}}]
        job = ampd.run(spec)
        self.assert_state(job, "FAILED")
        self.assertEqual(failure_class(job.failure), "DISK_FULL", job.failure.message)
        self.assertEqual(self.partial_files(), [])
        self.assert_sequence(ampd.events(job.id))
        self.assert_healthy(ampd)

    def test_an_upload_that_does_not_fit(self):
        ampd = self.daemon(state_dir=self.small)
        data = bytes(1 << 20)
        requests = [training_service_pb2.UploadModelRequest(sha256="0" * 64)]
        requests += [training_service_pb2.UploadModelRequest(data=data)] * 16
        with self.assertRaises(grpc.RpcError) as caught:
            ampd.api().UploadModel(iter(requests), timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("cannot keep the file", caught.exception.details())
        self.assertEqual(os.listdir(os.path.join(self.small, "uploads")), [])
        self.assert_healthy(ampd)

    def test_no_room_for_a_submit(self):
        ampd = self.daemon(state_dir=self.small)
        filler = os.path.join(self.small, "filler")
        full = os.open(filler, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(full, bytes(4096))
        except OSError:
            os.close(full)

        def refused():
            return ampd.ctl("submit", self.job_file(glyphs_job(steps=2)), "-q").returncode != 0

        # The database's log may have had room left for some.
        eventually(refused, "a refused submit")
        self.assertIsNone(ampd.process.poll())
        self.assertEqual(ampd.http("/healthz")[0], 200)
        os.remove(filler)
        eventually(lambda: ampd.ctl("submit", self.job_file(glyphs_job("later", steps=2)), "--watch").returncode == 0,
                   "a submit once there is room again")
        self.assert_healthy(ampd)


if __name__ == "__main__":
    ampd_process.main()
