"""Jobs that start from weights of others: of a job, of a file that was uploaded; and what UploadModel refuses."""

import hashlib
import json
import os
import shutil
import struct

import grpc
import numpy as np

import ampd_process
from ampd_process import DaemonTest, OneDaemonTest, eventually, glyphs_job, losses_by_step
from ampd.v1 import training_service_pb2
from safetensors_file import read_safetensors

NO_STEP = {"optimizer": {"sgd": {"learning_rate": 0}}}


def plain_job(name, **fields):
    """Without batch norm, whose statistics a step changes even where it learns nothing."""
    spec = glyphs_job(name, **fields)
    spec["model"]["layers"] = [layer for layer in spec["model"]["layers"] if "batch_norm" not in layer]
    return spec


def bits(losses):
    return {step: struct.pack("<d", loss) for step, loss in losses.items()}


def write_safetensors(path, tensors):
    """`tensors` are arrays of float16, float32, float64 or int64."""
    codes = {np.float16: "F16", np.float32: "F32", np.float64: "F64", np.int64: "I64"}
    header, data = {}, b""
    for name, array in tensors.items():
        part = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": codes[array.dtype.type], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def evaluation(events):
    return [e.evaluation for e in events if e.HasField("evaluation")][-1]


def logs(events):
    return [e.log.text for e in events if e.HasField("log")]


