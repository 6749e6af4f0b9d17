"""What the manifest of an artefact says. A run may come from a stranger, so every field is checked when it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pdvf.experiment.errors import RunError
from pdvf.experiment.files import read_json, require_fields

ANEW = "delete it and run the same command again to make it anew"
MANIFEST = {
    "bytes": (int,),
    "sha256": (str,),
    "inputs": (dict,),
    "info": (dict,),
    "versions": (dict,),
    "device": (dict,),
    "name": (str,),
    "config": (str,),
}
DEVICE = {"platform": (str,), "kind": (str,), "count": (int,)}
INFO = {"seconds": (int, float, type(None)), "history": (list, type(None))}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What artefacts and phases may be called: nothing that leaves their folder."""


def checked_name(name: str) -> str:
    """The name of an artefact, a phase or a task; raises where it could leave the folder."""
    if not NAME.fullmatch(name):
        raise RunError(f"the name {name!r} cannot be used: give one of letters, digits, '-' and '_'")
    return name


def read_manifest(path: Path, name: str) -> dict[str, Any]:
    """The manifest of the artefact with this name, all of whose fields have their types."""
    manifest = read_json(path, ANEW)
    require_fields(manifest, MANIFEST, path, ANEW)
    packages = dict.fromkeys(manifest["versions"], (str, type(None)))
    inputs = dict.fromkeys(manifest["inputs"], (str,))
    for part, fields in {"device": DEVICE, "info": INFO, "versions": packages, "inputs": inputs}.items():
        require_fields(manifest[part], fields, path, ANEW)
    for given in manifest["inputs"]:
        if not NAME.fullmatch(given):
            raise RunError(f"{path} names the input {given!r}, expected the name of an artefact: {ANEW}")
    if manifest["name"] != name:
        raise RunError(f"{path} is the manifest of {manifest['name']!r}, expected {name!r}: {ANEW}")
    return manifest
