"""A job's curves while it trains, in a notebook or a file. matplotlib is needed here and nowhere else."""

from __future__ import annotations

import importlib
import io
import time
from typing import TYPE_CHECKING, Any, Optional

from ampd.history import History

if TYPE_CHECKING:
    from ampd.job import Job

#: Points drawn of a curve; of more, every n-th.
MAX_POINTS = 5000


def draw(history: History, title: str = "", figure: Any = None) -> Any:
    """A matplotlib figure of loss, evaluation, loss scale with skipped steps, and throughput. `figure` is drawn anew."""
    if figure is None:
        figure = _need("matplotlib.figure").Figure(figsize=(9, 6), layout="constrained")
    figure.clear()
    loss, scale, speed = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2, 1]})
    for phase in history.phases:
        curves = history.curves(phase)
        every = slice(None, None, max(len(curves.step) // MAX_POINTS, 1))
        label = "training" if len(history.phases) == 1 else phase
        loss.plot(curves.step[every], curves.loss[every], linewidth=1, label=label)
        scale.plot(curves.step[every], curves.loss_scale[every], linewidth=1, drawstyle="steps-post", label=label)
        if phase == history.phases[0]:
            speed.plot(curves.step[every], curves.samples_per_second[every], linewidth=1)
    _draw_evaluations(history, loss)
    skipped = [skip.step for skip in history.skips]
    scale.plot(skipped, [skip.scale_before for skip in history.skips], "x", color="tab:red", label=f"{len(skipped)} skipped")
    scale.set_yscale("log", base=2)
    for axes, name in ((loss, "loss"), (scale, "loss scale"), (speed, "samples/s")):
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if history.phases and axes is not speed:
            # Above the curves, where it hides none.
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, borderaxespad=0.1)
    speed.set_xlabel("step")
    loss.set_title(title, loc="left", fontsize="medium")
    return figure


def live(job: Job, every_seconds: float = 1.0, timeout: Optional[float] = None) -> History:
    """Draws in the notebook's output until the job ends, at most once in `every_seconds`; returns what was drawn.

    Interrupt the cell to stop looking: the job trains on. Raises ampd.Error as job.events() does; ImportError, with what to
    install, where matplotlib or IPython is missing.
    """
    display = _need("IPython.display")
    history = History()
    figure = draw(history, job.title)

    def picture() -> Any:
        # As a picture and not as a figure: it looks the same whatever backend the notebook has chosen.
        data = io.BytesIO()
        draw(history, job.title, figure).savefig(data, format="png", dpi=110)
        return display.Image(data.getvalue())

    handle = display.display(picture(), display_id=True)
    drawn = time.monotonic()
    try:
        for event in job.events(timeout=timeout):
            history.add(event)
            if time.monotonic() - drawn >= every_seconds:
                handle.update(picture())
                drawn = time.monotonic()
    except KeyboardInterrupt:
        pass
    job.refresh()
    handle.update(picture())
    return history


def _draw_evaluations(history: History, axes: Any) -> None:
    evaluations = history.evaluations()
    if len(evaluations.step) and "loss" in evaluations.metrics:
        axes.plot(evaluations.step, evaluations.metrics["loss"], "o-", markersize=4, label="evaluation")
    accuracy = evaluations.metrics.get("accuracy")
    if accuracy is not None:
        right = axes.twinx()
        right.plot(evaluations.step, accuracy, "s--", markersize=4, color="tab:green")
        right.set_ylabel("accuracy", color="tab:green")
        right.set_ylim(0, 1.02)


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"plots need {package}: apt-get install python3-{package.lower()}, or pip install {package.lower()}",
                          name=package) from error
