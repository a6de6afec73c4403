"""Calls of a daemon whose errors are ampd.Error, repeated where that helps."""

from __future__ import annotations

import itertools
import time
from typing import Any, Callable, Iterator, Optional, TypeVar

import grpc

from ampd.channel import Options, open_channel
from ampd.errors import Error, Unavailable, from_rpc, is_transient
from ampd.v1 import training_service_pb2_grpc

_ATTEMPTS = 5
T = TypeVar("T")


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
        self.server, channel = open_channel(options)
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
