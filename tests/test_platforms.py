"""What Linux alone has is asked for where it is used, never where a module is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pdvf
from pdvf.core.processes import cores, require_posix
from pdvf.core.validation import ConfigError

ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import importlib, os, pkgutil, signal, socket, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for module, names in (
    (os, ("sched_getaffinity", "memfd_create", "pread", "pwrite", "killpg", "getpgrp", "fork", "O_NOFOLLOW")),
    (signal, ("SIGKILL", "SIGALRM", "setitimer")),
    (socket, ("MSG_DONTWAIT", "SO_SNDTIMEO")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import pdvf
for found in pkgutil.walk_packages(pdvf.__path__, "pdvf."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] not in sys.argv[1:]:
            raise
from pdvf.core.processes import cores
print(cores())
"""


def test_every_module_is_imported_where_there_is_no_fcntl_and_no_affinity():
    optional = ("viser", "ray", "onnx", "onnxruntime", "optuna", "wandb")
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL, *optional], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{os.cpu_count()}\n"


def test_cores_are_those_that_the_process_may_use():
    assert cores() == len(os.sched_getaffinity(0))


def test_windows_is_told_what_to_use(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        try:
            require_posix("a GymFamily is simulated")
        except ConfigError as error:
            said = str(error)
    assert said.startswith("a GymFamily is simulated on Windows, expected Linux or macOS: use WSL")


def test_the_package_says_what_it_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == pdvf.__version__ == "0.2.0"
    assert {"mujoco", "warp", "export", "sweep", "wandb", "all"} <= project["optional-dependencies"].keys()
    assert "Typing :: Typed" in project["classifiers"]
    assert (ROOT / "src/pdvf/py.typed").is_file()
