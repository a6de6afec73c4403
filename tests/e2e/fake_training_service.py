"""A server of the API that misbehaves on purpose, and tells what it was asked: for tests of clients."""

import contextlib
import hashlib
from concurrent import futures

import grpc

from ampd.v1 import event_pb2, job_pb2, training_service_pb2, training_service_pb2_grpc

CHUNK = 100


def manifest_of(files):
    """MANIFEST of {name: bytes}."""
    lines = "".join(f"{hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in files.items()).encode()
    return lines + f"{hashlib.sha256(lines).hexdigest()} {len(lines)} MANIFEST\n".encode()


def event(first, last=None, to=None):
    made = event_pb2.JobEvent(first_sequence=first, sequence=last or first)
    if to is None:
        made.log.text = str(first)
    else:
        made.state_change.to = to
    return made


class FakeTrainingService(training_service_pb2_grpc.TrainingServiceServicer):
    """Answers what the test put into its fields."""

    def __init__(self):
        # [(method, request, metadata)].
        self.calls = []
        self.files = {}
        self.manifest = None
        # {file: [bytes after which a download breaks]}, one for each call.
        self.breaks = {}
        # A list of events for each call of WatchJob; an exception in it breaks the stream.
        self.streams = []
        # Raised by each next GetJob: (code, message, trailing metadata).
        self.errors = []
        # Of the one dataset: {path: [size, checksum, bytes]}.
        self.uploaded = {}
        self.committed = False
        # Bytes of the next uploads after which each breaks.
        self.upload_breaks = []

    def _record(self, method, request, context):
        self.calls.append((method, request, dict(context.invocation_metadata())))

    def methods(self):
        return [method for method, _, _ in self.calls]

    def GetServerInfo(self, request, context):
        self._record("GetServerInfo", request, context)
        return training_service_pb2.ServerInfo(version="fake")

    def GetJob(self, request, context):
        self._record("GetJob", request, context)
        if self.errors:
            code, message, metadata = self.errors.pop(0)
            context.set_trailing_metadata(metadata)
            context.abort(code, message)
        return job_pb2.Job(id=request.job_id, state=job_pb2.Job.RUNNING, last_sequence=1000)

    def WatchJob(self, request, context):
        self._record("WatchJob", request, context)
        for one in self.streams.pop(0) if self.streams else []:
            if isinstance(one, grpc.StatusCode):
                context.abort(one, "broken on purpose")
            yield one

    def _dataset(self):
        files = [training_service_pb2.DatasetFile(path=path, size_bytes=size, sha256=checksum, received_bytes=len(data))
                 for path, (size, checksum, data) in self.uploaded.items()]
        return training_service_pb2.Dataset(name="pairs", committed=self.committed, files=files)

    def ListDatasets(self, request, context):
        self._record("ListDatasets", request, context)
        if not self.uploaded:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such dataset")
        return training_service_pb2.ListDatasetsResponse(datasets=[self._dataset()])

    def UploadDataset(self, requests, context):
        if self.committed:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "there is a whole one")
        left = self.upload_breaks.pop(0) if self.upload_breaks else 1 << 40
        current = None
        for number, request in enumerate(requests):
            self._record("UploadDataset", request, context)
            if (request.name != "") != (number == 0) or len(request.data) > 1 << 20:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "name or data")
            if request.file:
                current = self.uploaded.setdefault(request.file, [request.file_size, request.file_sha256, b""])
            if current is not None and not request.commit and request.offset != len(current[2]):
                context.abort(grpc.StatusCode.OUT_OF_RANGE, f"offset {request.offset} of {len(current[2])}")
            if request.data:
                current[2] += request.data
                left -= len(request.data)
            if left <= 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
            self.committed = request.commit
        whole = all((len(data), hashlib.sha256(data).hexdigest()) == (size, checksum)
                    for size, checksum, data in self.uploaded.values())
        if not whole:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not the bytes that were announced")
        return self._dataset()

    def DownloadCheckpoint(self, request, context):
        self._record("DownloadCheckpoint", request, context)
        files = {**self.files, "MANIFEST": manifest_of(self.files) if self.manifest is None else self.manifest}
        data = files[request.file]
        breaks = self.breaks.get(request.file, [])
        end = breaks.pop(0) if breaks else None
        for offset in range(request.offset, max(len(data), 1), CHUNK):
            if end is not None and offset >= end:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")
            yield training_service_pb2.FileChunk(file=request.file, file_size=len(data), offset=offset,
                                                 data=data[offset:offset + CHUNK], checkpoint="step-000000001")


@contextlib.contextmanager
def serving(service, credentials=None):
    """Serves `service` on a port of loopback, with TLS where credentials are given; its address."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    training_service_pb2_grpc.add_TrainingServiceServicer_to_server(service, server)
    address = "localhost:0" if credentials else "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield address.replace(":0", f":{port}")
    finally:
        server.stop(0).wait()
