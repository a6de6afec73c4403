"""What can go wrong. Every call raises ampd.Error or one of its kinds, never a bare gRPC error."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Tuple, Type, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

M = TypeVar("M")
_DETAILS = "grpc-status-details-bin"


@dataclasses.dataclass(frozen=True)
class FieldViolation:
    """One field of a request that the server, or the reader of a job file, refuses."""

    #: Path of the field, such as "train.batch_size"; empty: of the whole.
    field: str
    description: str
    #: Where a job file says it, such as "job.yaml:12"; empty where no file does.
    location: str = ""

    def __str__(self) -> str:
        # What was set names the field already.
        field = "" if self.location == f"set {self.field}" else self.field
        return ": ".join(part for part in (self.location, field, self.description) if part)


class Error(Exception):
    """A call that did not succeed. Each code of gRPC has a kind of its own below."""

    #: Of the kind; UNKNOWN for what has no other.
    CODE = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, *, code: Optional[grpc.StatusCode] = None,
                 violations: Iterable[FieldViolation] = (), retry_after: Optional[float] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code: grpc.StatusCode = code or self.CODE
        #: What is wrong, field by field; empty unless the code is INVALID_ARGUMENT.
        self.violations: Tuple[FieldViolation, ...] = tuple(violations)
        #: Seconds after which the server asks to be called again; None: it did not say.
        self.retry_after = retry_after

    def __str__(self) -> str:
        if not self.violations:
            return f"{self.code.name}: {self.message}"
        return f"{self.code.name}: " + "\n".join(str(violation) for violation in self.violations)


class InvalidArgument(Error):
    CODE = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(Error):
    CODE = grpc.StatusCode.NOT_FOUND


class AlreadyExists(Error):
    CODE = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(Error):
    CODE = grpc.StatusCode.FAILED_PRECONDITION


class OutOfRange(Error):
    CODE = grpc.StatusCode.OUT_OF_RANGE


class ResourceExhausted(Error):
    CODE = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unauthenticated(Error):
    CODE = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(Error):
    CODE = grpc.StatusCode.PERMISSION_DENIED


class Unavailable(Error):
    """The server cannot be reached, or drains."""

    CODE = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(Error):
    CODE = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(Error):
    CODE = grpc.StatusCode.CANCELLED


class DataLoss(Error):
    """Bytes are damaged, or were left out."""

    CODE = grpc.StatusCode.DATA_LOSS


class Internal(Error):
    CODE = grpc.StatusCode.INTERNAL


class Unimplemented(Error):
    """The server does not know the call: it is older than this package."""

    CODE = grpc.StatusCode.UNIMPLEMENTED


class JobFailed(Error):
    """A job that was waited for ended as FAILED or CANCELLED."""

    def __init__(self, message: str, job: Any) -> None:
        super().__init__(message, code=grpc.StatusCode.ABORTED)
        #: The ampd.Job as it ended.
        self.job = job

    def __str__(self) -> str:
        return self.message


class SubmitWarning(UserWarning):
    """What is odd about a spec that was accepted: the job may fail of it, or not do what was meant."""


_KINDS: Dict[grpc.StatusCode, Type[Error]] = {
    kind.CODE: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, OutOfRange, ResourceExhausted, Unauthenticated,
                 PermissionDenied, Unavailable, DeadlineExceeded, Cancelled, DataLoss, Internal, Unimplemented)
}


def make_error(code: grpc.StatusCode, message: str, violations: Iterable[FieldViolation] = (),
               retry_after: Optional[float] = None) -> Error:
    """The error of the kind that `code` has."""
    return _KINDS.get(code, Error)(message, code=code, violations=violations, retry_after=retry_after)


def invalid(violations: Iterable[FieldViolation]) -> InvalidArgument:
    listed = tuple(violations)
    return InvalidArgument("; ".join(str(violation) for violation in listed), violations=listed)


def make_request(kind: Type[M], **fields: Any) -> M:
    """A message of the API; InvalidArgument for a number that its field does not hold, or text that is no Unicode."""
    try:
        return kind(**fields)
    except ValueError as error:
        raise InvalidArgument(f"{kind.__name__}: {error}") from error


def from_rpc(error: grpc.RpcError) -> Error:
    """What a gRPC error says, with the google.rpc details that came with it."""
    code: grpc.StatusCode = error.code() or grpc.StatusCode.UNKNOWN
    violations: List[FieldViolation] = []
    retry_after: Optional[float] = None
    for kind, detail in _details_of(error):
        if kind == "google.rpc.BadRequest":
            violations += [FieldViolation(one.field, one.description) for one in detail.field_violations]
        elif kind == "google.rpc.RetryInfo":
            retry_after = detail.retry_delay.seconds + detail.retry_delay.nanos * 1e-9
    return make_error(code, error.details() or "", violations, retry_after)


def raise_from(error: grpc.RpcError) -> NoReturn:
    raise from_rpc(error) from error


def is_transient(error: Error) -> bool:
    """Whether the call may succeed when it is repeated: the server was away, its answer was lost, or it says when to try again."""
    # A server that stops cancels the streams it serves; the words are how a connection looks that breaks within an answer.
    return (isinstance(error, (Unavailable, DeadlineExceeded, Cancelled)) or error.retry_after is not None or
            any(words in error.message for words in ("RST_STREAM", "Stream removed")))


@functools.lru_cache(maxsize=None)
def _message_types() -> Mapping[str, Any]:
    # In a pool of their own: another package may have brought google.rpc too, and one pool takes it once.
    path = os.path.join(os.path.dirname(__file__), "google_rpc.binpb")
    with open(path, "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    make = getattr(message_factory, "GetMessageClass", None) or message_factory.MessageFactory(pool).GetPrototype
    names = [f"{one.package}.{message.name}" for one in files.file if one.package == "google.rpc" for message in one.message_type]
    return {name: make(pool.FindMessageTypeByName(name)) for name in names}


def _details_of(error: grpc.RpcError) -> List[Tuple[str, Any]]:
    types = _message_types()
    details = []
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        try:
            for detail in types["google.rpc.Status"].FromString(value).details:
                name = detail.type_url.rpartition("/")[2]
                if name in types:
                    details.append((name, types[name].FromString(detail.value)))
        except Exception:  # Details are a help; the code and the message say what happened.
            return []
    return details
