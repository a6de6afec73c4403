"""The calls of a daemon. Names are those of the API and of ampctl."""

from __future__ import annotations

import secrets
import sys
import warnings
from typing import Any, Iterable, Iterator, List, Optional, Type, Union

from types import TracebackType

from ampd import uploads
from ampd.channel import Options
from ampd.connection import Connection
from ampd.errors import Error, InvalidArgument, SubmitWarning, make_request
from ampd.job import Job, Sweep
from ampd.spec import Sets, Spec, SpecLike, read_spec
from ampd.v1 import device_pb2, job_pb2, plan_pb2, training_service_pb2

_CALL_SECONDS = 30.0
_SUBMIT_SECONDS = 60.0
# Every job of a sweep is planned.
_SWEEP_SECONDS = 900.0


class Client:
    """A daemon's client; thread-safe. Closes with `with`, or close().

    Options that are not given come from the environment, by ampctl's variables (ampd.channel.Options says what they are); its
    contexts are not read. Every call raises ampd.Error.
    """

    def __init__(self, server: Optional[str] = None, *, token: Optional[str] = None, token_file: Optional[str] = None,
                 tls: Optional[bool] = None, ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None,
                 insecure: Optional[bool] = None) -> None:
        self.connection = Connection(Options(server, token, token_file, tls, ca, cert, key, insecure))

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ampd.Client {self.connection.server}>"

    def call(self, method: str, request: Any, timeout: float = _CALL_SECONDS, again: bool = False) -> Any:
        """One call by its name in the API, for those that have no method here; `again`: it may be repeated where that helps."""
        return (self.connection.call_again if again else self.connection.call)(method, request, timeout)

    # Jobs

    def submit(self, spec: SpecLike, set: Sets = (), *, resume_from: str = "", continue_from: str = "",
               request_id: str = "") -> Job:
        """Queues the job that a job file, a dict or a JobSpec describes; returns once it is durable.

        `set` changes fields as `ampctl submit --set` does: ["train.epochs=2"] or {"train.epochs": 2}, which also takes the place of
        the spec's train.steps, as it excludes that. Files of this machine that model.onnx.path and start_from.path name are sent
        first. `resume_from` starts from weights: a .safetensors file of this machine, JOB, JOB@CHECKPOINT or JOB@best;
        start_from.allow_missing stays as it is. `continue_from`, JOB, JOB@CHECKPOINT or JOB@best, goes on with that job's training
        instead, optimizer and steps and all: its steps count in train.epochs or train.steps. `request_id` makes a repeated submit
        one job; by default each submit has its own, so that only retries within it are one. InvalidArgument has `violations`, with
        the lines of the file. What is odd but no error (plan.warnings) is told as a SubmitWarning of Python's `warnings`.
        """
        read = self._prepare(spec, set, resume_from, continue_from)
        if read.message.HasField("sweep"):
            raise InvalidArgument("the spec has a sweep, which makes many jobs: submit_sweep() takes it")
        request = training_service_pb2.CreateJobRequest(spec=read.message, request_id=request_id or _new_request_id())
        job = self._explained(read, "CreateJob", request, _SUBMIT_SECONDS)
        _warn(read, job.plan.warnings, made=True)
        return Job(self, job)

    def validate(self, spec: SpecLike, set: Sets = ()) -> job_pb2.Job:
        """What submit would do, without a job: the resolved spec and its plan. Local files are sent all the same."""
        read = self._prepare(spec, set)
        request = training_service_pb2.CreateJobRequest(spec=read.message, validate_only=True)
        job = self._explained(read, "CreateJob", request, _SUBMIT_SECONDS)
        _warn(read, job.plan.warnings)
        return job

    def submit_sweep(self, spec: SpecLike, set: Sets = (), *, request_id: str = "") -> Sweep:
        """Queues every job of a spec with `sweep`, or none."""
        read = self._prepare(spec, set)
        request = training_service_pb2.CreateSweepRequest(spec=read.message, request_id=request_id or _new_request_id())
        sweep = self._explained(read, "CreateSweep", request, _SWEEP_SECONDS)
        _warn(read, sweep.warnings, made=True)
        return Sweep(self, sweep)

    def get(self, job_id: str) -> Job:
        """By its id or a unique prefix of at least 4 characters."""
        return Job(self, self.call("GetJob", make_request(training_service_pb2.GetJobRequest, job_id=job_id), again=True))

    def get_sweep(self, sweep_id: str) -> Sweep:
        return Sweep(self, self.call("GetSweep", make_request(training_service_pb2.GetSweepRequest, sweep_id=sweep_id), again=True))

    def sweeps(self, user: str = "", page_size: int = 200) -> Iterator[training_service_pb2.SweepSummary]:
        """Sweeps, newest first, page after page as they are asked for; get_sweep() gives the jobs of one."""
        request = make_request(training_service_pb2.ListSweepsRequest, page_size=page_size, user=user)
        while True:
            page = self.call("ListSweeps", request, again=True)
            yield from page.sweeps
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def list(self, states: Union[str, Iterable[str]] = (), filter: str = "", order_by: str = "",
             page_size: int = 200) -> Iterator[Job]:
        """Jobs, newest first, page after page as they are asked for. `states` such as "RUNNING", one or several; `filter`
        such as 'user = "ann"' and `order_by` as ListJobs has them."""
        request = make_request(training_service_pb2.ListJobsRequest, page_size=page_size, filter=filter, order_by=order_by)
        request.states.extend(_state(name) for name in ([states] if isinstance(states, str) else states))
        while True:
            page = self.call("ListJobs", request, again=True)
            for job in page.jobs:
                yield Job(self, job)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    # Files

    def upload_model(self, path: str) -> str:
        """Sends a model file, unless the server has it; returns what specs call it: "upload:<sha256>"."""
        return uploads.upload_model(self.connection, path)

    def upload_dataset(self, folder: str, name: str) -> training_service_pb2.Dataset:
        """Sends the files beneath `folder`, or a single file; specs name them "dataset:<name>/<path>". Goes on where a connection broke."""
        return uploads.upload_dataset(self.connection, folder, name)

    def datasets(self) -> List[training_service_pb2.Dataset]:
        return list(self.call("ListDatasets", training_service_pb2.ListDatasetsRequest(), again=True).datasets)

    def delete_dataset(self, name: str) -> None:
        self.call("DeleteDataset", make_request(training_service_pb2.DeleteDatasetRequest, name=name), 60)

    # The server

    def plan(self, request: plan_pb2.PlanJobRequest) -> plan_pb2.PlanReport:
        """What a job would take and bring on a kind of device; nothing is queued."""
        return self.call("PlanJob", request, _SUBMIT_SECONDS, again=True)

    def devices(self) -> List[device_pb2.Device]:
        return list(self.call("ListDevices", training_service_pb2.ListDevicesRequest(), again=True).devices)

    def drain_device(self, device_id: str, reason: str, stop_jobs: bool = False) -> device_pb2.Device:
        """No job starts on the device any more."""
        request = make_request(training_service_pb2.DrainDeviceRequest, device_id=device_id, reason=reason, stop_jobs=stop_jobs)
        return self.call("DrainDevice", request)

    def undrain_device(self, device_id: str) -> device_pb2.Device:
        return self.call("UndrainDevice", make_request(training_service_pb2.UndrainDeviceRequest, device_id=device_id))

    def drain_server(self, reason: str = "", timeout_seconds: Optional[int] = None) -> int:
        """As SIGTERM: running jobs checkpoint and are queued again, and the daemon exits. The number of jobs being stopped."""
        request = make_request(training_service_pb2.DrainServerRequest, reason=reason, timeout_seconds=timeout_seconds)
        return int(self.call("DrainServer", request).jobs)

    def server_info(self) -> training_service_pb2.ServerInfo:
        return self.call("GetServerInfo", training_service_pb2.GetServerInfoRequest(), again=True)

    def _prepare(self, spec: SpecLike, sets: Sets, resume_from: str = "", continue_from: str = "") -> Spec:
        read = read_spec(spec, sets)
        if resume_from and continue_from:
            raise InvalidArgument("resume_from starts from weights and continue_from goes on with a training: give one of them")
        if continue_from:
            read.message.start_from.CopyFrom(uploads.parse_training(continue_from))
            read.set_paths.append("start_from")
        if resume_from:
            source = uploads.parse_source(resume_from)
            # It is about the model, whatever the weights.
            source.allow_missing = read.message.start_from.allow_missing
            read.message.start_from.CopyFrom(source)
            # As it was given here, not by the file.
            read.set_paths.append("start_from")
        try:
            uploads.upload_local_files(self.connection, read)
        except Error as error:
            raise read.explain(error) from error
        return read

    def _explained(self, read: Spec, method: str, request: Any, timeout: float) -> Any:
        try:
            return self.connection.call_again(method, request, timeout)
        except Error as error:
            raise read.explain(error) from error


