"""The tables of a report: all test environments together, and each environment by itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from pdvf.reports import paper
from pdvf.reports.data import Group, Run
from pdvf.reports.statistics import RESAMPLES, Estimate, difference, probability_of_improvement
from pdvf.reports.style import look

OURS = ("pd-vf", "pd-vf-plus")
"""The methods that every other one is compared with."""
SAME_MODELS = (*OURS, "nn", "no-agg-policy", "no-agg-value")
"""Methods whose k-th seed has the probe and embeddings of the run's k-th model: their differences are paired."""


class Line(NamedTuple):
    """One method in all environments of a split together."""

    group: Group
    paper: float | None
    apart: dict[str, Estimate]  # how far each of OURS is above it
    chance: dict[str, Estimate]  # that a seed of each of OURS is better


def lines(run: Run, split: str = "test") -> list[Line]:
    """Every method that played in a split."""
    ours = {g.method: g for g in run.select(split, "honest") if g.method in OURS}
    made = []
    for group in run.select(split):
        rivals = {
            name: mine.returns
            for name, mine in ours.items()
            if name != group.method and mine.environments == group.environments
        }
        apart = {
            name: difference(
                returns, group.returns, group.method in SAME_MODELS and returns.shape == group.returns.shape
            )
            for name, returns in rivals.items()
        }
        chance = {name: probability_of_improvement(returns, group.returns) for name, returns in rivals.items()}
        made.append(Line(group, paper_mean(run, group) if split == "test" else None, apart, chance))
    return made


def summary(run: Run) -> str:
    """The same as numbers in a CSV file: means, interquartile means and differences with their intervals."""
    estimates = ("mean", "iqm", *(f"{name}_minus_it" for name in OURS), *(f"{name}_better" for name in OURS))
    names = ("family", "split", "method", "protocol", "environments", "seeds", "episodes", "paper_mean")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *(word for name in estimates for word in (name, f"{name}_low", f"{name}_high"))])
    for split in ("test", "train"):
        for line in lines(run, split):
            group, (_, seeds, episodes) = line.group, line.group.returns.shape
            found = [group.summary.mean, group.summary.iqm]
            found += [values.get(name) for values in (line.apart, line.chance) for name in OURS]
            numbers = [number for estimate in found for number in (estimate or (None,) * 3)]
            words = (run.title, split, group.method, group.protocol, len(group.environments), seeds, episodes)
            writer.writerow([*words, *(_short(value) for value in (line.paper, *numbers))])
    return text.getvalue()


