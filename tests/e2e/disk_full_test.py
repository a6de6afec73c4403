"""A state directory without room: jobs wait or pause and say why, nothing half-written stays, what was acknowledged stays, and all goes on by itself
once there is room."""

import contextlib
import os
import resource
import subprocess
import tempfile

import grpc

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job, state_name, states
from ampd.v1 import job_pb2, training_service_pb2

MIB = 1 << 20
MIN_FREE = MIB


def mount_tmpfs(folder, size, *options):
    """Whether a file system of `size` is mounted at `folder` now."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", folder]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


def large_job(name, **fields):
    """Weights and AdamW's moments: 784 * 2048 * 12 bytes, 19 MB."""
    spec = glyphs_job(name, **fields)
    spec["model"]["layers"] = [{"name": "flat", "flatten": {}}, {"name": "fc", "dense": {"units": 2048}},
                               {"name": "head", "dense": {"units": 10}}]
    return spec


class FileSizeLimitTest(DaemonTest):
    """A limit to the size of the daemon's files is a full disk to it, also to a job whose worker reports more than waits for the store: what it says,
    that it lives too, is not read meanwhile."""

    def test_a_worker_to_whom_nobody_listens_lives(self):
        ampd = self.daemon(config={"heartbeat_timeout_seconds": 4})
        job = ampd.submit(glyphs_job("talks", steps=10**7, report={"every_steps": 1}))
        eventually(lambda: ampd.get(job.id).summary.step > 100, "a training")
        _, hard = resource.prlimit(ampd.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(ampd.process.pid, resource.RLIMIT_FSIZE, (100000, hard))
        # One a second: three times as long as a silent worker has.
        eventually(lambda: ampd.log().count("not written, trying again") >= 12, "a store that takes nothing")
        resource.prlimit(ampd.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        before = ampd.get(job.id)
        eventually(lambda: ampd.get(job.id).summary.step > before.summary.step + 1500, "more steps")
        after = ampd.get(job.id)
        self.assertEqual((after.attempt, after.failures), (before.attempt, 0))


class DiskFullTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.small = tempfile.mkdtemp(prefix="ampd-e2e-small-")
        self.addCleanup(os.rmdir, self.small)
        if not mount_tmpfs(self.small, "12m"):
            self.skipTest("no small file system can be mounted here (needs root and CAP_SYS_ADMIN)")
        self.addCleanup(subprocess.run, ["umount", "-l", self.small], check=True)
        self.addCleanup(self._close)

    def small_daemon(self, min_free=MIN_FREE):
        return self.daemon(state_dir=self.small, config={"min_free_bytes": min_free})

    def partial_files(self):
        """Everything beneath the checkpoints that is not a whole checkpoint."""
        whole = {"MANIFEST", "model.safetensors", "optimizer.safetensors", "state.json"}
        found = []
        for folder, _, files in os.walk(os.path.join(self.small, "checkpoints")):
            if files and set(files) != whole:
                found.append((folder, files))
        return found

    def fill(self, leave=0):
        """Takes the room there is, but for `leave` bytes; what removing gives it back."""
        filler = os.path.join(self.small, "filler")
        info = os.statvfs(self.small)
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            left = info.f_bavail * info.f_frsize - leave
            while left > 0 or leave == 0:
                left -= file.write(bytes(4096))
        return filler

    def wait_for(self, ampd, job_id, what, holds):
        def found():
            job = ampd.get(job_id)
            return job if holds(job) else None
        return eventually(found, what)

    def test_a_checkpoint_that_does_not_fit(self):
        ampd = self.small_daemon()
        job_id = ampd.submit(large_job("too large", steps=5, retry={"max_attempts": 1})).id
        job = self.wait_for(ampd, job_id, "a pause", lambda job: job.state == job_pb2.Job.PAUSED)
        self.assertEqual(job.pause_reason, job_pb2.Job.NO_DISK_SPACE)
        self.assertEqual(job.failures, 0)
        self.assertEqual(self.partial_files(), [])
        # It is tried again now and then; there is room for other jobs.
        self.assert_state(ampd.run(glyphs_job("small", steps=3)), "SUCCEEDED")
        paused = self.wait_for(ampd, job_id, "a pause", lambda job: job.state == job_pb2.Job.PAUSED)
        self.assertEqual(paused.failures, 0)
        self.assertIn("PAUSED (NO_DISK_SPACE)", ampd.ctl("list").stdout)
        why = ampd.ctl("why", job_id).stdout
        self.assertIn("no room in the state directory", why)
        self.assertIn("make room", why)
        self.assertTrue(mount_tmpfs(self.small, "96m", "remount"))
        job = ampd.wait(job_id)
        self.assert_state(job, "SUCCEEDED")
        self.assertEqual(job.failures, 0)
        events = ampd.events(job_id)
        self.assert_sequence(events)
        self.assertNotIn("RETRYING", states(events))
        self.assertEqual(self.partial_files(), [])
        self.assert_healthy(ampd)

    def test_little_room_holds_jobs_back_but_none_that_runs(self):
        # What is left below the least must do for the one that runs.
        self.assertTrue(mount_tmpfs(self.small, "96m", "remount"))
        ampd = self.small_daemon(min_free=48 * MIB)
        running = ampd.submit(glyphs_job("running", steps=100000, report={"every_steps": 10})).id
        ampd.wait_for_step(running, 1)
        filler = self.fill(leave=24 * MIB)
        waiting = ampd.submit(glyphs_job("waiting", steps=3)).id
        job = self.wait_for(ampd, waiting, "a reason", lambda job: "min_free_bytes" in job.queue_message)
        self.assert_state(job, "QUEUED")
        self.assertIn("min_free_bytes", ampd.ctl("get", waiting).stdout)
        self.assertIn("the state directory has", ampd.ctl("list").stdout)
        self.assertIn("min_free_bytes", ampd.ctl("why", waiting).stdout)
        status, body = ampd.http("/readyz")
        self.assertEqual(status, 200)
        self.assertRegex(body, r"^ok; no job starts: the state directory has \d+ bytes of room.*\n$")
        step = ampd.get(running).summary.step
        ampd.wait_for_step(running, step + 20)
        ampd.ctl("cancel", running)
        self.assert_state(ampd.wait(running), "CANCELLED")
        self.assert_state(ampd.get(waiting), "QUEUED")
        os.remove(filler)
        self.assert_state(ampd.wait(waiting), "SUCCEEDED")
        self.assertEqual(ampd.http("/readyz"), (200, "ok\n"))

    def test_an_upload_that_does_not_fit(self):
        ampd = self.small_daemon()
        data = bytes(1 << 20)
        requests = [training_service_pb2.UploadModelRequest(sha256="0" * 64)]
        requests += [training_service_pb2.UploadModelRequest(data=data)] * 16
        with self.assertRaises(grpc.RpcError) as caught:
            ampd.api().UploadModel(iter(requests), timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("cannot keep the file", caught.exception.details())
        self.assertEqual(os.listdir(os.path.join(self.small, "uploads")), [])
        self.assert_healthy(ampd)

    def test_a_start_without_room(self):
        ampd = self.small_daemon()
        job_id = ampd.submit(glyphs_job("before", steps=3)).id
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        # Twice: the one that starts without room ends without it as well.
        for _ in range(2):
            self.assertEqual(ampd.terminate(), 0)
            filler = self.fill()
            ampd = self.small_daemon()
            self.assert_state(ampd.get(job_id), "SUCCEEDED")
        os.remove(filler)
        self.assert_state(ampd.run(glyphs_job("after", steps=3)), "SUCCEEDED")
        self.assert_healthy(ampd)

    def test_no_room_for_a_submit(self):
        ampd = self.small_daemon()
        filler = self.fill()
        acknowledged = []

        def refusal():
            try:
                acknowledged.append(ampd.submit(glyphs_job("acknowledged", steps=2)).id)
                return None
            except grpc.RpcError as error:
                return error

        # The database's log may have had room left for some.
        error = eventually(refusal, "a refused submit")
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("the state directory has no room, so that nothing was queued", error.details())
        self.assertIsNone(ampd.process.poll())
        self.assertEqual(ampd.http("/healthz")[0], 200)
        # A crash changes nothing about it.
        ampd.kill()
        os.remove(filler)
        filler = self.fill(leave=MIN_FREE // 2)
        ampd.start()
        listed = ampd.api().ListJobs(training_service_pb2.ListJobsRequest()).jobs
        self.assertEqual(sorted(job.id for job in listed), sorted(acknowledged))
        self.assertEqual({state_name(job.state) for job in listed} - {"QUEUED"}, set())
        os.remove(filler)
        for job_id in acknowledged:
            self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.assert_healthy(ampd)

    def test_a_running_job_whose_events_find_no_room(self):
        ampd = self.small_daemon()
        job_id = ampd.submit(glyphs_job("blocked", steps=4000, every_steps=500)).id
        ampd.wait_for_step(job_id, 5)
        filler = self.fill()

        def stuck():
            """Nothing was written between two looks, or it is paused."""
            before = ampd.get(job_id)
            if before.state == job_pb2.Job.PAUSED:
                return True
            refused = ampd.ctl("submit", self.job_file(glyphs_job(steps=2)), "-q").returncode != 0
            return refused and ampd.get(job_id).last_sequence == before.last_sequence

        eventually(stuck, "a full disk")
        self.assertEqual(ampd.http("/healthz")[0], 200)
        os.remove(filler)
        job = ampd.wait(job_id)
        self.assert_state(job, "SUCCEEDED")
        self.assertEqual(job.failures, 0)
        self.assertEqual(job.summary.step, 4000)
        self.assert_sequence(ampd.events(job_id))
        self.assertEqual(self.partial_files(), [])


if __name__ == "__main__":
    ampd_process.main()
