"""The channel to a daemon: where it is, how it is trusted, and how the client shows who it is. The rules are ampctl's."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Callable, List, Optional, Tuple

import grpc

from ampd.errors import InvalidArgument

DEFAULT_SERVER = "127.0.0.1:7070"
_MAX_MESSAGE_BYTES = 64 << 20
_MAX_FILE_BYTES = 1 << 20
_MAX_TOKEN_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Options:
    """How to reach a daemon. What is None comes from the environment, by ampctl's variables
    (its contexts are not read); then from the default."""

    #: HOST:PORT, [IPV6]:PORT or unix:PATH. $AMPD_SERVER. Default 127.0.0.1:7070.
    server: Optional[str] = None
    #: The token itself, or the file that holds it; one of them. $AMPD_TOKEN, then $AMPD_TOKEN_FILE. Default: none is shown.
    token: Optional[str] = None
    token_file: Optional[str] = None
    #: TLS, with the system's authorities. $AMPD_TLS. Default false; any of the three files has the same effect.
    tls: Optional[bool] = None
    #: PEM files: the authorities of the server in place of the system's; a certificate to show, and its key. $AMPD_CA, $AMPD_CERT,
    #: $AMPD_KEY.
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None
    #: Show the token in plain text to another machine too, which is refused otherwise. $AMPD_INSECURE. Default false.
    insecure: Optional[bool] = None

    def resolved(self) -> Options:
        """With the environment and the defaults filled in."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("server", "ca", "cert", "key"):
            if given[name] is None:
                given[name] = os.environ.get(f"AMPD_{name.upper()}") or None
        for name in ("tls", "insecure"):
            if given[name] is None:
                given[name] = _is_true(f"AMPD_{name.upper()}")
        if self.token is None and self.token_file is None:
            given["token"] = os.environ.get("AMPD_TOKEN") or None
            given["token_file"] = None if given["token"] else os.environ.get("AMPD_TOKEN_FILE") or None
        given["server"] = given["server"] or DEFAULT_SERVER
        return Options(**given)

    @property
    def encrypted(self) -> bool:
        return bool(self.tls or self.ca or self.cert or self.key)


def open_channel(options: Options) -> Tuple[str, grpc.Channel]:
    """The address and its channel, which dials lazily. InvalidArgument for an address, a file or a token that cannot be used."""
    options = options.resolved()
    server = options.server or DEFAULT_SERVER
    _check_address(server)
    token = _find_token(options)
    channel = _dial(server, options)
    if not token:
        return server, channel
    if not (options.encrypted or options.insecure or _is_local(server)):
        raise InvalidArgument(f"the token would go to {server} in plain text: use tls or ca (or insecure)")
    return server, grpc.intercept_channel(channel, _WithToken(token))


def _is_true(variable: str) -> bool:
    value = os.environ.get(variable, "").lower()
    if value not in ("", "true", "on", "yes", "1", "false", "off", "no", "0"):
        raise InvalidArgument(f"{variable}: expected true or false, got {value!r}")
    return value in ("true", "on", "yes", "1")


def _is_local(address: str) -> bool:
    # What is sent there does not leave this machine.
    host = address.rpartition(":")[0]
    return address.startswith("unix:") or host in ("localhost", "[::1]") or bool(re.fullmatch(r"127(\.[0-9]+){3}", host, re.A))


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address.startswith("unix:") and len(address) > 5:
        return
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in address:
        raise InvalidArgument(f"server: expected HOST:PORT, got {address!r}")


def _read_file(what: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{what}: {path}: {error.strerror}") from error
    if not data or len(data) > _MAX_FILE_BYTES:
        raise InvalidArgument(f"{what}: {path} is {'too large' if data else 'empty'}")
    return data


def _read_pem(what: str, path: Optional[str]) -> Optional[bytes]:
    if not path:
        return None
    data = _read_file(what, path)
    if b"-----BEGIN " not in data:
        raise InvalidArgument(f"{what}: {path} is no PEM file")
    return data


def _find_token(options: Options) -> str:
    if options.token is not None and options.token_file is not None:
        raise InvalidArgument("token and token_file: give one of them")
    if options.token_file is not None:
        source, text = "token_file: " + options.token_file, _read_file("token_file", options.token_file).decode("latin-1")
    elif options.token is not None:
        source, text = "token", options.token
    else:
        return ""
    token = text.strip(" \t\r\n")
    if not re.fullmatch("[!-~]+", token) or len(token) > _MAX_TOKEN_BYTES:
        # Not what it is: it may be a secret after all.
        raise InvalidArgument(f"{source} holds no token")
    return token


def _dial(server: str, options: Options) -> grpc.Channel:
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
    if bool(options.cert) != bool(options.key):
        raise InvalidArgument("cert and key belong together")
    if not options.encrypted:
        return grpc.insecure_channel(server, settings)
    credentials = grpc.ssl_channel_credentials(_read_pem("ca", options.ca), _read_pem("key", options.key),
                                               _read_pem("cert", options.cert))
    return grpc.secure_channel(server, credentials, settings)


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