def terminal(groups: Sequence[Group], steps: Mapping[str, int | None]) -> str:
    """Mean return in the test environments, best first, for the terminal; with intervals where there are seeds."""
    test = [group for group in groups if (group.split, group.protocol) == ("test", "honest")]
    rows = [("method", "mean", "95 % interval", "environment steps")]
    for group in sorted(test, key=lambda group: -group.summary.mean.value):
        mean, low, high = group.summary.mean
        between = "-" if np.isnan(low) or low == high else f"[{low:.4g}, {high:.4g}]"
        used = steps.get(group.method)
        rows.append((group.method, f"{mean:.4g}", between, "-" if used is None else f"{used:,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _short(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.6g}"


def headline(run: Run) -> str:
    """Every method in all test environments together, beside the paper."""
    found = lines(run)
    ours = [name for name in OURS if any(line.group.method == name for line in found)]
    rows = []
    for line in found:
        group = line.group
        _, seeds, episodes = group.returns.shape
        lead = ' class="lead"' if (group.method, group.protocol) == ("pd-vf", "honest") else ""
        apart = "".join(f"<td>{cell(line.apart[name], run) if name in line.apart else ''}</td>" for name in ours)
        chance = _chance(line.chance["pd-vf"]) if "pd-vf" in line.chance else ""
        rows.append(
            f'<tr{lead}><td class="text">{chip(group.method)}{escape(look(group.method).label)}</td>'
            f'<td class="text">{escape(group.protocol)}</td><td>{cell(group.summary.mean, run)}</td>'
            f"<td>{cell(group.summary.iqm, run)}</td><td>{'' if line.paper is None else number(line.paper, run)}</td>"
            f"{apart}<td>{chance}</td><td>{seeds} × {episodes}</td></tr>"
        )
    note = (
        "Over all test environments. In small print: 95 % percentile intervals from "
        f"{RESAMPLES} bootstrap samples of seeds, then of episodes within each environment; none where there is only "
        "one seed. The interquartile mean is taken over the scores of all pairs of environment and seed. "
        "<em>PD-VF minus it</em>: the difference of the means; with one seed each, its interval speaks of episodes "
        "alone. Seeds of methods that are made from the same models are drawn together. "
        "<em>PD-VF better</em>: the chance that a seed of PD-VF scores above a seed of the method in the same "
        "environment. "
        "<em>Honest</em>: every decision is made within the one episode that counts, and probing steps are part of it. "
        "<em>Peek</em>: of the two signs of the embedding the one with the better true return counts, as in the "
        "authors’ published code; that takes two tries."
    )
    if any(look(group.method).label.endswith("*") for group in run.select("test")):
        note += " Methods with an asterisk are not in the paper."
    return (
        '<div class="wide"><table><thead><tr><th class="text">Method</th><th class="text">Protocol</th>'
        "<th>Mean return</th><th>Interquartile mean</th><th>Paper’s mean</th>"
        f"{''.join(f'<th>{escape(look(name).label)} minus it</th>' for name in ours)}<th>PD-VF better</th>"
        f"<th>Seeds × episodes</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="note">{note}</p>'
    )


def environments(run: Run, split: str) -> str:
    """Every method in each environment of a split."""
    groups = run.select(split)
    if not groups:
        return ""
    theirs = paper.test_returns(run.family) if split == "test" else {}
    numbers = sorted({number for group in groups for number in group.environments})
    head = "".join(f"<th>{n}{context_text(run, n)}</th>" for n in numbers)
    rows = []
    for group in groups:
        protocol = "" if group.protocol == "honest" else f" <small>{escape(group.protocol)}</small>"
        cells = [f'<td class="text">{chip(group.method)}{escape(look(group.method).label)}{protocol}</td>']
        for n in numbers:
            if n not in group.environments:
                cells.append("<td></td>")
                continue
            estimate = group.summary.environments[group.environments.index(n)]
            bar = theirs.get(group.method, {}).get(n) if group.protocol == "honest" else None
            beside = "" if bar is None else f"<br><small>paper {number(bar.mean, run)} ± {number(bar.std, run)}</small>"
            cells.append(f"<td>{cell(estimate, run)}{beside}</td>")
        rows.append(f"<tr>{''.join(cells)}<td><b>{cell(group.summary.mean, run)}</b></td></tr>")
    table = (
        f'<div class="wide"><table><thead><tr><th class="text">Environment</th>{head}<th>mean</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    if split == "test":
        return f"<h3>Test environments</h3>{table}"
    return f"<details><summary>Training environments</summary>{table}</details>"


def _chance(estimate: Estimate) -> str:
    text = f"{100 * estimate.value:.0f} %"
    if np.isnan(estimate.low):
        return text
    return f"{text} <small>[{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]</small>"


def cell(estimate: Estimate, run: Run) -> str:
    """An estimate with its interval in small print, where there is one: none for one seed or episodes all alike."""
    value = number(estimate.value, run)
    if np.isnan(estimate.low) or estimate.low == estimate.high:
        return value
    return f"{value} <small>[{number(estimate.low, run)}, {number(estimate.high, run)}]</small>"


def interval_text(estimate: Estimate, run: Run) -> str:
    """The interval in words."""
    if np.isnan(estimate.low):
        return "one model, so no interval"
    if estimate.low == estimate.high:
        return "all episodes alike, so no interval"
    return f"95 % interval {number(estimate.low, run)} to {number(estimate.high, run)}"


def number(value: float, run: Run) -> str:
    """A return, with as many digits as the largest one of the run deserves."""
    largest = max(float(np.abs(group.returns).max()) for group in run.groups)
    text = f"{value:.3f}" if largest < 10 else f"{value:.1f}"
    return text.replace("-", "−")


def paper_mean(run: Run, group: Group) -> float | None:
    """The paper's mean over the environments of a group, where it has all of them."""
    bars = paper.test_returns(run.family).get(group.method, {})
    known = [bars[number].mean for number in group.environments if number in bars]
    return float(np.mean(known)) if len(known) == len(group.environments) else None


def context_text(run: Run, number: int) -> str:
    """The context of an environment, small."""
    at = np.flatnonzero(run.numbers == number)
    if not run.has("contexts") or not at.size:
        return ""
    context = run.evaluation["contexts"][at[0]]
    names = run.context_names
    words = names if len(names) == len(context) > 1 else ("",) * len(context)
    shown = ", ".join(f"{name} {float(value):.2f}".strip() for name, value in zip(words, context, strict=True))
    return f" <small>({escape(shown)})</small>".replace("-", "−")


def chip(method: str) -> str:
    """A square in the colour of a method."""
    return f'<span class="chip" style="background:{look(method).colour}"></span>'
