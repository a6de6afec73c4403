"""Pictures of a generator through a real daemon: told of, listed, fetched; a full disk costs the picture alone."""

import json
import os
import struct
import subprocess
import tempfile
import zlib

import grpc

import ampd_process
from ampd_process import DaemonTest
from ampd.v1 import training_service_pb2

JOB = os.path.join(ampd_process.SOURCE, "client/examples/glyphs-dcgan.yaml")
SMALL = ["--set", "train={steps: 6, batch_size: 16}", "--set", "data.train.glyphs.samples=64", "--set",
         "resources.cpu_threads=1", "--set", "precision.mode=BF16", "--set",
         "report={every_steps: 1, samples: {every_steps: 4, images: {network: generator, rows: 2, columns: 3, low: 0}}}"]


def read_png(data):
    """(width, height, rows of shades) of a grey picture; by the format's text alone, of which it checks every sum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, header = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body, = struct.unpack(f"{size}s", data[at + 8:at + 8 + size])
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    width, height, bits, colour, _, _, interlaced = header
    assert (bits, colour, interlaced) == (8, 0, 0), header
    lines, rows, before = zlib.decompress(packed), [], bytes(width)
    assert len(lines) == height * (width + 1)
    for y in range(height):
        filtered, line = lines[y * (width + 1)], bytearray(lines[y * (width + 1) + 1:(y + 1) * (width + 1)])
        for x in range(width):
            a, b, c = line[x - 1] if x else 0, before[x], before[x - 1] if x else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            line[x] = (line[x] + (0, a, b, (a + b) // 2, paeth)[filtered]) & 255
        rows.append(bytes(line))
        before = rows[-1]
    return width, height, rows


class ArtifactsTest(DaemonTest):
    def ctl(self, code, ampd, *arguments):
        result = ampd.ctl(*arguments)
        self.assertEqual(result.returncode, code, f"{arguments}\n{result.stdout}\n{result.stderr}")
        return result

    def test_pictures_are_told_of_listed_and_fetched(self):
        ampd = self.daemon()
        shown = self.ctl(0, ampd, "submit", JOB, *SMALL, "--watch").stdout
        self.assertRegex(shown, r"artifact samples-000000004\.png  [\d.]+ \w+  after step 4")
        job_id = shown.split()[1]
        listed = self.ctl(0, ampd, "artifacts", job_id).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in listed], ["NAME", "samples-000000004.png", "samples-000000006.png"])
        self.assertRegex(listed[2], r" 6 +image/png$")
        last = json.loads(self.ctl(0, ampd, "artifacts", job_id[:12], "-o", "jsonl").stdout.splitlines()[-1])
        path = os.path.join(self.folder, "last.png")
        self.ctl(0, ampd, "artifacts", job_id, "--get", "samples-000000006.png", "--to", path)
        with open(path, "rb") as file:
            data = file.read()
        self.assertEqual((last["name"], int(last["size_bytes"])), ("samples-000000006.png", len(data)))
        width, height, rows = read_png(data)
        self.assertEqual((width, height), (3 * 30 + 2, 2 * 30 + 2))
        self.assertEqual(set(rows[0]), {128})
        self.assertGreater(len(set(rows[15])), 5, "no picture")
        # Nothing is overwritten, and no half of a file stays.
        self.ctl(2, ampd, "artifacts", job_id, "--get", "samples-000000006.png", "--to", path)
        self.ctl(2, ampd, "artifacts", job_id, "--get", "other.png", "--to", path + "2")
        self.ctl(2, ampd, "artifacts", job_id, "--get", "../" + job_id, "--to", path + "2")
        self.assertEqual(sorted(os.listdir(self.folder)), ["last.png"])

    def test_no_name_leads_elsewhere(self):
        ampd = self.daemon()
        job_id = self.ctl(0, ampd, "submit", JOB, *SMALL, "-q").stdout.strip()
        ampd.wait(job_id)
        folder = os.path.join(ampd.state_dir, "artifacts", job_id)
        os.symlink(os.path.join(ampd.state_dir, "ampd.db"), os.path.join(folder, "link.png"))
        for name in ("link.png", "../../ampd.db", "/etc/passwd", "..", ""):
            with self.assertRaises(grpc.RpcError) as refused:
                list(ampd.api().DownloadArtifact(training_service_pb2.DownloadArtifactRequest(job_id=job_id, name=name)))
            self.assertIn(refused.exception.code(), (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT), name)

    def test_a_job_without_pictures_lists_none_though_it_runs(self):
        ampd = self.daemon()
        job_id = self.ctl(0, ampd, "submit", JOB, *SMALL, "--set", "report={every_steps: 1}", "--set",
                          "train.steps=100000", "-q").stdout.strip()
        ampd.wait_for_step(job_id, 1)
        self.assertEqual(len(self.ctl(0, ampd, "artifacts", job_id).stdout.splitlines()), 1)
        self.ctl(0, ampd, "cancel", job_id)

    def test_no_room_costs_the_picture_alone(self):
        small = tempfile.mkdtemp(prefix="ampd-e2e-small-")
        self.addCleanup(os.rmdir, small)
        ampd = self.daemon()
        root = os.path.join(ampd.state_dir, "artifacts")
        os.makedirs(root, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", root]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            self.skipTest("no small file system can be mounted here (needs root and CAP_SYS_ADMIN)")
        self.addCleanup(subprocess.run, ["umount", "-l", root], check=True)
        with open(os.path.join(root, "filler"), "wb") as file:
            file.write(bytes(4096))
        shown = self.ctl(0, ampd, "submit", JOB, *SMALL, "--watch").stdout
        self.assertRegex(shown, r"WARNING not kept: .*No space left")
        self.assertRegex(shown.splitlines()[-1], "^SUCCEEDED")
        self.assert_healthy(ampd)


if __name__ == "__main__":
    ampd_process.main()
