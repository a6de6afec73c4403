"""Sweeps: many jobs of one file, all or none, with their own table."""

import json
import os
import stat
import uuid

import grpc
from google.protobuf import json_format

import ampd_process
from ampd_process import DaemonTest, OneDaemonTest, glyphs_job, state_name
from ampd.v1 import training_service_pb2


def sweep_job(name, sweep, **fields):
    return dict(glyphs_job(name, **fields), sweep=sweep)


def counting_worker(folder):
    """A worker program that notes each plan that it is asked for, by an empty file, as it may write none; its path and
    that of the notes' folder."""
    notes, path = os.path.join(folder, "plans"), os.path.join(folder, "worker.sh")
    os.mkdir(notes)
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\n[ "$1" = --plan ] && : > {notes}/$$\n'
                   f'exec {ampd_process.program("ampd-worker")} "$@"\n')
    os.chmod(path, stat.S_IRWXU)
    # Older than what the daemon relies on.
    ampd_process.eventually(lambda: ampd_process.time.time() - os.stat(path).st_ctime > 3, "the program's age")
    return path, notes


class SweepTest(OneDaemonTest):
    def sweep_of(self, text):
        return json.loads(self.ampd.ctl("-o", "json", "sweep", text).stdout)

    def test_a_grid_is_trained_and_shown(self):
        path = self.job_file(sweep_job("grid", {"grid": {"seed": [1, 2], "precision.mode": ["FP32", "BF16"]}}, steps=2))
        submitted = self.ampd.ctl("submit", path)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        self.assertIn("4 jobs", submitted.stdout)
        sweep_id = submitted.stdout.rsplit("sweep ", 1)[1].split(",")[0]
        jobs = self.sweep_of(sweep_id)["jobs"]
        values = [(job["sweep"]["values"]["precision.mode"], job["sweep"]["values"]["seed"]) for job in jobs]
        self.assertEqual(values, [("FP32", 1), ("FP32", 2), ("BF16", 1), ("BF16", 2)])
        for job in jobs:
            done = self.ampd.wait(job["id"])
            self.assert_state(done, "SUCCEEDED")
            self.assertEqual(done.spec.seed, job["sweep"]["values"]["seed"])
            self.assertFalse(done.spec.HasField("sweep"))
        table = self.ampd.ctl("sweep", sweep_id[:22]).stdout
        self.assertRegex(table.splitlines()[0], r"# +MODE +SEED +STATE +STEP +LOSS")
        self.assertEqual(table.count("SUCCEEDED"), 5)  # The last line counts them.
        self.assertIn("BF16", table)
        listed = self.ampd.ctl("sweeps").stdout.splitlines()
        self.assertRegex(listed[0], r"^ID +NAME +USER +JOBS +STATES +CREATED$")
        self.assertRegex(listed[1], rf"^{sweep_id} +grid +- +4 +4 SUCCEEDED +20")
        found = json.loads(self.ampd.ctl("sweeps", "--limit", "1", "-o", "json").stdout)["sweeps"]
        self.assertEqual([(one["id"], one["states"]) for one in found], [(sweep_id, [{"state": "SUCCEEDED", "jobs": 4}])])
        loss = self.ampd.get(jobs[3]["id"]).summary.loss
        self.assertIn(f"{loss:.4g}", table.splitlines()[4])

    def test_bad_points_are_named_and_nothing_is_queued(self):
        path = os.path.join(self.folder, "job.yaml")
        with open(path, "w") as file:
            file.write(json.dumps(glyphs_job("bad", steps=2))[:-1] + ',\n"sweep":\n {"list": [\n  {"seed": 1},\n'
                       '  {"train.batch_size": 0},\n  {"train.batch_size": 8}]}}')
        refused = self.ampd.ctl("submit", path)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("job.yaml:5: sweep.list[1].train.batch_size: must be at least 1", refused.stderr)
        # Found by the planner, not by the rules.
        with open(path, "w") as file:
            json.dump(sweep_job("bad", {"list": [{}, {"train.batch_size": 4096}]}, steps=2), file)
        refused = self.ampd.ctl("submit", path)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("sweep.list[1].train.batch_size: the training set", refused.stderr)
        self.assertEqual(len(self.ampd.api().ListJobs(training_service_pb2.ListJobsRequest()).jobs), 0)
        self.assertEqual(self.ampd.ctl("submit", "--watch", path).returncode, 2)
        dry = self.ampd.ctl("submit", "--dry-run", path, "--set", "sweep.list[1]={}")
        self.assertEqual(dry.stdout, "valid: a sweep of 2 jobs; nothing was submitted\n", dry.stderr)
        with self.assertRaises(grpc.RpcError) as caught:
            self.ampd.submit(sweep_job("not one", {"list": [{}]}))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


class BigSweepTest(DaemonTest):
    def test_a_thousand_points_share_a_plan_and_survive_a_kill(self):
        worker, notes = counting_worker(self.folder)
        ampd = self.daemon(config={"worker": worker})
        request = training_service_pb2.CreateSweepRequest(request_id=str(uuid.uuid4()))
        spec = sweep_job("many", {"grid": {"seed": list(range(100)),
                                           "optimizer.adamw.learning_rate": [0.001 * i for i in range(10)]}}, steps=10**6)
        json_format.ParseDict(spec, request.spec)
        sweep = ampd.api().CreateSweep(request, timeout=ampd_process.DEADLINE)
        self.assertEqual(len(sweep.jobs), 1000)
        # One when the daemon starts, to learn what its workers are.
        self.assertLessEqual(len(os.listdir(notes)), 2)
        ampd.kill()
        ampd.kill_workers()
        ampd.start()
        again = ampd.api().CreateSweep(request, timeout=ampd_process.DEADLINE)
        self.assertEqual([job.id for job in again.jobs], [job.id for job in sweep.jobs])
        self.assertEqual(ampd.get(sweep.jobs[999].id).spec.seed, 99)
        request.spec.seed = 5
        with self.assertRaises(grpc.RpcError) as caught:
            ampd.api().CreateSweep(request, timeout=ampd_process.DEADLINE)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.ALREADY_EXISTS)
        cancelled = ampd.ctl("cancel", "--sweep", sweep.id, "--now")
        self.assertEqual(cancelled.returncode, 0, cancelled.stderr)
        running = [job.id for job in again.jobs[:2]]
        for job_id in running:
            ampd.wait(job_id)
        left = ampd.api().GetSweep(training_service_pb2.GetSweepRequest(sweep_id=sweep.id), timeout=30)
        self.assertEqual({state_name(job.state) for job in left.jobs}, {"CANCELLED"})


if __name__ == "__main__":
    ampd_process.main()
