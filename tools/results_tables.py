"""Fills the tables of the Markdown pages from the files below results/ and benchmarks/results/.

`python tools/results_tables.py [--check]`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is one of

    times                   seconds of every phase and run
    FOLDER                  every method of FOLDER/summary.csv, sorted by its mean return in the test environments
    equal FAMILY            methods with equal budgets, of FAMILY/equal and, where they cost as much, of FAMILY/paper
    means in FOLDER ...     mean returns in the test environments, one column a folder
    early ends in FOLDER    episodes that ended almost at once, counted in FOLDER/returns.csv
    FILE.csv, FILE.json     a whole CSV file, or a list of benchmarks
    KEY in FILE.json ...    the numbers below KEY, one column a file; lists are averaged
    identification NAME ... R² of what is hidden, from benchmarks/results/identification_NAME.json
    alarms NAME ...         out-of-distribution numbers in the same files, inside and beyond the range of training
    method NAME             a method of `pdvf.methods.METHODS`: how to run it, what it needs, where its code is
    returns of NAME         its mean returns in all four domains
    fields of MODULE:CLASS  the fields of a dataclass with their types, defaults and docstrings
    options GROUP.NAME ...  options of a run: what they are, with their defaults
    recording FILE          what tools/record_terminal.py kept of a terminal, if there is such a file
    extras                  what `pip install 'pdvf[EXTRA]'` adds, as pyproject.toml says

With --check nothing is written, and the exit status is 1 where a page is stale.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pdvf.config import Config
from pdvf.methods import METHODS
from pdvf.reports.style import look, rank
from pdvf.reports.tables import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
DOMAINS = {
    "Spaceship": "spaceship/paper",
    "Swimmer": "swimmer/best",
    "Ant-wind": "ant-wind/paper",
    "Ant-legs": "ant-legs/paper",
}
RUNS = ("spaceship/paper", "swimmer/paper", "swimmer/best", "ant-wind/paper", "ant-legs/paper")
OURS = "pd-vf"
IDENTIFICATION = "../benchmarks/results/identification_{}.json"
AFTER = (1, 16, 64)
"""Steps after which the tables say what has been identified."""
PHASES = ("train", "collect", "embed", "fit", "evaluate")
EARLY = 20.0
"""An episode of an ant that returns less than this ended within a few steps."""


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return Table(head, list(rows)).markdown()


def text(value: float, scale: float | None = None) -> str:
    """A number with the digits that its size, or that of the numbers beside it, deserves."""
    size = abs(value if scale is None else scale)
    form = ".0f" if size >= 100 else ".1f" if size >= 10 else ".3f" if size >= 0.001 or not size else ".1e"
    return re.sub(r"^-(0(\.0+)?)$", r"\1", f"{value:{form}}").replace("-", "−")


def read(path: str) -> list[dict[str, str]]:
    """The lines of a CSV file below results/, without comments."""
    with open(RESULTS / path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def honest(folder: str, split: str = "test") -> dict[str, dict[str, str]]:
    """The summary of every method under the honest protocol."""
    lines = read(f"{folder}/summary.csv")
    return {line["method"]: line for line in lines if (line["split"], line["protocol"]) == (split, "honest")}


def estimate(line: Mapping[str, str], name: str, scale: float) -> str:
    """A number with its interval, where there is one; nothing where there is no number."""
    value, low, high = (line[f"{name}{end}"] for end in ("", "_low", "_high"))
    if not value:
        return ""
    interval = f" [{text(float(low), scale)}, {text(float(high), scale)}]" if low != high else ""
    return text(float(value), scale) + interval


def scale_of(lines: Mapping[str, Mapping[str, str]]) -> float:
    """What decides the digits of a domain: three for returns below 10, none for others."""
    return 1.0 if max(abs(float(line["mean"])) for line in lines.values()) < 10 else 100.0


def comparison(folder: str) -> str:
    """Every method of a run, the best first."""
    test, train = honest(folder), honest(folder, "train")
    scale, rows = scale_of(test), []
    for method, line in sorted(test.items(), key=lambda item: -float(item[1]["mean"])):
        label = f"**{look(method).label}**" if method == OURS else look(method).label
        paper = text(float(line["paper_mean"]), scale) if line["paper_mean"] else ""
        apart = estimate(line, f"{OURS}_minus_it", scale)
        rows.append([label, estimate(line, "mean", scale), text(float(train[method]["mean"]), scale), paper, apart])
    head = ["", "test", "training", "the paper, test", f"{look(OURS).label} minus it"]
    return Table(head, rows).without_empty_columns().markdown()


def means(folders: Sequence[str]) -> str:
    """Every method of some runs that are not compared with each other."""
    found = [honest(folder) for folder in folders]
    methods = sorted({method for lines in found for method in lines}, key=rank)
    cells = [[text(float(x[m]["mean"]), scale_of(x)) if m in x else "" for x in found] for m in methods]
    return grid(["", *folders], [[look(m).label, *row] for m, row in zip(methods, cells, strict=True)])


def equal(family: str) -> str:
    """Methods with equal budgets, the best first; PD-VF and what plays its policies cost as much in both."""
    rows = [*_kept_means(family)] or [*_trained(family), *_resting_on_policies(family)]
    rows.sort(key=lambda row: -float(row[2]["mean"]))
    scale = scale_of({row[0]: row[2] for row in rows})
    head = ["", "environment steps", "test", "training"]
    return grid(
        head,
        [
            [look(name).label, f"{steps / 1e6:.0f} million", estimate(test, "mean", scale), text(train, scale)]
            for name, steps, test, train in rows
        ],
    )


Row = tuple[str, float, dict[str, str], float]
"""A method, its environment steps, its line of a summary for the test environments, and its return in training."""


def _kept_means(family: str) -> Iterable[Row]:
    """Of a run of which only FAMILY/equal/means.csv was kept."""
    if (RESULTS / family / "equal" / "means.csv").is_file():
        for line in read(f"{family}/equal/means.csv"):
            mean = dict.fromkeys(("mean", "mean_low", "mean_high"), line["test"])
            yield line["method"], float(line["environment steps"]), mean, float(line["training"])


def _trained(family: str) -> Iterable[Row]:
    """Methods of FAMILY/equal with the steps of their stages."""
    steps, train = manifest(f"{family}/equal")["steps"], honest(f"{family}/equal", "train")
    for method, line in honest(f"{family}/equal").items():
        yield method, steps[method], line, float(train[method]["mean"])


def _resting_on_policies(family: str) -> Iterable[Row]:
    """Methods of FAMILY/paper that play the policies of phase 1, or were trained where they are tested."""
    config, found = load(f"{family}/paper/config.json"), honest(f"{family}/paper")
    known = honest(f"{family}/paper", "train")
    whole, train = (config["environment"][name] for name in ("environments", "train_environments"))
    policy = config["policy_seeds"] * config["ppo"]["steps"]
    counts = {"pd-vf": train, "nn": train, "best-single": train, "ppo-env": whole - train}
    for method, count in counts.items():
        yield method, count * policy, found[method], float(known[method]["mean"])


def manifest(folder: str) -> dict[str, Any]:
    """What a run was made with, and how long it took."""
    return load(f"{folder}/manifest.json")


def times() -> str:
    """Seconds of every run, phase by phase."""
    found = [manifest(folder) for folder in RUNS]
    rows = [[phase, *(text(run["seconds"][phase], 100) for run in found)] for phase in PHASES]
    others = [sum(seconds for part, seconds in run["seconds"].items() if part not in PHASES) for run in found]
    rows.append(["all other methods, added up", *(text(seconds, 100) for seconds in others)])
    rows.append(["**the whole command**", *(f"**{text(run['wall_seconds'], 100)}**" for run in found)])
    rows.append(["processes at a time", *(str(run["workers"]) for run in found)])
    return grid(["seconds", *RUNS], rows)


def early_ends(folder: str) -> str:
    """How many test episodes of each method returned less than EARLY."""
    played, early = Counter(), Counter()
    for line in read(f"{folder}/returns.csv"):
        if (line["split"], line["protocol"]) == ("test", "honest"):
            place = line["method"], line["environment"]
            played[place] += 1
            early[place] += float(line["return"]) < EARLY
    numbers = sorted({number for _, number in played}, key=int)
    methods = sorted({method for method, _ in played}, key=rank)
    rows = [[look(m).label, *(f"{early[m, n]} of {played[m, n]}" for n in numbers)] for m in methods]
    return grid(["", *(f"environment {number}" for number in numbers)], rows)


def whole(path: str) -> str:
    """A CSV file as it is, numbers rounded."""
    lines = read(path)
    rows = [[text(float(cell)) if re.fullmatch(r"-?\d+\.\d+", cell) else cell for cell in x.values()] for x in lines]
    return grid(list(lines[0]), rows)


def benchmarks(data: Any) -> str:
    """What was measured beside what, as `benchmarks/` writes it."""
    lines = data["benchmarks"] if isinstance(data, dict) else data
    rows = [[text(x) if isinstance(x, float) else str(x) for x in line.values()] for line in lines]
    return grid(list(lines[0]), rows)


def load(path: str) -> Any:
    """A JSON file; its path is below results/."""
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def leaves(data: Any, name: str = "") -> dict[str, float]:
    """The numbers in parsed JSON by their place; lists are averaged, those by environment left out.

    So is how they were measured.
    """
    if isinstance(data, list):
        found = [leaves(item, name) for item in data]
        return {key: fmean(each[key] for each in found) for key in found[0]}
    if isinstance(data, dict):
        inside = [
            leaves(x, f"{name}: {key}" if name else key)
            for key, x in data.items()
            if "by environment" not in key and key != "measured"
        ]
        return {key: value for each in inside for key, value in each.items()}
    return {name: float(data)} if isinstance(data, (int, float)) and not isinstance(data, bool) else {}


def columns(key: str, paths: Sequence[str]) -> str:
    """The numbers below a key of JSON files beside each other."""
    found = [leaves(load(path)[key]) for path in paths]
    names = list(dict.fromkeys(name for each in found for name in each))
    heads = [path.removesuffix(".json").removeprefix("../benchmarks/results/") for path in paths]
    return grid(["", *heads], [[n, *(text(each[n]) if n in each else "" for each in found)] for n in names])


def identified(names: str) -> str:
    """R² of each hidden number from the belief: in test contexts, and in those of training by cross-validation."""
    rows = []
    for name in names.split():
        found = load(IDENTIFICATION.format(name))
        for hidden, left_out in found["r2_left_out"].items():
            unseen = dict(zip(found["steps"], found["r2_unseen"].get(hidden, ()), strict=False))
            cells = [text(unseen[k], 1) if k in unseen else "" for k in AFTER]
            exact = (found.get("r2_exact") or {}).get(hidden)
            cells.append("" if exact is None else text(exact, 1))
            rows.append([f"{name}: {hidden}", *cells, text(left_out[-1], 1)])
    after = [f"unseen, {k} step{'s' * (k > 1)}" for k in AFTER]
    head = ["", *after, "unseen, from the exact effect", "training, at the last of these"]
    return Table(head, rows).without_empty_columns().markdown()


def alarms(names: str) -> str:
    """How well the out-of-distribution number tells contexts beyond the range from those inside it."""
    rows = []
    for name in names.split():
        found = load(IDENTIFICATION.format(name))
        training, unseen = (found["false_alarms"][kind] for kind in ("training", "unseen, inside"))
        shares = ["" if share is None else f"{100 * share:.1f} %" for share in (training, unseen, found["found"])]
        rows.append([name, text(found["auroc"], 1), *shares])
    heads = ["", "AUROC", "above 1: training contexts", "unseen ones inside the range", "those far beyond it"]
    return grid(heads, rows)


def method(name: str) -> str:
    """How a method is run, what it needs, and where it is."""
    found = METHODS[name]
    needs = ", ".join(f"`{needed}`" for needed in found.needs) or "nothing: it is trained from scratch"
    file = Path(inspect.getfile(found.train)).relative_to(ROOT / "src")
    rows = {
        "run it": f"`pdvf compare FAMILY --out RUN --methods {name}`",
        "artefacts it needs": needs,
        "told the hidden context": "yes, so it is a bound and no competitor" if found.privileged else "no",
        "in the paper": "no" if look(name).label.endswith("*") else "yes",
        "code": f"[{file}]({'../../src' / file})",
    }
    return grid([f"`{name}`", found.text], rows.items()).replace("---:", "---")


def returns_of(name: str) -> str:
    """The mean returns of a method in every domain."""
    rows = []
    for domain, folder in DOMAINS.items():
        test, train = honest(folder), honest(folder, "train")
        if name in test:
            scale, line = scale_of(test), test[name]
            apart = estimate(line, f"{OURS}_minus_it", scale)
            place = 1 + sum(float(other["mean"]) > float(line["mean"]) for other in test.values())
            place_text = f"{place} of {len(test)}"
            mean = estimate(line, "mean", scale)
            rows.append([domain, mean, text(float(train[name]["mean"]), scale), place_text, apart])
    head = ["", "test", "training", "place", f"{look(OURS).label} minus it"]
    return Table(head, rows).without_empty_columns().markdown()


def documented(kind: type) -> dict[str, tuple[str, str, str]]:
    """Type, default and docstring of each field of a dataclass, as its source has them."""
    found: dict[str, tuple[str, str, str]] = {}
    for base in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.getsource(base)).body[0].body if base.__module__.startswith("pdvf") else []
        for line, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                said = getattr(getattr(after, "value", None), "value", "") if isinstance(after, ast.Expr) else ""
                default = ast.unparse(line.value) if line.value else ""
                type_name = re.sub(r"^(?:\w+\.)*Fixed\[(.*)\]$", r"\1", ast.unparse(line.annotation))
                found[line.target.id] = type_name, default, " ".join(str(said).split())
    plain = {
        field.name: repr(field.default) for field in dataclasses.fields(kind) if type(field.default) in (int, float)
    }
    return {
        f.name: (found[f.name][0], plain.get(f.name, found[f.name][1]), found[f.name][2])
        for f in dataclasses.fields(kind)
    }


def fields(where: str) -> str:
    """Every field of a dataclass."""
    module, _, name = where.partition(":")
    found = documented(getattr(importlib.import_module(module), name))
    rows = [
        [f"`{field}`", f"`{kind}`", f"`{value}`" if value else "needed", said]
        for field, (kind, value, said) in found.items()
    ]
    return grid(["field", "type", "default", "what it is"], rows).replace("---:", "---")


def options(names: str) -> str:
    """Options of a run by dotted name, with the defaults of `pdvf.config`; presets set some of them."""
    groups, rows = {field.name: field.default_factory for field in dataclasses.fields(Config)}, []
    for name in names.split():
        group, _, option = name.partition(".")
        _, value, said = documented(groups[group])[option]
        rows.append([f"`{name}`", f"`{value}`", said])
    return grid(["option", "default", "what it is"], rows).replace("---:", "---")


def extras() -> str:
    """The optional dependencies, and what they are for: the comment at the end of each line."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = lines.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    found = re.findall(r"^(\w+) = \[(.*)\]  # (.+)$", section, re.MULTILINE)
    rows = [[f"`{name}`", what, ", ".join(f"`{x}`" for x in re.findall(r'"([^"]+)"', of))] for name, of, what in found]
    return grid(["extra", "for", "installs"], rows).replace("---:", "---")


