"""Handles of jobs and sweeps: what the server told last, and what can be done with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional

from google.protobuf import json_format

from ampd.checkpoints import MODEL, Checkpoint, fetch_bytes, fetch_to
from ampd.errors import Error, InvalidArgument, JobFailed, make_request
from ampd.events import TERMINAL, Follower, read_events
from ampd.history import History
from ampd.safetensors import parse
from ampd.v1 import event_pb2, job_pb2, training_service_pb2

if TYPE_CHECKING:
    import numpy.typing as npt

    from ampd.client import Client

_FORMS = {"safetensors": training_service_pb2.ExportModelRequest.SAFETENSORS, "onnx": training_service_pb2.ExportModelRequest.ONNX}
_DTYPES = {"fp32": training_service_pb2.ExportModelRequest.FLOAT32, "fp16": training_service_pb2.ExportModelRequest.FLOAT16,
           "bf16": training_service_pb2.ExportModelRequest.BFLOAT16}


class Job:
    """One job of a server. `proto` is ampd.v1.Job as it was told last; the calls below change the job and bring it up to date."""

    def __init__(self, client: Client, proto: job_pb2.Job) -> None:
        self._client = client
        self.proto = proto

    @property
    def id(self) -> str:
        return str(self.proto.id)

    @property
    def name(self) -> str:
        return str(self.proto.spec.name)

    @property
    def state(self) -> str:
        """As it was told last, such as "RUNNING"."""
        return str(job_pb2.Job.State.Name(self.proto.state))

    @property
    def ended(self) -> bool:
        return self.proto.state in TERMINAL

    @property
    def title(self) -> str:
        return f"{self.name} ({self.id}): {self.state}"

    @property
    def spec(self) -> Dict[str, Any]:
        """The resolved spec as a dict that can be submitted again."""
        return dict(json_format.MessageToDict(self.proto.spec, preserving_proto_field_name=True))

    def __repr__(self) -> str:
        return f"<ampd.Job {self.id} {self.name!r} {self.state}>"

    def refresh(self) -> Job:
        return self._take(self._client.call("GetJob", training_service_pb2.GetJobRequest(job_id=self.id), again=True))

    def cancel(self, now: bool = False) -> Job:
        """Asks the job to stop; a running one writes a checkpoint first. With `now` its worker is killed, also where a checkpoint is
        being waited for: what it did since the last one is lost."""
        request = training_service_pb2.CancelJobRequest(job_id=self.id, now=now)
        return self._take(self._client.call("CancelJob", request, again=True))

    def pause(self) -> Job:
        return self._take(self._client.call("PauseJob", training_service_pb2.PauseJobRequest(job_id=self.id)))

    def resume(self) -> Job:
        return self._take(self._client.call("ResumeJob", training_service_pb2.ResumeJobRequest(job_id=self.id)))

    def retry(self) -> Job:
        """Queues a FAILED or CANCELLED job again, to go on from its newest checkpoint."""
        return self._take(self._client.call("RetryJob", training_service_pb2.RetryJobRequest(job_id=self.id), timeout=60))

    def update(self, priority: Optional[int] = None, set_labels: Optional[Mapping[str, str]] = None,
               remove_labels: Optional[List[str]] = None) -> Job:
        request = make_request(training_service_pb2.UpdateJobRequest, job_id=self.id, priority=priority,
                               set_labels=dict(set_labels or {}), remove_labels=remove_labels or [])
        return self._take(self._client.call("UpdateJob", request))

    # What happens

    def events(self, after_sequence: int = 0, timeout: Optional[float] = None, follow: bool = True, give_up_after: float = 600.0,
               on_lost: Optional[Callable[[Error], None]] = None) -> Iterator[event_pb2.JobEvent]:
        """The events after `after_sequence`, each once and in order, up to the terminal one; a lost connection is made again.

        With follow=False those so far. Raises DeadlineExceeded after `timeout` seconds, Unavailable when a server that was lost
        stays away for `give_up_after` seconds. `on_lost` is called with the cause once for each loss.
        """
        connection = self._client.connection
        if not follow:
            return read_events(connection, self.id, after_sequence, self.refresh().proto.last_sequence, timeout)
        return iter(Follower(connection, self.id, after_sequence, timeout, give_up_after, on_lost))

    def wait(self, timeout: Optional[float] = None, check: bool = True) -> Job:
        """Waits for the end. With `check` a job that does not succeed raises JobFailed. DeadlineExceeded after `timeout` seconds."""
        self.refresh()
        if not self.ended:
            # A quiet job's stream has nothing that would tell that the server is there.
            for _ in Follower(self._client.connection, self.id, self.proto.last_sequence, timeout, reached=True):
                pass
            self.refresh()
        if check and self.proto.state != job_pb2.Job.SUCCEEDED:
            failure = self.proto.failure
            kind = job_pb2.Failure.Class.Name(getattr(failure, "class"))
            why = f": {kind}: {failure.message}" if failure.message else ""
            raise JobFailed(f"job {self.id} ({self.name}) ended as {self.state}{why}", self)
        return self

    def history(self) -> History:
        """The figures so far."""
        return History(self.events(follow=False))

    def plot(self, every_seconds: float = 1.0, timeout: Optional[float] = None) -> History:
        """Draws the curves in a notebook while the job trains (ampd.plot.live)."""
        from ampd import plot

        return plot.live(self, every_seconds, timeout)

    # What it made

    def save_checkpoint(self, timeout: float = 600.0) -> training_service_pb2.Checkpoint:
        """Asks a running job for a checkpoint, and waits until it is durable."""
        return self._client.call("CheckpointJob", training_service_pb2.CheckpointJobRequest(job_id=self.id), timeout=timeout)

    def profile(self, steps: int = 20, kernels: bool = False, timeout: float = 600.0) -> event_pb2.StepProfile:
        """Has a running job time the parts of its next steps, and waits for the profile.

        With `kernels` also each kernel of a GPU, by NVIDIA's CUPTI, which stays attached to the job's process and may slow its later steps.
        """
        request = make_request(training_service_pb2.ProfileJobRequest, job_id=self.id, steps=steps, kernels=kernels)
        return self._client.call("ProfileJob", request, timeout=timeout)

    def checkpoints(self) -> List[training_service_pb2.Checkpoint]:
        """Those that are there, newest first; the one that `checkpoint.keep_best` keeps has `best` and its `best_metric`."""
        request = training_service_pb2.ListCheckpointsRequest(job_id=self.id)
        return list(self._client.call("ListCheckpoints", request, again=True).checkpoints)

    def checkpoint(self, name: str = "") -> Checkpoint:
        """The named checkpoint, or the newest: its files, to be read or downloaded. NotFound when there is none."""
        return Checkpoint(self._client.connection, self.id, name)

    def tensors(self, checkpoint: str = "", file: str = MODEL) -> Dict[str, npt.NDArray[Any]]:
        """The weights of a checkpoint by PyTorch's names, or what else is in a .safetensors file of it. Read-only arrays."""
        return parse(self.checkpoint(checkpoint).read(file), file)

    def download(self, path: str, checkpoint: str = "") -> None:
        """A whole checkpoint into the new folder `path`, as `ampctl download` does."""
        self.checkpoint(checkpoint).download(path)

    def export(self, path: str, form: str = "", dtype: str = "fp32", ema: bool = False, checkpoint: str = "",
               network: str = "") -> None:
        """The model alone as one new file: form "safetensors" or "onnx", weights as "fp32", "fp16" or "bf16". The default form is
        the one that `path` ends with, else "safetensors".

        Of a model of several networks `network` alone; as ONNX, which needs it, with what it reads of others ("PHASE.CALL": as that call
        of a phase)."""
        form = form or ("onnx" if os.fspath(path).lower().endswith(".onnx") else "safetensors")
        if form not in _FORMS or dtype not in _DTYPES:
            raise InvalidArgument(f"export: form is one of {', '.join(_FORMS)}, dtype one of {', '.join(_DTYPES)}; "
                                  f"got {form!r} and {dtype!r}")
        request = make_request(training_service_pb2.ExportModelRequest, job_id=self.id, checkpoint=checkpoint, form=_FORMS[form],
                               dtype=_DTYPES[dtype], ema=ema, network=network)
        fetch_to(self._client.connection, "ExportModel", request, path)

    def artifacts(self) -> List[event_pb2.ArtifactSaved]:
        """Files that the job made to look at, in the order of their steps; the newest of each name."""
        newest: Dict[str, event_pb2.ArtifactSaved] = {}
        for event in self.events(follow=False):
            if event.WhichOneof("payload") == "artifact":
                newest.pop(event.artifact.name, None)
                newest[event.artifact.name] = event.artifact
        return list(newest.values())

    def artifact(self, name: str) -> bytes:
        request = make_request(training_service_pb2.DownloadArtifactRequest, job_id=self.id, name=name)
        return fetch_bytes(self._client.connection, "DownloadArtifact", request, name)

    def _take(self, proto: job_pb2.Job) -> Job:
        self.proto = proto
        return self


class Sweep:
    """Many jobs of one spec. `proto` is ampd.v1.JobSweep as it was told last."""

    def __init__(self, client: Client, proto: training_service_pb2.JobSweep) -> None:
        self._client = client
        self.proto = proto

    @property
    def id(self) -> str:
        return str(self.proto.id)

    @property
    def jobs(self) -> List[Job]:
        """By index, without their specs; refresh() of one brings all of it."""
        return [Job(self._client, job) for job in self.proto.jobs]

    def refresh(self) -> Sweep:
        self.proto = self._client.call("GetSweep", training_service_pb2.GetSweepRequest(sweep_id=self.id), again=True)
        return self

    def cancel(self, now: bool = False) -> Sweep:
        """Cancels every job of it that has not ended, as Job.cancel does."""
        request = training_service_pb2.CancelSweepRequest(sweep_id=self.id, now=now)
        self.proto = self._client.call("CancelSweep", request, timeout=60)
        return self

    def __repr__(self) -> str:
        return f"<ampd.Sweep {self.id} of {self.proto.count}>"
