"""`--config FILE`: what config.json says can be given back, and options on the command line win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdvf.cli.main import main
from pdvf.config import to_dict
from pdvf.config.presets import preset
from tiny import TINY, relaxed


def init(folder: Path, *words: object) -> dict:
    """The configuration that `pdvf init` writes."""
    with relaxed():
        assert main(["init", "spaceship", "--preset", "smoke", "--out", str(folder), *map(str, words)]) == 0
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    monkeypatch.setattr("pdvf.core.devices.use_all_cores", lambda devices=None: None)


def test_a_config_json_is_given_back(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(to_dict(TINY)))
    assert init(tmp_path / "run", "--config", tmp_path / "config.json") == to_dict(TINY)


def test_a_part_of_it_in_yaml_and_the_command_line_wins(tmp_path):
    (tmp_path / "part.yaml").write_text("seed: 3\nppo:\n  learning_rate: 1e-3\n  hidden: 16\n")
    found = init(tmp_path / "run", f"--config={tmp_path / 'part.yaml'}", "--ppo.hidden", 32)
    expected = to_dict(preset("spaceship", "smoke")) | {"seed": 3}
    expected["ppo"] |= {"learning_rate": 1e-3, "hidden": 32}
    assert found == expected


BOMB = ["a0: &a0 [1, 1]", *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(30))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "ppo: {stepz: 3}", "a.yaml: unknown option 'ppo.stepz'"),
        ("a.yaml", "ppo: {steps: many}", "a.yaml: ppo.steps is 'many', expected a whole number"),
        ("a.yaml", "seed: -1", "a.yaml: seed is -1, expected a whole number from 0"),
        ("a.yaml", "[1, 2", "a.yaml cannot be read"),
        ("a.yaml", "!!python/object/apply:os.system [echo]", "a.yaml cannot be read"),
        ("a.yaml", "3: 4", "a.yaml cannot be read (the name 3, expected text)"),
        ("a.yaml", "ppo: {3: 4}", "a.yaml cannot be read (the name 3, expected text)"),
        ("a.yaml", "ppo: &a {steps: *a}", "a.yaml cannot be read (the reference *a"),
        ("a.yaml", "\n".join(BOMB), "a.yaml cannot be read (the reference *a0"),
        ("a.yaml", "seed: 1\nseed: 2", "a.yaml cannot be read (seed is there twice, expected once)"),
        ("a.json", '{"ppo": {"steps": 1, "steps": 2}}', "a.json cannot be read (steps is there twice"),
        ("a.yaml", "ppo.steps: 1\nppo: {steps: 2}", "a.yaml: ppo.steps is there twice"),
        ("a.yaml", "seed: !!int ''", "a.yaml cannot be read"),
        ("a.yaml", "seed: !!bool perhaps", "a.yaml cannot be read"),
        ("a.yaml", "seed: !!timestamp then", "a.yaml cannot be read"),
        ("a.yaml", "? [1, {a: 2}]\n: 3", "a.yaml cannot be read"),
        ("a.yaml", "seed: 0x" + "f" * 9000, "a.yaml holds a whole number of more than 64 bits"),
        ("a.yaml", "ppo: {learning_rate: .inf}", "a.yaml holds the number inf, expected finite ones"),
        ("a.yaml", "ppo: {learning_rate: inf}", "a.yaml: ppo.learning_rate is 'inf', expected a number"),
        ("a.json", '{"seed": NaN}', "a.json holds the number nan"),
        ("a.json", "[" * 60_000, "a.json cannot be read"),
        ("a.json", '{"a": ' * 900 + "1" + "}" * 900, "a.json holds more than 32 levels of nesting"),
        ("a.yaml", "[" * 1_000, "a.yaml cannot be read"),
        ("a.yaml", "#" * 70_000, "a.yaml has 70000 bytes, more than 65536"),
        ("a.json", "[]", "a.json holds list, expected options by name"),
        ("a.json", '{"family": "swimmer"}', "a.json is for the family 'swimmer', expected 'spaceship'"),
        ("a.toml", "seed = 1", "expected options by name, in a file that ends in .json or .yaml"),
        ("none.json", None, "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, capsys, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["init", "spaceship", "--config", str(tmp_path / name), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
