"""Which checkpoints are kept, the best among them; copies in a mirror; a damaged one is named and the one before used."""

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import urllib.request

import grpc

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job, losses_by_step
from ampd.v1 import training_service_pb2


def job(name="best", **checkpoint):
    """Evaluated every 32 steps, 12 times; a learning rate at which the accuracy goes up and down."""
    return glyphs_job(name, steps=384, optimizer={"adamw": {"learning_rate": 0.03}},
                      checkpoint={"every_seconds": 0, "keep_last": 2, **checkpoint})


def saved(events):
    return [event.checkpoint for event in events if event.HasField("checkpoint")]


def files_beneath(folder):
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            found[os.path.relpath(os.path.join(path, name), folder)] = digest
    return found


class CheckpointsTest(DaemonTest):
    def check_best(self, ampd, job_id, metric, better):
        """`best` is told of every evaluation that is better than all before, and that one's checkpoint is there."""
        events = ampd.events(job_id)
        self.assert_sequence(events)
        metrics = {e.evaluation.step: e.evaluation.metrics[metric] for e in events if e.HasField("evaluation")}
        self.assertEqual(len(metrics), 12)
        best, told = None, {}
        for step in sorted(metrics):
            if best is None or better(metrics[step], metrics[best]):
                best = step
                told[step] = metrics[step]
        checkpoints = {checkpoint.step: checkpoint for checkpoint in saved(events)}
        self.assertLessEqual(set(metrics), set(checkpoints), "a checkpoint after each evaluation")
        self.assertEqual({step: c.metric for step, c in checkpoints.items() if c.best}, told)
        self.assertGreater(len(told), 1, metrics)
        kept = {f"step-{step:09d}" for step in sorted(checkpoints)[-2:] + [best]}
        self.assertEqual(set(os.listdir(os.path.join(ampd.state_dir, "checkpoints", job_id))), kept)
        listed = ampd.api().ListCheckpoints(training_service_pb2.ListCheckpointsRequest(job_id=job_id)).checkpoints
        self.assertEqual({c.step: c.best for c in listed}, {step: step == best for step in {*sorted(checkpoints)[-2:], best}})
        self.assertEqual([c.best_metric for c in listed if c.HasField("best_metric")], [metrics[best]], "to the last digit")
        shown = ampd.ctl("checkpoints", job_id).stdout
        self.assertRegex(shown, f"step-{best:09d} .*whole, the best: {metric} {re.escape(f'{metrics[best]:.4g}')}\n")
        self.assertEqual(shown.count("the best"), 1, shown)
        as_json = json.loads(ampd.ctl("checkpoints", job_id, "-o", "json").stdout)["checkpoints"]
        self.assertEqual([c["best_metric"] for c in as_json if "best_metric" in c], [metrics[best]])
        url = f"http://{ampd.http_address}/api/v1/jobs/{job_id}/checkpoints/best"
        with urllib.request.urlopen(url, timeout=30) as answer:
            self.assertEqual(json.load(answer)["name"], f"step-{best:09d}")
        return best

    def test_the_best_is_kept_through_a_lost_worker(self):
        ampd = self.daemon()
        job_id = ampd.submit(job(keep_best="accuracy")).id
        ampd.wait_for_step(job_id, 200)
        ampd.kill_workers()
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.check_best(ampd, job_id, "accuracy", lambda a, b: a > b)
        lowest = ampd.submit(job(keep_best="loss")).id
        self.assert_state(ampd.wait(lowest), "SUCCEEDED")
        self.check_best(ampd, lowest, "loss", lambda a, b: a < b)

    def test_a_training_that_stops_early_has_succeeded(self):
        """No accuracy is better than another by one, so the second and third evaluations are no better than the first."""
        ampd = self.daemon()
        spec = glyphs_job("early", steps=3200, checkpoint={"every_steps": 10},
                          train={"steps": 3200, "batch_size": 32, "eval_every_steps": 100,
                                 "early_stopping": {"metric": "accuracy", "patience": 2, "min_delta": 1}})
        job_id = ampd.submit(spec).id
        ampd.wait_for_step(job_id, 150)
        ampd.kill_workers()
        job = ampd.wait(job_id)
        self.assert_state(job, "SUCCEEDED")
        self.assertEqual(job.summary.step, 300)
        events = ampd.events(job_id)
        self.assert_sequence(events)
        self.assertEqual({e.evaluation.step for e in events if e.HasField("evaluation")}, {100, 200, 300})
        self.assertEqual(saved(events)[-1].step, 300)
        reason = "stopped early, after step 300 of 3200: in 2 evaluations accuracy got no better than"
        self.assertIn(reason, events[-1].state_change.reason)
        for verb in ("why", "watch"):
            told = ampd.ctl(verb, job_id)
            self.assertIn(reason, told.stdout + told.stderr, verb)
        # The last report is shown, though it is not of the last of 3200 steps.
        self.assertIn("step 300/3200", told.stdout)

    def test_a_metric_that_the_model_has_not(self):
        ampd = self.daemon()
        with self.assertRaises(grpc.RpcError) as caught:
            ampd.submit(job(keep_best="mean_average_precision"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("checkpoint.keep_best: with this loss evaluations have no metric 'mean_average_precision', but loss, accuracy",
                      caught.exception.details())

    def test_a_mirror_has_what_the_state_directory_has(self):
        mirror = os.path.join(self.folder, "mirror")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.submit(job(keep_best="accuracy")).id
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        self.assertEqual({c.mirror_error for c in saved(ampd.events(job_id))}, {""})
        originals = files_beneath(os.path.join(ampd.state_dir, "checkpoints"))
        self.assertGreater(len(originals), 7)
        self.assertEqual(files_beneath(mirror), originals)

    def test_the_mirror_has_what_was_damaged(self):
        mirror = os.path.join(self.folder, "mirror")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.submit(glyphs_job(steps=300, every_steps=50)).id
        ampd.wait_for_step(job_id, 120)
        self.assertEqual(ampd.terminate(), 0)
        folder = os.path.join(ampd.state_dir, "checkpoints", job_id)
        names = sorted(os.listdir(folder))
        for name in names:
            os.truncate(os.path.join(folder, name, "model.safetensors"), 100)
        ampd.start()
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        events = ampd.events(job_id)
        self.assert_sequence(events)
        self.assertFalse([e for e in events if e.HasField("rewound")], "nothing was lost")
        text = " ".join(event.log.text for event in events if event.HasField("log"))
        self.assertIn(f"resumed from checkpoint {names[-1]}, the copy in the mirror", text)

    def test_downloads_are_of_the_mirrors_copy_where_the_own_one_is_damaged_or_gone(self):
        mirror = os.path.join(self.folder, "mirror")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.run(glyphs_job(steps=40, every_steps=20)).id
        folder = os.path.join(ampd.state_dir, "checkpoints", job_id)
        old, new = sorted(os.listdir(folder))
        copies = files_beneath(os.path.join(mirror, job_id))

        def download(name, *arguments):
            path = os.path.join(self.folder, name)
            result = ampd.ctl("download", job_id, path, *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result, files_beneath(path)

        def of(checkpoint):
            return {os.path.basename(path): digest for path, digest in copies.items() if path.startswith(checkpoint)}

        result, files = download("whole")
        self.assertEqual((result.stderr, files), ("", of(new)))
        os.truncate(os.path.join(folder, new, "model.safetensors"), 100)
        result, files = download("damaged")
        self.assertIn("the copy in its mirror", result.stderr)
        self.assertEqual(files, of(new))
        table = ampd.ctl("checkpoints", job_id).stdout
        self.assertRegex(table, f"{new} .*damaged: model.safetensors has 100 bytes, .*; the mirror has a copy\n")
        self.assertRegex(table, f"{old} .*whole\n")
        url = f"http://{ampd.http_address}/api/v1/jobs/{job_id}/checkpoints/{new}"
        for path, header in (("/model.safetensors", "true"), ("?format=tar", "true"), ("/state.json", None)):
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                data = answer.read()
            self.assertEqual(answer.headers["Ampd-From-Mirror"], header, path)
            if path[0] == "/":
                self.assertEqual(hashlib.sha256(data).hexdigest(), of(new)[path[1:]])
        shutil.rmtree(os.path.join(folder, new))
        result, files = download("gone")
        self.assertIn(f"{new}: ", result.stdout)
        self.assertEqual(files, of(new), "the newest is not the one before it")
        self.assertRegex(ampd.ctl("checkpoints", job_id).stdout, f"{new} .*damaged: its folder is gone; the mirror has a copy")
        shutil.rmtree(folder)
        self.assertEqual(download("all-gone", "--checkpoint", old)[1], of(old))
        # No list has it.
        with urllib.request.urlopen(url.replace(new, old) + "?format=tar", timeout=30) as answer:
            self.assertEqual(answer.headers["Ampd-From-Mirror"], "true")
            archive = tarfile.open(fileobj=io.BytesIO(answer.read()))
        self.assertEqual({os.path.basename(member.name): hashlib.sha256(archive.extractfile(member).read()).hexdigest()
                          for member in archive}, of(old))
        # The copy is compared too.
        with open(os.path.join(mirror, job_id, new, "optimizer.safetensors"), "r+b") as file:
            file.write(b"x")
        self.assertEqual(download("second")[1], of(old))
        self.assertIn("no checkpoint", ampd.ctl("download", job_id, os.path.join(self.folder, "none"), "--checkpoint", new).stderr)

    def test_what_a_killed_worker_left_half_written_goes_with_its_job(self):
        mirror = os.path.join(self.folder, "mirror")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.submit(glyphs_job(steps=100000, every_steps=50)).id
        ampd.wait_for_step(job_id, 60)
        left = [os.path.join(ampd.state_dir, "checkpoints", job_id, ".writing-step-000000007"),
                os.path.join(mirror, job_id, ".copying-step-000000007")]

        def leave():
            for folder in left:
                os.makedirs(folder)
                with open(os.path.join(folder, "model.safetensors"), "w") as file:
                    file.write("half of it")

        def is_gone():
            return not any(os.path.exists(folder) for folder in left)

        leave()
        self.assertEqual(ampd.ctl("cancel", job_id, "--now").returncode, 0)
        eventually(is_gone, "the end of what was half-written")
        # By one that died while no daemon ran.
        self.assertEqual(ampd.terminate(), 0)
        leave()
        ampd.start()
        eventually(is_gone, "the end of what was half-written")

    def test_one_is_kept_where_one_is_asked_for(self):
        mirror = os.path.join(self.folder, "mirror")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.submit(glyphs_job(steps=300, checkpoint={"every_seconds": 0, "every_steps": 50, "keep_last": 1})).id
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        for root in (os.path.join(ampd.state_dir, "checkpoints"), mirror):
            eventually(lambda: os.listdir(os.path.join(root, job_id)) == ["step-000000300"], f"one checkpoint in {root}")

    def test_a_mirror_out_of_order_is_told(self):
        mirror = os.path.join(self.folder, "mirror")
        with open(mirror, "w") as file:
            file.write("a file where the folder should be")
        ampd = self.daemon(config={"mirror_dir": mirror})
        job_id = ampd.submit(job(keep_best="accuracy")).id
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        for checkpoint in saved(ampd.events(job_id)):
            self.assertIn(mirror, checkpoint.mirror_error)

    def test_a_damaged_checkpoint_is_named_and_the_one_before_used(self):
        ampd = self.daemon()
        plain = losses_by_step(ampd.events(ampd.submit(glyphs_job(steps=300, every_steps=50)).id))
        job_id = ampd.submit(glyphs_job(steps=300, every_steps=50)).id
        ampd.wait_for_step(job_id, 120)
        self.assertEqual(ampd.terminate(), 0)
        folder = os.path.join(ampd.state_dir, "checkpoints", job_id)
        before, newest = sorted(os.listdir(folder))[-2:]
        with open(os.path.join(folder, newest, "optimizer.safetensors"), "r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        ampd.start()
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        events = ampd.events(job_id)
        self.assert_sequence(events)
        text = " ".join(event.log.text for event in events if event.HasField("log"))
        self.assertIn(f"checkpoint {newest} is damaged and not used: optimizer.safetensors", text)
        rewound = [event.rewound.to_step for event in events if event.HasField("rewound")]
        self.assertEqual(rewound, [int(before.removeprefix("step-"))])
        self.assertEqual(losses_by_step(events), plain)
        self.assertNotIn(newest, os.listdir(folder), "it goes with the next checkpoint")

    def test_what_is_kept_of_ended_jobs(self):
        """Step reports become coarser, checkpoints go, and nothing that is told of a job contradicts it."""
        ampd = self.daemon(config={"retention": {"step_reports": 100}})
        spec = glyphs_job("old", steps=450, every_steps=30)
        job_id = ampd.submit(spec).id
        self.assert_state(ampd.wait(job_id), "SUCCEEDED")
        before = ampd.events(job_id)
        self.assertEqual(len([e for e in before if e.HasField("step")]), 450)
        self.assertEqual(ampd.terminate(), 0)
        ampd.start()
        eventually(lambda: len(ampd.events(job_id)) < len(before) - 100, "fewer events")
        events = ampd.events(job_id)
        self.assert_sequence(events)
        self.assertEqual(events[-100:], before[-100:], "the newest stay as they are")
        told = [e for e in events if not e.HasField("step")]
        self.assertEqual(told, [e for e in before if not e.HasField("step")])
        steps = [e.step for e in events if e.HasField("step")]
        self.assertEqual([s for step in steps for s in range(step.first_step, step.last_step + 1)], list(range(1, 451)))
        losses = losses_by_step(before)
        for step in steps:
            mean = sum(losses[s] for s in range(step.first_step, step.last_step + 1)) / (step.last_step - step.first_step + 1)
            self.assertAlmostEqual(step.phases[0].loss, mean, 9)
            self.assertEqual(step.phases[0].steps_applied, step.last_step)
        # A watcher that was in the middle of what is one event now gets that event.
        merged = next(e for e in events if e.first_sequence < e.sequence)
        self.assertEqual(next(iter(ampd.watch(job_id, after=merged.first_sequence))), merged)

        self.assertTrue(os.path.isdir(os.path.join(ampd.state_dir, "checkpoints", job_id)))
        running = ampd.submit(glyphs_job("running", steps=100000, every_steps=10)).id
        ampd.wait_for_step(running, 50)
        ampd.kill()
        ampd.config["retention"]["checkpoint_bytes"] = 1
        ampd.start()
        eventually(lambda: not os.path.exists(os.path.join(ampd.state_dir, "checkpoints", job_id)), "no checkpoints of it")
        self.assertTrue(os.listdir(os.path.join(ampd.state_dir, "checkpoints", running)))
        eventually(lambda: f"job {job_id} removed its checkpoints" in ampd.log(), "a line in the log")
        result = ampd.ctl("submit", self.job_file(dict(spec, start_from={"job_id": job_id})))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("start_from", result.stderr)


if __name__ == "__main__":
    ampd_process.main()
