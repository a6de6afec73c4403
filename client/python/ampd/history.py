"""A job's figures over its steps, as arrays."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any, Dict, Iterable, List

import numpy as np
import numpy.typing as npt

from ampd.v1 import event_pb2

Array = npt.NDArray[np.float64]
_FIGURES = ("loss", "loss_scale", "learning_rate", "gradient_norm")


@dataclasses.dataclass(frozen=True)
class Curves:
    """Of one phase; arrays of equal length, one element a report. A report covers several steps where they come fast."""

    #: Last attempted step of each report, rising.
    step: Array
    #: Mean over the report's steps; NaN where no loss was finite.
    loss: Array
    loss_scale: Array
    learning_rate: Array
    #: Before clipping; NaN where no step was applied.
    gradient_norm: Array
    #: Samples a second, input wait included.
    samples_per_second: Array


@dataclasses.dataclass(frozen=True)
class Evaluations:
    #: Attempted steps before each evaluation, rising.
    step: Array
    #: By name, such as "loss" and "accuracy"; NaN where one evaluation has no such figure.
    metrics: Dict[str, Array]


class History:
    """What the events tell, in the order they come. Training that goes back to a checkpoint drops the steps that are repeated.
    Not thread-safe."""

    def __init__(self, events: Iterable[event_pb2.JobEvent] = ()) -> None:
        self._steps: Dict[str, List[int]] = {}
        self._rows: Dict[str, List[List[float]]] = {}
        self._evaluations: List[Any] = []
        #: Attempted steps that made no update, with their stage and tensor (OverflowSkip).
        self.skips: List[Any] = []
        #: Sequence of the newest event: where to go on.
        self.last_sequence = 0
        for event in events:
            self.add(event)

    def add(self, event: event_pb2.JobEvent) -> None:
        self.last_sequence = event.sequence
        kind = event.WhichOneof("payload")
        if kind == "step":
            self._add_report(event.step)
        elif kind == "evaluation":
            self._evaluations.append(event.evaluation)
        elif kind == "overflow_skip":
            self.skips.append(event.overflow_skip)
        elif kind == "rewound":
            self._rewind(event.rewound.to_step)

    @property
    def phases(self) -> List[str]:
        return list(self._steps)

    def curves(self, phase: str = "") -> Curves:
        """Of the phase, by default the first; empty arrays before its first report. KeyError for a phase that has none."""
        if not self._steps and not phase:
            return Curves(*(np.empty(0) for _ in range(len(_FIGURES) + 2)))
        name = phase or self.phases[0]
        rows = np.asarray(self._rows[name], float).reshape(-1, len(_FIGURES) + 1)
        return Curves(np.asarray(self._steps[name], float), *(rows[:, column] for column in range(rows.shape[1])))

    def evaluations(self) -> Evaluations:
        names = sorted({name for one in self._evaluations for name in one.metrics})
        steps = np.asarray([one.step for one in self._evaluations], float)
        figures = {name: np.asarray([one.metrics[name] if name in one.metrics else np.nan
                                     for one in self._evaluations], float) for name in names}
        return Evaluations(steps, figures)

    def _add_report(self, report: Any) -> None:
        for phase in report.phases:
            self._steps.setdefault(phase.name, []).append(report.last_step)
            row = [getattr(phase, figure) for figure in _FIGURES]
            self._rows.setdefault(phase.name, []).append(row + [report.samples_per_second])

    def _rewind(self, to_step: int) -> None:
        for name, steps in self._steps.items():
            kept = bisect.bisect_right(steps, to_step)
            del steps[kept:], self._rows[name][kept:]
        self._evaluations = [one for one in self._evaluations if one.step <= to_step]
        self.skips = [one for one in self.skips if one.step <= to_step]