class StartFromTest(OneDaemonTest):
    def trained(self, spec):
        job = self.ampd.run(spec)
        self.assert_state(job, "SUCCEEDED")
        return job

    def weights_of(self, job):
        folder = os.path.join(self.folder, job.id)
        self.ctl(0, "download", job.id, folder)
        return os.path.join(folder, "model.safetensors")

    def starts(self):
        folder = os.path.join(self.ampd.state_dir, "starts")
        return os.listdir(folder) if os.path.isdir(folder) else []

    def test_evaluates_as_the_job_it_starts_from(self):
        for mode in "FP32", "BF16":
            first = self.trained(plain_job("first", steps=120, mode=mode))
            spec = plain_job("second", steps=1, seed=99, mode=mode, start_from={"job_id": first.id[:20]}, **NO_STEP)
            second = self.trained(spec)
            events = self.ampd.events(second.id)
            got, expected = evaluation(events), evaluation(self.ampd.events(first.id))
            self.assertEqual((got.loss, got.accuracy), (expected.loss, expected.accuracy), mode)
            self.assertEqual(second.spec.start_from.job_id, first.id)
            self.assertEqual(second.spec.start_from.checkpoint, first.summary.checkpoint)
            self.assertIn(f"starts from checkpoint {first.summary.checkpoint} of job {first.id}", logs(events))
        drawn = self.trained(plain_job("drawn", steps=1, seed=99, **NO_STEP))
        self.assertGreater(evaluation(self.ampd.events(drawn.id)).loss, 1.5 * expected.loss)
        eventually(lambda: not self.starts(), "the end of what was held")

    def test_a_file_and_the_job_it_is_of_are_the_same_start(self):
        first = self.trained(glyphs_job("first", steps=20))
        path = self.weights_of(first)
        job = self.job_file(glyphs_job("second", steps=20, seed=8))
        losses = {}
        for source in first.id, path, f"{first.id[:16]}@{first.summary.checkpoint}":
            submitted = self.ctl(0, "submit", job, "-q", "--resume-from", source).stdout.strip()
            self.assert_state(self.ampd.wait(submitted), "SUCCEEDED")
            losses[source] = bits(losses_by_step(self.ampd.events(submitted)))
        self.assertEqual(len(set(map(str, losses.values()))), 1, losses)
        drawn = self.trained(glyphs_job("drawn", steps=20, seed=8))
        self.assertNotEqual(bits(losses_by_step(self.ampd.events(drawn.id))), losses[path])
        # As a path in the file, from the file's folder; and resubmitted as the server resolved it.
        named = glyphs_job("named", steps=20, seed=8, start_from={"path": f"{first.id}/model.safetensors"})
        result = self.ctl(0, "submit", self.job_file(named, "named.json"))
        self.assertIn("unless the server has it", result.stderr)
        again = self.ctl(0, "get", result.stdout.split()[1], "-o", "yaml").stdout
        with open(path, "rb") as file:
            self.assertIn("upload:" + hashlib.sha256(file.read()).hexdigest(), again)
        submitted = self.ctl(0, "submit", self.job_file(again, "again.yaml"), "-q").stdout.strip()
        self.assert_state(self.ampd.wait(submitted), "SUCCEEDED")
        self.assertEqual(bits(losses_by_step(self.ampd.events(submitted))), losses[path])

    def test_half_precision_and_double_files(self):
        first = self.trained(plain_job("first", steps=40))
        expected = evaluation(self.ampd.events(first.id)).loss
        tensors = read_safetensors(self.weights_of(first))
        for dtype, error in (np.float64, 0), (np.float16, 0.01):
            path = os.path.join(self.folder, "w.safetensors")
            write_safetensors(path, {name: value.astype(dtype) for name, value in tensors.items()})
            job = self.job_file(plain_job("second", steps=1, **NO_STEP))
            submitted = self.ctl(0, "submit", job, "-q", "--resume-from", path).stdout.strip()
            self.assert_state(self.ampd.wait(submitted), "SUCCEEDED")
            self.assertAlmostEqual(evaluation(self.ampd.events(submitted)).loss, expected, delta=error)

    def test_a_killed_worker_resumes_the_jobs_own_checkpoint(self):
        first = self.trained(glyphs_job("first", steps=20))
        spec = glyphs_job("second", steps=400, every_steps=37, batch_size=64, start_from={"job_id": first.id})
        whole = self.trained(spec)
        job_id = self.ampd.submit(spec).id
        # Before its first checkpoint it starts there again, behind it no more.
        for step in 10, 100:
            self.ampd.wait_for_step(job_id, step)
            self.assertEqual(len(eventually(self.ampd.kill_workers, "a worker to kill")), 1)
        self.assert_state(self.ampd.wait(job_id), "SUCCEEDED")
        events = self.ampd.events(job_id)
        rewound = [e.rewound.to_step for e in events if e.HasField("rewound")]
        self.assertEqual(len(rewound), 2)
        self.assertGreaterEqual(rewound[1], 74)
        self.assertEqual(bits(losses_by_step(events)), bits(losses_by_step(self.ampd.events(whole.id))))

    def test_the_chosen_checkpoint_outlives_retention(self):
        first = self.trained(glyphs_job("first", steps=20))
        blocker = self.ampd.submit(glyphs_job("blocker", steps=100000)).id
        self.ampd.wait_for_step(blocker, 1)
        waiting = self.ampd.submit(glyphs_job("waiting", steps=5, start_from={"job_id": first.id})).id
        shutil.rmtree(os.path.join(self.ampd.state_dir, "checkpoints", first.id))
        self.ampd.kill()
        self.ampd.start()
        self.assertEqual(self.starts(), [waiting])
        self.ctl(0, "cancel", blocker)
        self.assert_state(self.ampd.wait(waiting), "SUCCEEDED")
        eventually(lambda: not self.starts(), "the end of what was held")
        refused = self.ctl(2, "submit", self.job_file(glyphs_job()), "--resume-from", first.id)
        self.assertIn("start_from.job_id: job " + first.id + " has no checkpoint to start from", refused.stderr)

    def test_continues_a_training(self):
        def scaled(name, steps):
            spec = glyphs_job(name, steps=steps, mode="FP16")
            spec["precision"]["loss_scale"] = {"init": 3e7, "growth_interval": 3}
            return spec
        whole = self.trained(scaled("whole", 60))
        first = self.trained(scaled("first", 40))
        job = self.job_file(scaled("second", 60))
        blocker = self.ampd.submit(glyphs_job("blocker", steps=100000)).id
        self.ampd.wait_for_step(blocker, 1)
        waiting = self.ctl(0, "submit", job, "-q", "--continue-from", first.id[:16]).stdout.strip()
        # What it goes on with outlives its first job's own, and the daemon.
        shutil.rmtree(os.path.join(self.ampd.state_dir, "checkpoints", first.id))
        self.ampd.kill()
        self.ampd.start()
        self.ctl(0, "cancel", blocker)
        second = self.ampd.wait(waiting)
        self.assert_state(second, "SUCCEEDED")
        self.assertTrue(second.spec.start_from.continue_training)
        events = self.ampd.events(second.id)
        losses = losses_by_step(self.ampd.events(first.id))
        self.assertFalse(set(losses) & set(losses_by_step(events)))
        losses.update(losses_by_step(events))
        self.assertEqual(bits(losses), bits(losses_by_step(self.ampd.events(whole.id))))
        # Counts are the job's own, in the sums over all jobs too.
        for count in "steps_applied", "steps_skipped":
            self.assertEqual(*(getattr(first.summary, count) + getattr(second.summary, count), getattr(whole.summary, count)), count)
        self.assertEqual(second.summary.steps_applied + second.summary.steps_skipped, 20)
        self.assertEqual(second.wasted_usd, 0)
        self.assertIn(f"continues the training of checkpoint {first.summary.checkpoint} of job {first.id}: 40 of 60 steps are done",
                      "\n".join(logs(events)))
        # As the server resolved it, once more; and on.
        again = self.ctl(0, "get", second.id, "-o", "yaml").stdout
        self.assertIn("continue_training: true", again)
        longer = self.ctl(0, "submit", self.job_file(again, "again.yaml"), "-q", "--set", "train.steps=70", "--continue-from",
                          second.id).stdout.strip()
        self.assert_state(self.ampd.wait(longer), "SUCCEEDED")
        self.assertEqual(sorted(losses_by_step(self.ampd.events(longer)))[0], 61)
        eventually(lambda: not self.starts(), "the end of what was held")

    def test_another_training_is_not_continued(self):
        first = self.trained(glyphs_job("first", steps=5))

        def refused(spec, *options):
            return self.ctl(2, "submit", self.job_file(spec), *(options or ("--continue-from", first.id))).stderr
        self.assertIn(f"train.steps: ends the training at step 5, and checkpoint step-000000005 of job {first.id} stands at step 5 "
                      "already", refused(glyphs_job("short", steps=5)))
        self.assertIn("--continue-from", refused(glyphs_job("other", steps=9, seed=77)))
        self.assertIn("is of another training: seed was 3, is 77", refused(glyphs_job("other", steps=9, seed=77)))
        self.assertIn("start_from.continue_training: needs precision.mode", refused(glyphs_job("auto", steps=9, mode="AUTO")))
        spec = glyphs_job("partly", steps=9, start_from={"job_id": first.id, "continue_training": True, "allow_missing": True})
        self.assertIn("start_from.continue_training: is not given with allow_missing", refused(spec, "-q"))
        for wrong in "w.safetensors", "./w", "upload:" + "0" * 64, "@best", first.id + "@":
            self.assertIn("--continue-from: expected JOB or JOB@CHECKPOINT", refused(glyphs_job(), "--continue-from", wrong))
        self.assertIn("--resume-from excludes --continue-from",
                      refused(glyphs_job(), "--continue-from", first.id, "--resume-from", first.id))
        self.assertEqual(self.starts(), [])

    def test_what_does_not_fit_is_refused_at_submit(self):
        first = self.trained(glyphs_job("first", steps=3))
        wider = glyphs_job("wider")
        wider["model"]["layers"][-1] = {"name": "top", "dense": {"units": 10}}
        wider["model"]["layers"][0]["conv2d"]["filters"] = 9
        refused = self.ctl(2, "submit", self.job_file(wider), "--resume-from", first.id).stderr
        for part in "it lacks top.", "the model has no head.", "conv.weight is [8, 1, 3, 3], the model's [9, 1, 3, 3]":
            self.assertIn(part, refused)
        # With leave to miss some: the shapes stay errors, names are warnings.
        top = glyphs_job("top", steps=3, start_from={"job_id": first.id, "allow_missing": True})
        top["model"]["layers"][-1] = {"name": "top", "dense": {"units": 10}}
        texts = logs(self.ampd.events(self.trained(top).id))
        self.assertTrue(any("it lacks top.bias, top.weight" in text or "it lacks top.weight, top.bias" in text
                            for text in texts), texts)
        tensors = dict(read_safetensors(self.weights_of(first)))
        tensors["head.bias"] = np.full(10, np.nan, np.float32)
        write_safetensors(os.path.join(self.folder, "nan.safetensors"), tensors)
        job = self.ampd.wait(self.ctl(0, "submit", self.job_file(glyphs_job()), "-q", "--resume-from",
                                      os.path.join(self.folder, "nan.safetensors")).stdout.strip())
        self.assert_state(job, "FAILED")
        self.assertEqual(ampd_process.failure_class(job.failure), "INVALID_SPEC")
        self.assertIn("'head.bias' is not finite in FP32: nan at element 0 of 10", job.failure.message)

    def test_plan_dry_run_and_bench_take_local_files(self):
        first = self.trained(glyphs_job("first", steps=40))
        shutil.copy(self.weights_of(first), os.path.join(self.folder, "w.safetensors"))
        spec = glyphs_job("second", steps=5, start_from={"path": "./w.safetensors"}, **NO_STEP)
        job = self.job_file(spec)
        self.ctl(0, "submit", job, "--dry-run")
        self.ctl(0, "plan", job, "--modes", "bf16")
        bench = json.loads(self.ctl(0, "bench", job, "--modes", "bf16", "--steps", "4", "-o", "json").stdout)
        # Drawn weights know nothing: log(10).
        for cell in bench:
            self.assertLess(float(cell["loss"]), 2.0, cell)
        spec["start_from"]["path"] = "./none.safetensors"
        self.assertIn("start_from.path: no file", self.ctl(2, "submit", self.job_file(spec)).stderr)


