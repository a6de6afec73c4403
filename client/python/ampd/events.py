"""Following one job's events over as many connections as it takes."""

from __future__ import annotations

import time
from typing import Callable, Iterator, Optional

from ampd.connection import Backoff, Connection
from ampd.errors import DataLoss, DeadlineExceeded, Error, Unavailable, is_transient, make_request
from ampd.v1 import event_pb2, job_pb2, training_service_pb2

TERMINAL = frozenset({job_pb2.Job.SUCCEEDED, job_pb2.Job.FAILED, job_pb2.Job.CANCELLED})
_LOOK_SECONDS = 30.0
# What lasted so long was a connection, though no event came: dialling takes 10 s an address at most.
_LONGEST_DIAL_SECONDS = 30.0


class Follower:
    """Iterates the events after `after_sequence`, each once and in order, up to the terminal one.

    A lost connection is tried again for `give_up_after` seconds, counted anew after every event and after a connection without
    one; the first one is tried once, unless `reached` says that the server has just answered.
    `last_sequence` is where to go on later. Raises Unavailable when the server stays away, DataLoss when it left events out,
    DeadlineExceeded `timeout` seconds after the start (None: never), and what the server refuses.
    """

    def __init__(self, connection: Connection, job_id: str, after_sequence: int = 0, timeout: Optional[float] = None,
                 give_up_after: float = 600.0, on_lost: Optional[Callable[[Error], None]] = None, reached: bool = False) -> None:
        self._connection = connection
        self._job_id = job_id
        self.last_sequence = after_sequence
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._give_up_after = give_up_after
        self._on_lost = on_lost
        self._backoff = Backoff()
        self._lost_since: Optional[float] = None
        self._ever_connected = reached
        self._called = 0.0
        self._ended = False

    def __iter__(self) -> Iterator[event_pb2.JobEvent]:
        while True:
            lost: Optional[Error] = None
            self._called = time.monotonic()
            try:
                yield from self._stream_once()
                self._ever_connected = True
            except Error as error:
                lost = error
            self._note_length(lost)
            if lost is None and not self._ended:
                self._look_whether_ended()
            if self._ended:
                return
            self._raise_unless_worth_another(lost)
            self._wait(lost)

    def _left(self) -> Optional[float]:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _stream_once(self) -> Iterator[event_pb2.JobEvent]:
        request = make_request(training_service_pb2.WatchJobRequest, job_id=self._job_id, after_sequence=self.last_sequence)
        for event in self._connection.stream("WatchJob", request, self._left()):
            self._ever_connected = True
            if event.sequence <= self.last_sequence:
                continue
            if event.first_sequence > self.last_sequence + 1:
                raise DataLoss(f"the server left out the events {self.last_sequence + 1} to {event.first_sequence - 1}")
            self.last_sequence = event.sequence
            self._lost_since = None
            self._backoff.reset()
            # A job that had ended may have been retried: what counts is the last event.
            self._ended = event.WhichOneof("payload") == "state_change" and event.state_change.to in TERMINAL
            yield event

    def _note_length(self, lost: Optional[Error]) -> None:
        # Who is turned away for long is not connected.
        if time.monotonic() - self._called < _LONGEST_DIAL_SECONDS or (lost is not None and lost.retry_after is not None):
            return
        self._ever_connected = True
        self._lost_since = None
        self._backoff.reset()

    def _look_whether_ended(self) -> None:
        # A stream is empty when the terminal event is one of those already seen.
        try:
            job = self._connection.call("GetJob", training_service_pb2.GetJobRequest(job_id=self._job_id), _LOOK_SECONDS)
        except Error:
            return
        self._ended = job.state in TERMINAL and job.last_sequence <= self.last_sequence

    def _raise_unless_worth_another(self, lost: Optional[Error]) -> None:
        if self._left() == 0:
            raise DeadlineExceeded(f"job {self._job_id} has not ended within the time")
        if lost is not None and not is_transient(lost):
            raise lost
        # A stream that ends well before the terminal event is a server that stops in good order.
        if not self._ever_connected:
            raise lost or Unavailable("the server ended the stream")

    def _wait(self, lost: Optional[Error]) -> None:
        cause = lost or Unavailable("the server ended the stream")
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            if self._on_lost is not None:
                self._on_lost(cause)
        if now - self._lost_since >= self._give_up_after:
            raise Unavailable(f"gave up after {self._give_up_after:.0f} s: {cause.message}") from cause
        left = self._left()
        delay = self._backoff.next()
        time.sleep(delay if left is None else min(delay, left))


def read_events(connection: Connection, job_id: str, after_sequence: int, last_sequence: int,
                timeout: Optional[float] = None) -> Iterator[event_pb2.JobEvent]:
    """The events up to `last_sequence`, which must have happened already: a running job is not waited for."""
    if last_sequence <= after_sequence:
        return
    for event in Follower(connection, job_id, after_sequence, timeout):
        yield event
        if event.sequence >= last_sequence:
            return
