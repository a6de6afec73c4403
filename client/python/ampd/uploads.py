"""Files of this machine that a job names: they are sent to the server, and the job names what was sent."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

import grpc

from ampd.connection import Connection, with_retries
from ampd.errors import Error, FieldViolation, InvalidArgument, NotFound, from_rpc, invalid
from ampd.external_data import join_external_data
from ampd.spec import Spec
from ampd.v1 import job_pb2, training_service_pb2

_PIECE_BYTES = 1 << 20
_PREFIX = "upload:"


def upload_model(connection: Connection, path: str, is_onnx: Optional[bool] = None) -> str:
    """Sends a model file, unless the server has it, and returns what specs call it: "upload:<sha256>". What tensors of an ONNX model
    have in files beside it is sent in one file with it; `is_onnx`: by default, where the name is none of safetensors."""
    joined = _joined(path) if is_onnx or is_onnx is None and not os.fspath(path).endswith(".safetensors") else None
    checksum = sha256_of(path) if joined is None else hashlib.sha256(joined).hexdigest()

    def pieces() -> Iterator[bytes]:
        return _pieces(path) if joined is None else _pieces_of(joined)

    answer = with_retries(lambda: _send(connection, "UploadModel", _model_pieces(checksum, pieces())))
    return str(answer.path)


def upload_dataset(connection: Connection, folder: str, name: str) -> Any:
    """Sends the files beneath `folder`, or a single file, as the dataset `name`, unless the server has just these; one that broke
    off goes on where the server says that it stopped. NotFound when there is no such folder, AlreadyExists when other files have
    the name."""
    if not os.path.isdir(folder) and not os.path.isfile(folder):
        raise NotFound(f"no file or folder {folder}")
    files = _files_beneath(folder)
    if not files:
        raise InvalidArgument(f"{folder}: has no files")
    sums = {file: sha256_of(path) for file, path in files}

    def attempt() -> Any:
        there = _find_dataset(connection, name)
        if there is not None and there.committed and {file.path: file.sha256 for file in there.files} == sums:
            return there
        received = {file.path: int(file.received_bytes) for file in there.files} if there is not None else {}
        return _send(connection, "UploadDataset", _dataset_pieces(name, files, sums, received))

    return with_retries(attempt)


def upload_local_files(connection: Connection, spec: Spec) -> None:
    """Has `spec` name uploads of the local files that it names: as `ampctl submit` does."""
    named: List[Tuple[str, Any]] = []
    if spec.message.model.HasField("onnx"):
        named.append(("model.onnx.path", spec.message.model.onnx))
    if spec.message.start_from.HasField("path"):
        named.append(("start_from.path", spec.message.start_from))
    for field, message in named:
        local = _local_file(message.path, spec.folder_of(field), field)
        if local:
            try:
                message.path = upload_model(connection, local, is_onnx=field == "model.onnx.path")
            except InvalidArgument as error:
                raise error if error.violations else invalid([FieldViolation(field, str(error))]) from error


def parse_source(source: str) -> job_pb2.WeightSource:
    """What `resume_from` means: a file of this machine, an upload, JOB, JOB@CHECKPOINT or JOB@best."""
    if source.startswith(_PREFIX):
        return job_pb2.WeightSource(path=source)
    if os.path.isfile(source):
        return job_pb2.WeightSource(path=os.path.abspath(source))
    if source.endswith(".safetensors") or "/" in source:
        raise NotFound(f"resume_from: no file {source} on this machine; one beneath the server's data roots is start_from.path")
    found = _job_source(source)
    if found is None:
        raise InvalidArgument(f"resume_from: expected FILE.safetensors, JOB or JOB@CHECKPOINT, got {source!r}")
    return found


def parse_training(source: str) -> job_pb2.WeightSource:
    """What `continue_from` means: the training of JOB, where its newest checkpoint, or that of JOB@CHECKPOINT or JOB@best, stands."""
    # A file has no training; an id has no such characters.
    found = None if source.startswith(_PREFIX) or "." in source or "/" in source else _job_source(source)
    if found is None:
        raise InvalidArgument(f"continue_from: expected JOB or JOB@CHECKPOINT, got {source!r}")
    found.continue_training = True
    return found


def _job_source(source: str) -> Optional[job_pb2.WeightSource]:
    job, at, checkpoint = source.partition("@")
    if not job or at and not checkpoint:
        return None
    return job_pb2.WeightSource(job_id=job, checkpoint=checkpoint)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(path: str, offset: int = 0) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error


def _joined(path: str) -> Optional[bytes]:
    try:
        return join_external_data(path)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error


def _pieces_of(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _PIECE_BYTES):
        yield data[at:at + _PIECE_BYTES]


def _model_pieces(checksum: str, pieces: Iterator[bytes]) -> Iterator[Any]:
    # A file that the server has is answered by its checksum: the first message needs no data.
    yield training_service_pb2.UploadModelRequest(sha256=checksum)
    for piece in pieces:
        yield training_service_pb2.UploadModelRequest(data=piece)


def _dataset_pieces(name: str, files: List[Tuple[str, str]], sums: Dict[str, str], received: Dict[str, int]) -> Iterator[Any]:
    request = training_service_pb2.UploadDatasetRequest
    for file, path in files:
        offset = received.get(file, 0)
        yield request(name=name, file=file, file_size=os.path.getsize(path), file_sha256=sums[file], offset=offset)
        for piece in _pieces(path, offset):
            yield request(offset=offset, data=piece)
            offset += len(piece)
        name = ""
    yield request(commit=True)


def _find_dataset(connection: Connection, name: str) -> Any:
    """Whole or not; None: there is none."""
    try:
        answer = connection.call("ListDatasets", training_service_pb2.ListDatasetsRequest(name=name), 60)
    except NotFound:
        return None
    return next(iter(answer.datasets), None)


def _files_beneath(folder: str) -> List[Tuple[str, str]]:
    if os.path.isfile(folder):
        return [(os.path.basename(os.path.abspath(folder)), folder)]
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            found.append((os.path.relpath(path, folder).replace(os.sep, "/"), path))
    return sorted(found)


def _send(connection: Connection, method: str, pieces: Iterator[Any]) -> Any:
    broken: List[Error] = []

    def checked() -> Iterator[Any]:
        # gRPC swallows what its request iterator raises.
        try:
            yield from pieces
        except Error as error:
            broken.append(error)
            raise

    try:
        return getattr(connection.stub, method)(checked())
    except grpc.RpcError as error:
        raise (broken[0] if broken else from_rpc(error)) from error


def _local_file(path: str, folder: str, field: str) -> str:
    if not path or path.startswith(_PREFIX):
        return ""
    # Nothing more is tidied: behind a link ".." is not what it looks like.
    plain = path[2:] if path.startswith("./") else path
    local = plain if path.startswith("/") or folder == "." else f"{folder}/{plain}"
    if os.path.isfile(local):
        return local
    if path.startswith(("./", "../")):
        raise invalid([FieldViolation(field, f"no file {local} on this machine")])
    return ""