def recording(path: str) -> str:
    """A recording of a terminal as it is; nothing as long as there is none."""
    if not (RESULTS / path).is_file():
        return ""
    shown = (RESULTS / path).read_text(encoding="utf-8")
    command = shown.partition("\n")[0].removeprefix("$ ")
    begin = f"What `{command}` shows on a terminal, with the seconds since its start; each bar is drawn in its place:"
    return f"{begin}\n\n```text\n{shown}```\n"


def table(name: str) -> str:
    """The table of this name."""
    what, within, rest = name.partition(" in ")
    for kind, make in {
        "equal ": equal,
        "method ": method,
        "returns of ": returns_of,
        "fields of ": fields,
        "options ": options,
        "recording ": recording,
        "identification ": identified,
        "alarms ": alarms,
    }.items():
        if name.startswith(kind):
            return make(name.removeprefix(kind))
    if name in ("times", "extras"):
        return {"times": times, "extras": extras}[name]()
    if within:
        return {"early ends": early_ends, "means": lambda x: means(x.split())}.get(
            what, lambda x: columns(what, x.split())
        )(rest)
    if name.endswith(".json"):
        return benchmarks(load(name))
    return whole(name) if name.endswith(".csv") else comparison(name)


def fill(page: str) -> str:
    """A page with all of its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", page)


def main(words: list[str]) -> int:
    """Writes or checks every page."""
    stale = []
    for path in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))):
        page = path.read_text(encoding="utf-8")
        if (filled := fill(page)) != page:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in words:
                path.write_text(filled, encoding="utf-8")
    print(f"{len(stale)} pages {'are stale' if '--check' in words else 'written'}: {', '.join(stale)}")
    return int(bool(stale) and "--check" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
