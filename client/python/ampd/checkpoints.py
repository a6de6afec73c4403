"""Fetches checkpoints, artifacts and exported models. Every file is compared with the checkpoint's MANIFEST."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import tempfile
import threading
from typing import Any, BinaryIO, Dict, Iterator, Optional, Protocol

from ampd.connection import Connection, with_retries
from ampd.errors import AlreadyExists, DataLoss, NotFound
from ampd.v1 import training_service_pb2

MANIFEST = "MANIFEST"
MODEL = "model.safetensors"
_MAX_MANIFEST_BYTES = 1 << 20
_MAX_FILES = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}", re.A)


@dataclasses.dataclass(frozen=True)
class ManifestEntry:
    sha256: str
    size: int


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object: ...


class FileFetch:
    """One file that arrives in order, over several calls where a connection broke."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.size: Optional[int] = None
        self.written = 0
        self.checkpoint = ""

    def take(self, chunk: Any) -> None:
        if self.size is None:
            self.size, self.checkpoint = chunk.file_size, chunk.checkpoint
        fits = chunk.file_size == self.size and chunk.offset == self.written and chunk.checkpoint == self.checkpoint
        if not fits or len(chunk.data) > self.size - self.written:
            raise DataLoss(f"{chunk.file}: got byte {chunk.offset} of {chunk.file_size} where byte {self.written} of {self.size} "
                           "is next")
        self._sink.write(chunk.data)
        self._hash.update(chunk.data)
        self.written += len(chunk.data)

    def finish(self, name: str, expected: Optional[ManifestEntry] = None) -> None:
        if self.size is None or self.written != self.size:
            raise DataLoss(f"{name}: ended after {self.written} of {self.size or 0} bytes")
        if expected is not None and (self.size, self._hash.hexdigest()) != (expected.size, expected.sha256):
            raise DataLoss(f"{name} of {self.checkpoint}: its bytes are not those that {MANIFEST} lists")


class _Bytes:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes, /) -> object:
        self.data += data
        return None


class Checkpoint:
    """One checkpoint of a job on the server: the newest when this was made, or the named one."""

    def __init__(self, connection: Connection, job_id: str, name: str = "") -> None:
        self._connection = connection
        self._job_id = job_id
        self.name = name
        # By name; MANIFEST, whose last line is about itself, is not among them.
        self.files: Dict[str, ManifestEntry] = {}
        self._manifest = self._read_manifest()

    def read(self, file: str) -> bytes:
        """One file, such as "state.json"."""
        if file == MANIFEST:
            return self._manifest
        sink = _Bytes()
        self._fetch(file, sink)
        return bytes(sink.data)

    def download(self, path: str) -> None:
        """All files into the new folder `path`; nothing is overwritten, and all of it arrives or nothing does."""
        target = os.path.normpath(path)
        if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
            raise AlreadyExists(f"{target}: exists and is not an empty folder")
        parent = os.path.dirname(target) or "."
        os.makedirs(parent, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=os.path.basename(target) + ".partial-", dir=parent)
        try:
            for name in self.files:
                with open(os.path.join(partial, name), "xb") as file:
                    self._fetch(name, file)
                    _sync(file)
            with open(os.path.join(partial, MANIFEST), "xb") as file:
                file.write(self._manifest)
                _sync(file)
            os.chmod(partial, _without_umask(0o777))
            # Replaces an empty folder, and fails where something has been put there meanwhile.
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _chunks(self, file: str, offset: int = 0) -> Iterator[Any]:
        request = training_service_pb2.DownloadCheckpointRequest(job_id=self._job_id, checkpoint=self.name, file=file,
                                                                 offset=offset)
        return self._connection.stream("DownloadCheckpoint", request)

    def _read_manifest(self) -> bytes:
        def fetch() -> bytes:
            sink, name = _Bytes(), ""
            for chunk in self._chunks(MANIFEST):
                sink.write(chunk.data)
                name = chunk.checkpoint
                if len(sink.data) > _MAX_MANIFEST_BYTES:
                    raise DataLoss(f"{MANIFEST} is too large")
            # "best" is another one once the job has a better.
            self.name = name or self.name
            return bytes(sink.data)

        text = with_retries(fetch)
        self.files = parse_manifest(text)
        return text

    def _fetch(self, name: str, sink: Sink) -> None:
        if name not in self.files:
            raise NotFound(f"checkpoint {self.name} has no file {name!r}, but {', '.join(self.files)}")
        fetch = FileFetch(sink)

        def go_on() -> None:
            # Of a broken file only the rest comes again.
            if fetch.size is None or fetch.written < fetch.size:
                for chunk in self._chunks(name, fetch.written):
                    fetch.take(chunk)

        with_retries(go_on)
        fetch.finish(name, self.files[name])


def parse_manifest(data: bytes) -> Dict[str, ManifestEntry]:
    """Lines "<sha256> <bytes> <name>", of which the last is about the lines before it. DataLoss for anything else."""
    lines = data.decode("ascii", "replace").splitlines(keepends=True)
    entries: Dict[str, ManifestEntry] = {}
    for line in lines:
        fields = line.rstrip("\n").split(" ", 2)
        whole = len(fields) == 3 and re.fullmatch("[0-9a-f]{64}", fields[0]) and re.fullmatch("[0-9]{1,18}", fields[1], re.A)
        if not whole or not _NAME.fullmatch(fields[2]) or fields[2] in entries or len(entries) >= _MAX_FILES:
            raise DataLoss(f"{MANIFEST} has a line that is none")
        entries[fields[2]] = ManifestEntry(fields[0], int(fields[1]))
    before = "".join(lines[:-1]).encode()
    own = ManifestEntry(hashlib.sha256(before).hexdigest(), len(before))
    if not lines or list(entries)[-1] != MANIFEST or entries.pop(MANIFEST) != own:
        raise DataLoss(f"{MANIFEST} does not match its own checksum")
    return entries


def fetch_bytes(connection: Connection, method: str, request: Any, name: str) -> bytes:
    """A file that a call makes or finds: an artifact, or an exported model."""

    def attempt() -> bytes:
        sink = _Bytes()
        fetch = FileFetch(sink)
        for chunk in connection.stream(method, request):
            fetch.take(chunk)
        fetch.finish(name)
        return bytes(sink.data)

    return with_retries(attempt)


def fetch_to(connection: Connection, method: str, request: Any, path: str) -> None:
    """As fetch_bytes, into the new file `path`; nothing is overwritten, and all of it arrives or nothing does."""
    if os.path.lexists(path):
        raise AlreadyExists(f"{path}: exists already")

    def attempt() -> None:
        descriptor, partial = tempfile.mkstemp(prefix=os.path.basename(path) + ".partial-", dir=os.path.dirname(path) or ".")
        try:
            with open(descriptor, "wb") as file:
                fetch = FileFetch(file)
                for chunk in connection.stream(method, request):
                    fetch.take(chunk)
                fetch.finish(path)
                _sync(file)
            os.chmod(partial, _without_umask(0o666))
            # Unlike a rename a link never takes another file's place.
            os.link(partial, path)
        except FileExistsError as error:
            raise AlreadyExists(f"{path}: exists already") from error
        finally:
            os.unlink(partial)

    with_retries(attempt)


_UMASK = threading.Lock()


def _without_umask(mode: int) -> int:
    # It cannot be asked for, only set: what another thread makes meanwhile is its owner's alone.
    with _UMASK:
        mask = os.umask(0o077)
        os.umask(mask)
    return mode & ~mask


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


