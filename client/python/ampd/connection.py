"""The channel to a daemon: where it is, how it is trusted, and calls whose errors are ampd.Error."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar

import grpc

from ampd.errors import Error, InvalidArgument, Unavailable, from_rpc, is_transient
from ampd.v1 import training_service_pb2_grpc

DEFAULT_SERVER = "127.0.0.1:7070"
_MAX_MESSAGE_BYTES = 64 << 20
_ATTEMPTS = 5
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Options:
    """How to reach a daemon. What is None comes from the environment, as for ampctl; then from the default."""

    #: HOST:PORT, [IPV6]:PORT or unix:PATH. $AMPD_SERVER. Default 127.0.0.1:7070.
    server: Optional[str] = None
    #: The token itself, or the file that holds it. $AMPD_TOKEN, $AMPD_TOKEN_FILE. Default: none is sent.
    token: Optional[str] = None
    token_file: Optional[str] = None
    #: PEM files: whom to trust, and, where the server asks for it, the client's own certificate and key. Any of them turns
    #: TLS on. $AMPD_CA, $AMPD_CERT, $AMPD_KEY. Default: no TLS.
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None

    def resolved(self) -> Options:
        """With the environment and the default filled in. A token or file that is given hides both variables of tokens."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        own_token = self.token is not None or self.token_file is not None
        for name, value in given.items():
            if value is None and not (own_token and name.startswith("token")):
                given[name] = os.environ.get(f"AMPD_{name.upper()}") or None
        given["server"] = given["server"] or DEFAULT_SERVER
        return Options(**given)


class Backoff:
    """Delays that double from `first` up to `longest`, seconds."""

    def __init__(self, first: float = 0.2, longest: float = 2.0) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        delay, self._next = self._next, min(2 * self._next, self._longest)
        return delay

    def reset(self) -> None:
        self._next = self._first


class Connection:
    """Thread-safe. Dials lazily; an unreachable server shows in the first call."""

    def __init__(self, options: Options) -> None:
        options = options.resolved()
        assert options.server is not None
        self.server: str = options.server
        _check_address(self.server)
        token = _read_token(options)
        channel = _open_channel(options)
        if token:
            channel = grpc.intercept_channel(channel, _WithToken(token))
        self._channel = channel
        self.stub: Any = training_service_pb2_grpc.TrainingServiceStub(channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._channel.close()

    def call(self, method: str, request: Any, timeout: float) -> Any:
        """One answer within `timeout` seconds."""
        try:
            return getattr(self.stub, method)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        except ValueError as error:  # gRPC's word for a channel that was closed.
            raise Unavailable(f"{method}: {error}") from error

    def call_again(self, method: str, request: Any, timeout: float) -> Any:
        """As call, for requests that do no harm when they are repeated: tries again where that may help."""
        return with_retries(lambda: self.call(method, request, timeout))

    def stream(self, method: str, request: Any, timeout: Optional[float] = None) -> Iterator[Any]:
        """The answers of one stream; closing the iterator ends the call."""
        try:
            call = getattr(self.stub, method)(request, timeout=timeout)
        except ValueError as error:
            raise Unavailable(f"{method}: {error}") from error
        try:
            yield from call
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        finally:
            call.cancel()


def with_retries(attempt: Callable[[], T]) -> T:
    """Calls until there is no transient error, five times at most, with the pauses that the server asks for."""
    backoff = Backoff()
    for number in itertools.count(1):
        try:
            return attempt()
        except Error as error:
            if number >= _ATTEMPTS or not is_transient(error):
                raise
            time.sleep(backoff.next() if error.retry_after is None else min(error.retry_after, 30.0))
    raise AssertionError


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address.startswith("unix:") and len(address) > 5:
        return
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in address:
        raise InvalidArgument(f"server: expected HOST:PORT, got {address!r}")


def _read_file(what: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"{what}: {path}: {error.strerror}") from error


def _read_token(options: Options) -> str:
    if options.token is not None and options.token_file is not None:
        raise InvalidArgument("token and token_file: give one of them")
    token = options.token or ""
    if options.token_file is not None:
        token = _read_file("token_file", options.token_file).decode("ascii", "replace").strip()
        if not token:
            raise InvalidArgument(f"token_file: {options.token_file}: is empty")
    if not (token.isascii() and (token.isprintable() or not token)) or " " in token:
        raise InvalidArgument("token: has characters that no token has")
    return token


def _open_channel(options: Options) -> grpc.Channel:
    settings: List[Tuple[str, int]] = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        # A daemon is dialled where it is: a proxy for the web has no part in it.
        ("grpc.enable_http_proxy", 0),
        # A restarted daemon is found again within a second or two. The second bound is also the time of one attempt: a busy
        # machine needs a while to answer.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 10_000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Notices a host that vanished; no more often than servers allow by default.
        ("grpc.keepalive_time_ms", 320_000),
    ]
    if not (options.ca or options.cert or options.key):
        return grpc.insecure_channel(options.server, settings)
    if bool(options.cert) != bool(options.key):
        raise InvalidArgument("cert and key: one needs the other")
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read_file("ca", options.ca) if options.ca else None,
        private_key=_read_file("key", options.key) if options.key else None,
        certificate_chain=_read_file("cert", options.cert) if options.cert else None)
    return grpc.secure_channel(options.server, credentials, settings)


@dataclasses.dataclass
class _CallDetails:
    method: str
    timeout: Optional[float]
    metadata: List[Tuple[str, str]]
    credentials: Any
    wait_for_ready: Optional[bool]
    compression: Any


class _WithToken(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamUnaryClientInterceptor):
    """Adds the token to every call. gRPC's own call credentials refuse connections without TLS, a daemon on loopback too."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def _continue(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return continuation(
            _CallDetails(details.method, details.timeout, [*(details.metadata or ()), self._header], details.credentials,
                         details.wait_for_ready, details.compression), request)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._continue(continuation, client_call_details, request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._continue(continuation, client_call_details, request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._continue(continuation, client_call_details, request_iterator)
