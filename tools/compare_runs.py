"""Whether two runs left the same artefacts, bit for bit, and if not how far their numbers are apart.

    python tools/compare_runs.py RUN_A RUN_B

One line for each artefact of either run. Exit status 1 unless all are equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import safetensors.numpy


def main(first: str, second: str) -> int:
    folders = [Path(folder, "artefacts") for folder in (first, second)]
    names = sorted({path.stem for folder in folders for path in folder.glob("*.safetensors")})
    if not names:
        print(f"{first} and {second} hold no artefacts, expected two run folders", file=sys.stderr)
        return 2
    words = {name: compare(*(folder / f"{name}.safetensors" for folder in folders)) for name in names}
    for name, word in words.items():
        print(f"{name:<24} {word}")
    equal = sum(word == "equal" for word in words.values())
    print(f"{equal} of {len(words)} artefacts are equal, bit for bit")
    return 0 if equal == len(words) else 1


def compare(first: Path, second: Path) -> str:
    """Two artefacts in words."""
    for path in (first, second):
        if not path.is_file():
            return f"not in {path.parent.parent}"
    if first.read_bytes() == second.read_bytes():
        return "equal"
    a, b = (safetensors.numpy.load_file(path) for path in (first, second))
    if {name: (x.shape, x.dtype) for name, x in a.items()} != {name: (x.shape, x.dtype) for name, x in b.items()}:
        return "other arrays or shapes"
    apart = {name: difference(a[name], b[name]) for name in a}
    if not any(apart.values()):
        return "equal"  # the header of the file may say the same in another order
    worst = max(apart, key=lambda name: apart[name])
    return f"different in {sum(map(bool, apart.values()))} of {len(a)} arrays, most in {worst}: {apart[worst]:.3g}"


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two arrays' numbers; 0 where all of their bits are the same."""
    if a.tobytes() == b.tobytes():
        return 0.0
    return float(np.max(np.abs(np.nan_to_num(a.astype(np.float64)) - np.nan_to_num(b.astype(np.float64))))) or np.inf


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python tools/compare_runs.py RUN_A RUN_B")
    sys.exit(main(*sys.argv[1:]))