class UploadTest(DaemonTest):
    def setUp(self):
        super().setUp()
        self.ampd = self.daemon(config={"max_upload_bytes": 3 << 20, "max_uploads_bytes": 5 << 20})
        self.uploads = os.path.join(self.ampd.state_dir, "uploads")

    def upload(self, checksum, pieces):
        requests = [training_service_pb2.UploadModelRequest(sha256=checksum)]
        requests += [training_service_pb2.UploadModelRequest(data=piece) for piece in pieces]
        return self.ampd.api().UploadModel(iter(requests), timeout=60)

    def refused(self, checksum, pieces):
        with self.assertRaises(grpc.RpcError) as caught:
            self.upload(checksum, pieces)
        return caught.exception.code()

    def test_what_is_refused_leaves_nothing(self):
        data = os.urandom(1 << 20)
        checksum = hashlib.sha256(data).hexdigest()
        self.assertEqual(self.refused(checksum, [data[:-1]]), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.refused(checksum, [data, b"x"]), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.refused(checksum.upper(), [data]), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.refused("", [data]), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertEqual(self.refused(checksum, [data] * 4), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertEqual(os.listdir(self.uploads), [])
        answer = self.upload(checksum, [data])
        self.assertEqual((answer.path, answer.size_bytes), ("upload:" + checksum, len(data)))
        # Told by the checksum alone.
        self.assertEqual(self.upload(checksum, []).size_bytes, len(data))
        more = [os.urandom(1 << 20) for _ in range(3)]
        self.assertEqual(self.upload(hashlib.sha256(b"".join(more)).hexdigest(), more).size_bytes, 3 << 20)
        other = os.urandom((1 << 20) + 1)
        self.assertEqual(self.refused(hashlib.sha256(other).hexdigest(), [other[:1 << 20], other[1 << 20:]]),
                         grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertEqual(len(os.listdir(self.uploads)), 2)

    def test_an_unknown_upload_is_refused_by_field(self):
        with self.assertRaises(grpc.RpcError) as caught:
            self.ampd.submit(glyphs_job(start_from={"path": "upload:" + "0" * 64}))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("start_from.path: no file was uploaded", caught.exception.details())

    def test_a_daemon_that_is_killed_amid_an_upload(self):
        data = os.urandom(1 << 20)
        sent = False

        def requests():
            nonlocal sent
            yield training_service_pb2.UploadModelRequest(sha256="0" * 64, data=data)
            eventually(lambda: sent, "the end of the daemon")

        call = self.ampd.api().UploadModel.future(requests(), timeout=60)
        eventually(lambda: os.listdir(self.uploads), "the file under way")
        self.ampd.kill()
        sent = True
        self.assertIsNotNone(call.exception())
        self.assertEqual(len(os.listdir(self.uploads)), 1)
        self.ampd.start()
        self.assertEqual(os.listdir(self.uploads), [])

    def test_files_that_are_no_weights_are_refused(self):
        for data in b"", b"nonsense", struct.pack("<Q", 1 << 62), struct.pack("<Q", 2) + b"{}":
            checksum = hashlib.sha256(data).hexdigest()
            self.upload(checksum, [data])
            with self.assertRaises(grpc.RpcError) as caught:
                self.ampd.submit(glyphs_job(start_from={"path": "upload:" + checksum}))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, data)
            self.assertIn("start_from.path: ", caught.exception.details())
        self.assert_healthy(self.ampd)


if __name__ == "__main__":
    ampd_process.main()
