"""Files of checkpoints over HTTP at a real daemon: whole, in part, damaged, and for clients that take nothing."""

import hashlib
import http.client
import io
import json
import os
import socket
import tarfile
import time

import ampd_process
import certificates
from ampd_process import DEADLINE, DaemonTest, OneDaemonTest, eventually, glyphs_job, program
from json_api_test import ask


class JsonDownloadsTest(OneDaemonTest):
    def refused(self, path, status, code):
        answer = ask(self.ampd, path)
        self.assertEqual((answer.status, answer.json["code"]), (status, code), answer.bytes[:500])
        self.assertTrue(answer.json["message"])

    def transfers(self):
        """Files on their way, as the daemon counts them."""
        lines = ask(self.ampd, "/metrics").bytes.decode().splitlines()
        return float(next(line for line in lines if line.startswith('ampd_calls{class="transfers"}')).split()[-1])

    def check_archive(self, job_id, name, folder):
        path = f"/api/v1/jobs/{job_id}/checkpoints/{name}?format=tar"
        answer = ask(self.ampd, path, headers={"Range": "bytes=5-9"})
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/x-tar"))
        self.assertEqual(answer.headers["Content-Disposition"], f'attachment; filename="{job_id}-{name}.tar"')
        by_prefix = ask(self.ampd, path.replace(job_id, job_id[:20]), method="HEAD")
        self.assertEqual(by_prefix.headers["Content-Disposition"], answer.headers["Content-Disposition"])
        self.assertEqual((answer.headers["Content-Length"], answer.headers["Accept-Ranges"]), (str(len(answer.bytes)), "none"))
        with tarfile.open(fileobj=io.BytesIO(answer.bytes), mode="r:") as archive:
            found = {member.name: archive.extractfile(member).read() for member in archive}
            times = {member.mtime for member in archive}
        self.assertEqual(found, {f"{name}/{file}": certificates.read(os.path.join(folder, file)) for file in os.listdir(folder)})
        self.assertLess(abs(times.pop() - time.time()), 3600)
        self.assertEqual(times, set())
        host, port = self.ampd.http_address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=DEADLINE) as client:
            client.sendall(f"HEAD {path} HTTP/1.1\r\nHost: {self.ampd.http_address}\r\n\r\n".encode())
            head = b"".join(iter(lambda: client.recv(65536), b""))
        self.assertTrue(head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n"), head[:500])
        self.assertIn(f"Content-Length: {len(answer.bytes)}\r\n".encode(), head)
        self.refused(path + "x", 400, "INVALID_ARGUMENT")
        self.refused(f"/api/v1/jobs/{job_id}/checkpoints/step-9?format=tar", 404, "NOT_FOUND")
        self.refused(f"/api/v1/jobs/{job_id}/checkpoints/..%2f{name}?format=tar", 400, "INVALID_ARGUMENT")

    def test_files_of_checkpoints_come_whole_and_in_part(self):
        job = self.ampd.run(glyphs_job("weights", steps=2))
        name = job.summary.checkpoint
        folder = os.path.join(self.ampd.state_dir, "checkpoints", job.id, name)
        listed = ask(self.ampd, f"/api/v1/jobs/{job.id}/checkpoints/{name}").json
        self.assertEqual(listed["name"], name)
        self.assertEqual({file["name"] for file in listed["files"]}, set(os.listdir(folder)))
        for file in listed["files"]:
            content = certificates.read(os.path.join(folder, file["name"]))
            self.assertEqual((file["size_bytes"], file["sha256"]), (len(content), hashlib.sha256(content).hexdigest()))
            answer = ask(self.ampd, f"/api/v1/jobs/{job.id}/checkpoints/{name}/{file['name']}")
            self.assertEqual((answer.status, answer.bytes), (200, content))
        self.check_archive(job.id, name, folder)
        headers = answer.headers
        self.assertEqual((headers["Content-Type"], headers["Content-Disposition"]), ("application/octet-stream", "attachment"))
        self.assertEqual((headers["Accept-Ranges"], headers["Cross-Origin-Resource-Policy"]), ("bytes", "same-origin"))
        self.assertIn("sandbox", headers["Content-Security-Policy"])
        path = f"/api/v1/jobs/{job.id}/checkpoints/{name}/model.safetensors"
        weights = certificates.read(os.path.join(folder, "model.safetensors"))
        size, tag = len(weights), f'"{hashlib.sha256(weights).hexdigest()}"'
        for asked, first, last in (("bytes=0-0", 0, 0), ("bytes=8-99", 8, 99), ("bytes=100-", 100, size - 1), ("bytes=-5", size - 5, size - 1),
                                   (f"bytes=10-{size * 2}", 10, size - 1)):
            part = ask(self.ampd, path, headers={"Range": asked, "If-Range": tag})
            self.assertEqual((part.status, part.bytes), (206, weights[first:last + 1]), asked)
            self.assertEqual((part.headers["Content-Range"], part.headers["ETag"]), (f"bytes {first}-{last}/{size}", tag))
        for extra in ({"Range": "bytes=5-1"}, {"Range": "bytes=0-1,4-5"}, {"Range": "bytes=0-1", "If-Range": '"other"'}):
            whole = ask(self.ampd, path, headers=extra)
            self.assertEqual((whole.status, whole.bytes, whole.headers["Content-Range"]), (200, weights, None), extra)
        beyond = ask(self.ampd, path, headers={"Range": f"bytes={size}-"})
        self.assertEqual((beyond.status, beyond.json["code"], beyond.headers["Content-Range"]), (416, "OUT_OF_RANGE", f"bytes */{size}"))
        head = ask(self.ampd, path, method="HEAD", headers={"Range": "bytes=0-1"})
        self.assertEqual((head.status, head.bytes, head.headers["Content-Length"]), (200, b"", str(size)))
        for wrong, status, code in ((f"{name}/none", 404, "NOT_FOUND"), ("step-999999999/MANIFEST", 404, "NOT_FOUND"),
                                    ("..%2f../MANIFEST", 400, "INVALID_ARGUMENT"), ("step-1x", 400, "INVALID_ARGUMENT")):
            self.refused(f"/api/v1/jobs/{job.id}/checkpoints/{wrong}", status, code)
        # What is damaged is not given, nor is an archive of it begun.
        archive = f"/api/v1/jobs/{job.id}/checkpoints/{name}?format=tar"
        first, last = listed["files"][0]["name"], listed["files"][-2]["name"]
        for file in (last, first):
            with open(os.path.join(folder, file), "r+b") as content:
                byte = content.read(1)
                content.seek(0)
                content.write(bytes([byte[0] ^ 1]))
                content.flush()
                self.refused(archive, 500, "DATA_LOSS")
                content.seek(0)
                content.write(byte)
        with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
            file.write(bytes([weights[0] ^ 1]))
        self.refused(path, 500, "DATA_LOSS")

    def test_models_come_in_other_forms(self):
        job = self.ampd.run(glyphs_job("exported", steps=2))
        name = job.summary.checkpoint
        path = f"/api/v1/jobs/{job.id}/checkpoints/{name}/export"
        for query, options, suffix in (("form=onnx", ("--form", "onnx"), "onnx"), ("form=safetensors", ("--form", "safetensors"), "safetensors"),
                                       ("form=SAFETENSORS&dtype=bf16", ("--dtype", "bf16"), "safetensors")):
            by_client = os.path.join(self.folder, f"{len(options)}-{options[1]}.{suffix}")
            self.assertEqual(self.ampd.ctl("download", job.id, by_client, *options).returncode, 0)
            answer = ask(self.ampd, f"{path}?{query}", headers={"Range": "bytes=0-1"})
            self.assertEqual((answer.status, answer.bytes), (200, certificates.read(by_client)), query)
            self.assertEqual((answer.headers["Content-Type"], answer.headers["Accept-Ranges"]), ("application/octet-stream", "none"))
            self.assertEqual(answer.headers["Content-Disposition"], f'attachment; filename="{job.id}-{name}.{suffix}"')
            self.assertIn("sandbox", answer.headers["Content-Security-Policy"])
            head = ask(self.ampd, f"{path}?{query}", method="HEAD")
            self.assertEqual((head.status, head.bytes, head.headers["Content-Length"]), (200, b"", str(len(answer.bytes))))
        for wrong, status, code in (("", 400, "INVALID_ARGUMENT"), ("?form=onnx&dtype=fp16", 400, "INVALID_ARGUMENT"),
                                    ("?form=onnx&network=head", 400, "INVALID_ARGUMENT"), ("?form=onnx&ema=true", 400, "FAILED_PRECONDITION")):
            self.refused(path + wrong, status, code)
        self.refused(path.replace(name, "step-9") + "?form=onnx", 404, "NOT_FOUND")

    def test_downloads_that_nobody_takes_are_few_and_end(self):
        job = self.ampd.run(glyphs_job("large", steps=2))
        # The last thing that it does is to remove checkpoints.
        eventually(lambda: not self.ampd.worker_pids(), "the end of the worker")
        folder = os.path.join(self.ampd.state_dir, "checkpoints", job.id, "step-000000009")
        os.makedirs(folder)
        # More than the sockets' buffers hold, so that who takes none of it holds the answer up.
        content = b"weights." * (4 << 20)
        line = f"{hashlib.sha256(content).hexdigest()} {len(content)} model.safetensors\n".encode()
        for name, text in (("model.safetensors", content),
                           ("MANIFEST", line + f"{hashlib.sha256(line).hexdigest()} {len(line)} MANIFEST\n".encode())):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(text)
        path = f"/api/v1/jobs/{job.id}/checkpoints/step-000000009/model.safetensors"
        eventually(lambda: self.crowd_is_refused(path), "a refusal of one download too many")
        answer = eventually(lambda: self.downloaded(path), "a download once those are over")
        self.assertEqual(hashlib.sha256(answer).digest(), hashlib.sha256(content).digest())
        eventually(lambda: self.transfers() == 0, "the end of all downloads")

    def crowd_is_refused(self, path):
        """Whether of a dozen downloads at once, none of which is taken, some are refused and the daemon answers others."""
        name, port = self.ampd.http_address.rsplit(":", 1)
        crowd = [http.client.HTTPConnection(name, int(port), timeout=DEADLINE) for _ in range(12)]
        try:
            for connection in crowd:
                connection.request("GET", path)
            answers = [connection.getresponse() for connection in crowd]
            self.assertEqual(ask(self.ampd, "/healthz").status, 200)
            refused = [json.loads(answer.read()) for answer in answers if answer.status == 503]
            return any("too many downloads" in body["message"] for body in refused) and len(refused) <= 12 - 8
        finally:
            for connection in crowd:
                connection.close()

    def downloaded(self, path):
        answer = ask(self.ampd, path)
        return answer.bytes if answer.status == 200 else None


class SlowExporterTest(DaemonTest):
    """An exporter that does not come to its end by itself."""

    def setUp(self):
        super().setUp()
        self.started = os.path.join(self.folder, "started")
        worker = os.path.join(self.folder, "worker.sh")
        with open(worker, "w") as file:
            file.write(f"#!/bin/sh\n[ \"$1\" != --export ] && exec {program('ampd-worker')} \"$@\"\n"
                       f"echo $$ > {self.started}\nexec sleep 1000\n")
        os.chmod(worker, 0o755)
        self.ampd = self.daemon(config={"worker": worker})
        self.job = self.ampd.run(glyphs_job("exported", steps=2))

    def exporter(self):
        """Its process, once it has begun."""
        pid = int(eventually(lambda: os.path.exists(self.started) and certificates.read(self.started), "an exporter"))
        os.kill(pid, 0)
        return pid

    def await_end(self, pid):
        eventually(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the exporter")

    def test_it_ends_when_the_client_goes(self):
        host, port = self.ampd.http_address.rsplit(":", 1)
        client = http.client.HTTPConnection(host, int(port), timeout=DEADLINE)
        client.request("GET", f"/api/v1/jobs/{self.job.id}/checkpoints/{self.job.summary.checkpoint}/export?form=onnx")
        pid = self.exporter()
        client.close()
        self.await_end(pid)
        self.assert_healthy(self.ampd)

    def test_it_ends_when_the_daemon_does(self):
        client = self.ampd.ctl_start("download", self.job.id, os.path.join(self.folder, "model.onnx"), "--form", "onnx")
        pid = self.exporter()
        # In time for whoever stops it; an exporter has two minutes.
        self.assertEqual(self.ampd.terminate(seconds=60), 0)
        self.await_end(pid)
        client.kill()
        client.communicate()


if __name__ == "__main__":
    ampd_process.main()
