"""Client of ampd, which trains neural networks in mixed precision.

    import ampd
    with ampd.connect() as client:
        job = client.submit("job.yaml").wait()
        weights = job.tensors()
"""

from ampd.checkpoints import Checkpoint
from ampd.client import Client, connect
from ampd.errors import (AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, FieldViolation, Internal,
                         InvalidArgument, JobFailed, NotFound, OutOfRange, PermissionDenied, ResourceExhausted, SubmitWarning,
                         Unauthenticated, Unavailable, Unimplemented)
from ampd.history import Curves, Evaluations, History
from ampd.job import Job, Sweep
from ampd.spec import read_spec

__version__ = "0.1.0"
__all__ = [
    "AlreadyExists", "Cancelled", "Checkpoint", "Client", "Curves", "DataLoss", "DeadlineExceeded", "Error", "Evaluations",
    "FailedPrecondition", "FieldViolation", "History", "Internal", "InvalidArgument", "Job", "JobFailed", "NotFound", "OutOfRange",
    "PermissionDenied", "ResourceExhausted", "SubmitWarning", "Sweep", "Unauthenticated", "Unavailable", "Unimplemented", "connect", "read_spec",
]
