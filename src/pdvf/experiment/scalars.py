"""Curves for TensorBoard."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pdvf.experiment.files import writing


class Scalars:
    """Writes events below a folder; nothing is opened before the first scalar.

    This uses the record writer beneath tensorboardX's SummaryWriter, without the queue and thread between:
    what was written is on the disk, and a full disk is an error here and now. (That thread dies of it, and
    `add_scalar` hangs.)
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        self._folder = folder
        self._purge_step = purge_step
        self._records: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds one point to every curve; points that are not finite are left out."""
        finite = {name: float(value) for name, value in scalars.items() if math.isfinite(value)}
        if not finite:
            return
        values = [{"tag": name, "simple_value": value} for name, value in finite.items()]
        with writing(self._folder):
            if self._records is None:
                self._records = self._open()
            _write(self._records, step=step, summary={"value": values})
            self._records.flush()

    def close(self) -> None:
        """Closes the file, if one was opened. Every write was flushed, so there is nothing left to lose."""
        records, self._records = self._records, None
        if records is not None:
            with contextlib.suppress(OSError):
                records.close()

    def __enter__(self) -> Scalars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Any:
        from tensorboardX.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.6f}.{os.getpid()}"
        records = RecordWriter(str(self._folder / name))
        _write(records, file_version="brain.Event:2")
        if self._purge_step is not None:
            _write(records, step=self._purge_step, session_log={"status": "START"})
        return records


def _write(records: Any, **fields: Any) -> None:
    protocol = importlib.import_module("tensorboardX.proto.event_pb2")
    records.write(protocol.Event(wall_time=time.time(), **fields).SerializeToString())
