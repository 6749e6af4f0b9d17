"""As a user has it: the built wheel in an environment of its own, and a family in a package of its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAMILY = """
import gymnasium
import numpy as np
from pdvf.families import GymFamily


class Push(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, context):
        self.force = context["force"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2) * 0.1
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.state = self.state + 0.1 * np.array([self.state[1], action[0] + self.force])
        return self.state.astype(np.float32), -float(abs(self.state[0])), False, False, {}


def make():
    train = [{"force": f} for f in (-1.0, 0.5, 1.0)]
    return GymFamily("push", Push, train, [{"force": 0.0}], horizon=20, probe_steps=2)
"""
PACKAGE = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "push-family"
version = "1"

[project.entry-points."pdvf.families"]
push = "push_family:make"
"""
ACT = """
import sys
import numpy as np
from pdvf.deploy.runtime import Adapter
adapter = Adapter.load("push.pdvf", family="push", observation=2, action=1)
adapter.reset(np.zeros(2))
for t in range(5):
    action = adapter.act(np.array([0.01 * t, 0.1]))
assert action.shape == (1,) and abs(action[0]) <= 1
assert adapter.z_d is not None and np.isfinite(adapter.out_of_distribution)
assert "jax" not in sys.modules
"""


ALONE = """
import sys
import numpy as np
import pdvf
adapter = pdvf.Adapter.load("model.pdvf")
adapter.reset(np.zeros(adapter.observation_size))
for t in range(10):
    action = adapter.act(np.full(adapter.observation_size, 0.01 * t))
assert (action >= adapter.bounds[0]).all() and (action <= adapter.bounds[1]).all()
assert adapter.inferred and adapter.card()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "scipy", "gymnasium", "mujoco"}))
"""


@pytest.mark.slow
def test_numpy_and_safetensors_are_all_that_a_robot_needs(tmp_path):
    """The lines of docs/take_away.md, in an environment that has nothing else."""

    def run(*words: str | Path) -> str:
        done = subprocess.run([str(w) for w in words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("pdvf-*.whl")
    assert wheel.name == "pdvf-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        for name in ("ant-wind.pdvf", "spaceship.pdvf"):
            (tmp_path / name).write_bytes(packed.read(f"pdvf/deploy/models/{name}"))
    assert "pdvf/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {"pdvf", "pdvf-0.2.0.dist-info"}  # no results, no tests
    run(sys.executable, "-m", "venv", "clean")
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, "numpy", "safetensors")
    for name in ("ant-wind.pdvf", "spaceship.pdvf"):
        (tmp_path / name).replace(tmp_path / "model.pdvf")
        assert run(python, "-c", ALONE) == "[]\n"


@pytest.mark.slow
def test_a_wheel_and_a_family_of_another_package_run_and_export(tmp_path):
    def run(*words: str | Path) -> str:
        done = subprocess.run([str(w) for w in words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    run(sys.executable, "-m", "venv", "clean")
    package = tmp_path / "package"
    (package / "push_family").mkdir(parents=True)
    (package / "push_family" / "__init__.py").write_text(FAMILY)
    (package / "pyproject.toml").write_text(PACKAGE)
    bin_ = tmp_path / "clean" / "bin"
    run(bin_ / "pip", "install", "--quiet", *tmp_path.glob("pdvf-*.whl"), package)
    assert "fit for training" in run(bin_ / "pdvf", "check-family", "push")
    run(bin_ / "pdvf", "run", "push", "--preset", "smoke", "--out", "out", "--quiet")
    assert (tmp_path / "out" / "report.html").is_file()
    run(bin_ / "pdvf", "export", "out", "push.pdvf", "--family", "push")
    run(bin_ / "python", "-c", ACT)
