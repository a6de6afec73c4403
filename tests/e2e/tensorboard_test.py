"""The event files that a daemon keeps for TensorBoard: read here byte by byte, and by TensorBoard's own reader where there is one.

TensorBoard's reader is taken from $AMPD_TENSORBOARD_PYTHON, a Python interpreter with the package, else from this one.
"""

import glob
import json
import os
import struct
import subprocess
import sys

import ampd_process
from ampd_process import DaemonTest, eventually, glyphs_job


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a TFRecord file, every checksum checked."""
    place = 0
    while place < len(data):
        length = data[place:place + 8]
        size, = struct.unpack("<Q", length)
        assert struct.unpack("<I", data[place + 8:place + 12])[0] == masked(length), f"length at {place}"
        body = data[place + 12:place + 12 + size]
        assert struct.unpack("<I", data[place + 12 + size:place + 16 + size])[0] == masked(body), f"record at {place}"
        yield body
        place += 16 + size


def varint(data, place):
    value = shift = 0
    while True:
        value |= (data[place] & 127) << shift
        shift += 7
        place += 1
        if data[place - 1] < 128:
            return value, place


def fields(data):
    """(number, value) of a message's fields, by protobuf's wire format alone."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = varint(data, place)
        elif wire == 1:
            value, place = struct.unpack("<d", data[place:place + 8])[0], place + 8
        elif wire == 2:
            size, place = varint(data, place)
            value, place = data[place:place + size], place + size
        else:
            value, place = struct.unpack("<f", data[place:place + 4])[0], place + 4
        yield number, value


def scalars(data):
    """{tag: {step: value}} of an event file's scalars."""
    found = {}
    for record in records(data):
        event = dict(fields(record))
        for number, value in fields(event.get(5, b"")):
            inner = dict(fields(value))
            if number == 1 and 2 in inner:
                found.setdefault(inner[1].decode(), {})[event.get(2, 0)] = inner[2]
    return found


READER = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
reader = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
reader.Reload()
tags = reader.Tags()
print(json.dumps({
    "scalars": {tag: {e.step: e.value for e in reader.Scalars(tag)} for tag in tags["scalars"]},
    "histograms": tags["histograms"],
    "texts": [tag for tag in tags["tensors"]],
    "job": reader.Tensors("job")[0].tensor_proto.string_val[0].decode(),
}))
"""


class TensorBoardTest(DaemonTest):
    def folder_of(self, ampd, job):
        found = glob.glob(os.path.join(ampd.state_dir, "tensorboard", f"*-{job.id}"))
        return found[0] if found else None

    def written(self, ampd, job):
        with open(glob.glob(os.path.join(self.folder_of(ampd, job), "events.out.tfevents.*"))[0], "rb") as file:
            return file.read()

    def finished(self, ampd, job, last_step):
        """The file once the job's end is in it."""
        def complete():
            data = self.written(ampd, job)
            return data if scalars(data).get("train/loss", {}).keys() >= {last_step} else None
        ampd.wait(job.id)
        return eventually(complete, "the last step in TensorBoard's file")

    def test_a_job_can_be_read(self):
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("tensor board", steps=60, mode="FP16",
                                     report={"every_steps": 1, "diagnostics_every_steps": 30}))
        data = self.finished(ampd, job, 60)
        self.assertEqual(os.path.basename(self.folder_of(ampd, job)), f"tensor_board-{job.id}")
        found = scalars(data)
        events = ampd.events(job.id)
        for event in events:
            if event.HasField("evaluation"):
                self.assertAlmostEqual(found["eval/accuracy"][event.evaluation.step], event.evaluation.accuracy, 6)
        by_step = {e.step.last_step: e.step for e in events if e.HasField("step")}
        self.assertGreaterEqual(len(found["train/loss"]), 1)
        for step, loss in found["train/loss"].items():
            self.assertAlmostEqual(loss, by_step[step].phases[0].loss, 5)
            self.assertEqual(found["train/loss_scale"][step], by_step[step].phases[0].loss_scale)
        self.tensorboard_agrees(self.folder_of(ampd, job), found)

    def tensorboard_agrees(self, folder, found):
        python = os.environ.get("AMPD_TENSORBOARD_PYTHON", sys.executable)
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        probe = subprocess.run([python, "-c", "import tensorboard"], capture_output=True, env=clean)
        if probe.returncode != 0:
            self.skipTest("TensorBoard's own reader is not installed (pip install tensorboard; $AMPD_TENSORBOARD_PYTHON)")
        result = subprocess.run([python, "-c", READER, folder], capture_output=True, text=True, env=clean)
        self.assertEqual(result.returncode, 0, result.stderr)
        theirs = json.loads(result.stdout)
        for tag, values in found.items():
            self.assertEqual({int(step): value for step, value in theirs["scalars"][tag].items()}, values, tag)
        self.assertTrue(any(tag.startswith("gradient_exponents/") for tag in theirs["histograms"]), theirs["histograms"])
        self.assertIn('"tensor board"', theirs["job"])

    def test_a_killed_daemon_and_worker_leave_a_file_that_goes_on(self):
        ampd = self.daemon()
        job = ampd.submit(glyphs_job("killed", steps=300, every_steps=20))
        ampd.wait_for_step(job.id, 60)
        eventually(lambda: self.folder_of(ampd, job) and scalars(self.written(ampd, job)), "scalars")
        ampd.kill()
        ampd.kill_workers()
        ampd.start()
        found = scalars(self.finished(ampd, job, 300))
        self.assertEqual(len(glob.glob(os.path.join(self.folder_of(ampd, job), "*"))), 1)
        by_step = {e.step.last_step: e.step for e in ampd.events(job.id) if e.HasField("step")}
        for step, loss in found["train/loss"].items():
            self.assertAlmostEqual(loss, by_step[step].phases[0].loss, 5)

    def test_it_can_be_left_out(self):
        ampd = self.daemon(config={"tensorboard": False})
        ampd.wait(ampd.submit(glyphs_job(steps=3)).id)
        self.assertFalse(os.path.exists(os.path.join(ampd.state_dir, "tensorboard")))


if __name__ == "__main__":
    ampd_process.main()
