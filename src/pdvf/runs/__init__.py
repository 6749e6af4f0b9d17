"""The run store: artefacts with manifests and checksums, phases that can be stopped and go on, progress.

Besides the command line, the only place that knows files.
"""

from pdvf.runs.errors import RunError
from pdvf.runs.progress import Live, Plain, Progress, Quiet, make_progress
from pdvf.runs.pytrees import from_arrays, require_axes, to_arrays
from pdvf.runs.scalars import Scalars
from pdvf.runs.stages import Staged, finished, run_phase
from pdvf.runs.store import RunStore

__all__ = [
    "Live",
    "Plain",
    "Progress",
    "Quiet",
    "RunError",
    "RunStore",
    "Scalars",
    "Staged",
    "finished",
    "from_arrays",
    "make_progress",
    "require_axes",
    "run_phase",
    "to_arrays",
]
