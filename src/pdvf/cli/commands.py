"""Commands that look at a run or a family, or take a run away; `cli` has those that make runs."""

from __future__ import annotations

import json

import tyro

from pdvf.cli.arguments import CheckArguments, DiagnoseArguments, ExportArguments, FamilyArguments, PretrainedArguments
from pdvf.config import ConfigError, from_dict
from pdvf.config.presets import PRESETS, preset
from pdvf.families.registry import family_names, make_family


def diagnose(rest: list[str]) -> int:
    """What holds a trained run back."""
    given = tyro.cli(DiagnoseArguments, prog="pdvf diagnose", args=rest)
    import jax

    from pdvf.api import open_run
    from pdvf.experiment.diagnosis import as_data, effort, findings, measure, table
    from pdvf.experiment.files import to_json
    from pdvf.paper import pipeline
    from pdvf.reports import diagnosis
    from pdvf.reports.style import png

    run = open_run(given.run, given.family)
    store, problem, adapter = run.store, run.problem, run.model(given.model)
    policies = store.load("policies", pipeline.artefact_shapes(problem)["policies"])
    print(f"{given.run}, model {given.model}: plays {effort(problem, policies)}", flush=True)
    measured = measure(problem, policies, adapter, jax.random.key(problem.config.seed))
    family = problem.engine.family
    found = findings(family, problem.contexts, measured)
    figure = diagnosis.draw(family.train(problem.config.seed).numbers, measured._asdict())
    with store.lock():
        store.write_bytes("diagnosis.json", to_json(as_data(found, measured)))
        store.write_bytes("figures/diagnosis.png", png(figure))
    print(table(found, measured))
    print(f"  picture: {store.folder / 'figures' / 'diagnosis.png'}")
    return 0


def export(rest: list[str]) -> int:
    """A trained run as one file."""
    given = tyro.cli(ExportArguments, prog="pdvf export", args=rest)
    from pdvf.api import open_run

    file = open_run(given.run, given.family).export(given.file, given.model)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB; load it with pdvf.load")
    return 0


def pretrained(rest: list[str]) -> int:
    """Plays such a file."""
    given = tyro.cli(PretrainedArguments, prog="pdvf evaluate", args=rest)
    from pdvf.deploy.pretrained import find, play, table

    print(table(*play(find(given.pretrained), given.episodes, given.seed)))
    return 0


def check_engine(rest: list[str]) -> int:
    """An engine against MuJoCo in C."""
    from pdvf.families.base import MujocoFamily

    families = [name for name in family_names() if isinstance(make_family(name), MujocoFamily)]
    if not rest or rest[0].startswith("-") or rest[0] not in families:
        given = rest[0] if rest else "nothing"
        raise ConfigError(f"`pdvf check-engine` was given {given}, expected a MuJoCo family: {', '.join(families)}")
    given = tyro.cli(CheckArguments, prog=f"pdvf check-engine {rest[0]}", args=rest[1:])
    import jax

    from pdvf.experiment import engine_parity as check
    from pdvf.experiment.store import RunStore
    from pdvf.paper import pipeline

    config = preset(rest[0], "paper")
    if given.run is None:
        problem = pipeline.Problem(config)
        actors = check.random_policies(problem.engine.family, given.policies, jax.random.key(given.seed))
    else:
        store = RunStore.open(given.run, family=rest[0])
        problem = pipeline.Problem(from_dict(store.config))
        policies = store.load("policies", pipeline.artefact_shapes(problem)["policies"])
        actors = pipeline.finished_policies(policies)
    family = make_family(problem.config.family, problem.config.environment)
    result = check.check_engine(family, given.engine, actors, given.seed, given.steps, given.episodes)  # type: ignore[arg-type]
    print(check.table(result))
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["returns"]["agree"] else 1


def check_family(rest: list[str]) -> int:
    """Whether a family is fit for training."""
    if not rest or rest[0].startswith("-"):
        raise ConfigError("`pdvf check-family` needs a family first: a name, or your own as package.module:object")
    given = tyro.cli(FamilyArguments, prog=f"pdvf check-family {rest[0]}", args=rest[1:])
    from pdvf.experiment import family_checker as check_family

    presets = {name: preset(rest[0], name) for name in PRESETS if name != "best"}
    family = make_family(rest[0], presets["quick"].environment)
    found = check_family.check_family(family, given.seed, given.engine, presets)
    print(check_family.table(family, found))
    return 0 if all(finding.good for finding in found) else 1