def connect(server: Optional[str] = None, *, token: Optional[str] = None, token_file: Optional[str] = None,
            tls: Optional[bool] = None, ca: Optional[str] = None, cert: Optional[str] = None, key: Optional[str] = None,
            insecure: Optional[bool] = None) -> Client:
    """A Client, once the server answered: an unreachable or refusing one shows here."""
    client = Client(server, token=token, token_file=token_file, tls=tls, ca=ca, cert=cert, key=key, insecure=insecure)
    try:
        # Once: one that is not there is told at once.
        client.call("GetServerInfo", training_service_pb2.GetServerInfoRequest())
    except BaseException:
        client.close()
        raise
    return client


def _warn(read: Spec, texts: Iterable[str], made: bool = False) -> None:
    for text in texts:
        try:
            # Of who called submit(), validate() or submit_sweep().
            warnings.warn(read.located(text), SubmitWarning, stacklevel=3)
        except SubmitWarning as warning:
            if not made:
                raise
            # Where warnings are errors: the job runs, and who raised here would lose it.
            print(f"ampd: {warning}", file=sys.stderr)


def _new_request_id() -> str:
    return f"python-{secrets.token_hex(16)}"


def _state(name: str) -> int:
    try:
        return int(job_pb2.Job.State.Value(name.upper()))
    except ValueError as error:
        names = ", ".join(value.name for value in job_pb2.Job.State.DESCRIPTOR.values if value.number)
        raise InvalidArgument(f"states: no such state {name!r} (one of {names})") from error
