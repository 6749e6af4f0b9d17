"""Curves for TensorBoard and Weights & Biases: listeners (`events`) that write a point for every stage."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
from pathlib import Path
from typing import Any

from pdvf.core.validation import ConfigError
from pdvf.experiment.events import Event
from pdvf.experiment.files import writing


class TensorBoard:
    """A listener that writes a point for each stage below RUN/tensorboard/TASK; nothing is opened before the first.

    This uses the record writer beneath tensorboardX's SummaryWriter, without the queue and thread between:
    what was written is on the disk, and a full disk is an error here and now. (That thread dies of it, and
    `add_scalar` hangs.)
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._records: Any = None
        self._purge_step = 0

    def __call__(self, event: Event) -> None:
        """Adds one point to every curve; points that are not finite are left out."""
        if event.kind != "stage":
            self.close()
            self._purge_step = event.stage + 1  # TensorBoard hides points from there on that were written before
            return
        finite = _finite(event)
        if finite:
            folder = self._run / "tensorboard" / event.task
            values = [{"tag": name, "simple_value": value} for name, value in finite.items()]
            with writing(folder):
                self._records = self._records or self._open(folder)
                _write(self._records, step=event.stage, summary={"value": values})
                self._records.flush()

    def close(self) -> None:
        """Closes the file, if one was opened. Every write was flushed, so there is nothing left to lose."""
        records, self._records = self._records, None
        if records is not None:
            with contextlib.suppress(OSError):
                records.close()

    def _open(self, folder: Path) -> Any:
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.6f}.{os.getpid()}"
        records = RecordWriter(str(folder / name))
        _write(records, file_version="brain.Event:2")
        _write(records, step=self._purge_step, session_log={"status": "START"})
        return records


class WandB(contextlib.AbstractContextManager["WandB"]):
    """A listener that logs every stage to one run of Weights & Biases (`pip install 'pdvf[wandb]'`).

        with pdvf.callbacks.WandB(project="winds", mode="offline") as curves:
            pdvf.train("spaceship", out="runs/a", on_stage=[curves])

    Curves are named TASK/METRIC, over the stages of their task. The run begins with the first stage; the end of the
    `with` block, or of the program, finishes it.

    Args:
        settings: of `wandb.init`, such as `project`, `mode` and `dir`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings, self._run, self._tasks = settings, None, set[str]()
        _wandb()  # or say now that it is not installed

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Logs the metrics of a stage; those that are not finite are left out."""
        finite = _finite(event) if event.kind == "stage" else {}
        if finite:
            self._run = self._run or _wandb().init(**({"project": "pdvf", "name": event.run} | self._settings))
            stage = f"{event.task}/stage"
            if event.task not in self._tasks:
                self._tasks.add(event.task)
                self._run.define_metric(f"{event.task}/*", step_metric=stage)
            self._run.log({f"{event.task}/{name}": value for name, value in finite.items()} | {stage: event.stage})

    def close(self) -> None:
        """Finishes the run, if one has begun."""
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise ConfigError("WandB needs the package wandb: pip install 'pdvf[wandb]'") from error


def _finite(event: Event) -> dict[str, float]:
    return {name: value for name, value in event.metrics.items() if value is not None and math.isfinite(value)}


def _write(records: Any, **fields: Any) -> None:
    protocol = importlib.import_module("tensorboardX.proto.event_pb2")
    records.write(protocol.Event(wall_time=time.time(), **fields).SerializeToString())
