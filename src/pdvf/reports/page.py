"""The HTML page of a report: words and tables around the figures, in one file without scripts or links."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from pdvf.reports import paper
from pdvf.reports.data import Group, Run
from pdvf.reports.figures import TSNE_POINTS
from pdvf.reports.films import SHOWN_SECONDS, Film
from pdvf.reports.statistics import rank_correlation
from pdvf.reports.style import DPI
from pdvf.reports.tables import environments, headline, interval_text, number, paper_mean

PIXELS_PER_INCH = 90
"""Size of figures on the page, one for all, so that their letters are alike."""
CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --muted: #656d76; --line: #d8dee4; --page: #ffffff;
  --soft: #f6f8fa; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9198a1; --line: #3d444d;
  --page: #0d1117; --soft: #161b22; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 1.35rem; margin: 52px 0 12px; }
h3 { font-size: 1.05rem; margin: 24px 0 8px; }
.under { color: var(--muted); margin: 0 0 24px; }
.story { font-size: 1.06rem; max-width: 76ch; }
.note { color: var(--muted); font-size: 0.9rem; max-width: 84ch; }
.wide { overflow-x: auto; margin-right: min(0px, calc((1120px - 100vw) / 2)); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.94rem; }
th, td { padding: 6px 14px 6px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; }
td.text, th.text { text-align: left; }
td.value { white-space: normal; overflow-wrap: anywhere; text-align: left; }
tr.lead td { font-weight: 600; }
tr.total td { border-top: 2px solid var(--line); font-weight: 600; }
small { color: var(--muted); font-weight: 400; font-size: 0.82em; }
.chip { display: inline-block; width: 0.75em; height: 0.75em; border-radius: 2px; margin-right: 0.5em; }
figure { margin: 0; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #ffffff; border-radius: 6px; }
.card { background: #ffffff; border: 1px solid var(--line); border-radius: 8px; padding: 14px; }
.films { display: flex; flex-wrap: wrap; gap: 8px; margin-top: 10px; }
.films figure { width: 190px; text-align: center; }
figcaption { margin-top: 10px; max-width: 84ch; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--accent); }
code { font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
"""


class Shown(NamedTuple):
    """A figure on the page."""

    name: str
    title: str
    png: bytes
    caption: str


def render(run: Run, shown: Sequence[Shown], absent: Sequence[str], moving: Sequence[Film] = ()) -> str:
    """The whole page."""
    title = f"PD-VF on {_family(run)}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="under">{escape(_under(run))}</p>',
        f'<p class="story">{escape(story(run))}</p>',
        "<h2>Headline numbers</h2>",
        headline(run),
        *(_figure(figure) for figure in shown if figure.name.startswith("test_")),
        "<h2>Each environment</h2>",
        *(environments(run, split) for split in ("test", "train")),
        *(_figure(figure, moving) for figure in shown if not figure.name.startswith("test_")),
    ]
    if absent:
        parts.append(f'<p class="note">Not shown, since the run has no data for it: {escape("; ".join(absent))}.</p>')
    parts.append(_recipe(run))
    return document(title, "\n".join(parts))


def document(title: str, body: str) -> str:
    """A page of HTML that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def story(run: Run) -> str:
    """One paragraph: what was done and what came of it."""
    train, test = int((~run.is_test).sum()), int(run.is_test.sum())
    steps, seeds = run.option("ppo", "steps"), run.option("policy_seeds")
    steps_of_probe = run.option("environment", "probe_steps", default=1)
    probe = "step" if steps_of_probe == 1 else f"{steps_of_probe} steps"
    text = (
        f"{_count(seeds, 'PPO policy', 'PPO policies')} learned in each of {train} training environments that differ "
        f"only in hidden dynamics{f', for {_round(steps)} steps each' if steps else ''}. From their trajectories came "
        "an embedding of every policy and of every dynamics, and from those a value function W that predicts the "
        f"return of any policy in any dynamics. In each of {test} test environments, which none of this has seen, "
        f"PD-VF spends the first {probe} of the episode on inferring the dynamics, takes the "
        "policy embedding that W rates highest in closed form, and plays the rest of that same episode with it; "
        "no weight changes and no second try is made."
    )
    groups = {group.method: group for group in run.select("test", "honest")}
    if "pd-vf" in groups:
        mean = groups["pd-vf"].summary.mean
        text += f" Its mean return in the test environments is {number(mean.value, run)} ({interval_text(mean, run)})"
        theirs = paper_mean(run, groups["pd-vf"])
        text += f"; the paper's is {number(theirs, run)}." if theirs is not None else "."
    comparisons = {
        "ppo-env": "policies that learned in the test environments themselves (PPOenv) get {}",
        "nn": "the policy of the nearest training environment (NN) gets {}",
    }
    said = [
        phrase.format(number(groups[method].summary.mean.value, run))
        for method, phrase in comparisons.items()
        if method in groups
    ]
    if said:
        text += f" For comparison, {', and '.join(said)}."
    return text


# What to see in each figure


def test_caption(run: Run) -> str:
    """Of the bars for test environments."""
    text = (
        "Mean return of one adapted episode in each test environment. Filled bars are this run, with 95 % bootstrap "
        "intervals where there is more than one seed."
    )
    if paper.test_returns(run.family):
        text += " Outlined bars are read from the paper's Figures 4 and 5, with the standard deviations drawn there."
    groups = {group.method: group.summary.mean.value for group in run.select("test", "honest")}
    if {"pd-vf", "ppo-env"} <= set(groups):
        gap = groups["pd-vf"] - groups["ppo-env"]
        side = "above" if gap >= 0 else "below"
        text += f" On average PD-VF is {number(abs(gap), run)} {side} PPOenv, which trained where it is tested."
    return text


def train_caption(run: Run) -> str:
    """Of the bars for training environments."""
    text = "The same in the training environments, for which the paper's bars have not been digitised."
    both = [_method(run, split, "pd-vf") for split in ("train", "test")]
    if both[0] and both[1]:
        values = [number(group.summary.mean.value, run) for group in both if group]
        text += f" PD-VF gets {values[0]} here against {values[1]} in the test environments."
    return text


def paths_caption(run: Run) -> str:
    """Of the ship's paths."""
    seeds = run.evaluation["path_valid"].shape[0]
    return (
        f"The first adapted episode of {_count(seeds, 'model', 'models')} in each test environment. The ship starts at "
        "the square, makes its probing step, and has then to hit the centre of the door although the two hidden "
        "charges (plus pushes, minus pulls) bend its way: the closer to the centre it ends, the higher the return "
        "(above each room, mean of the paths shown)."
    )


def strips_caption(run: Run) -> str:
    """Of the frames of adapted agents."""
    return (
        "Frames from the first adapted episode of the first model in each test environment, at equal distances in "
        f"time, and its first {SHOWN_SECONDS:g} seconds as a film. The camera moves with the agent, so the floor shows "
        "how far it got; the place is integrated from the velocities it observed."
    )


def embeddings_caption(run: Run) -> str:
    """Of the t-SNE panels."""
    points = min(len(run.evaluation["tsne_z_d"]), TSNE_POINTS)
    return (
        f"t-SNE of {points} trajectories' embeddings. In the upper left panel neighbouring colours should lie side "
        "by side, since the dynamics form a circle, with test environments (triangles) in their place although no "
        "encoder was trained on them; below it the same points by policy should be well mixed, for dynamics do not "
        "depend on who acts. The lower right panel should show policies in clusters, and the upper right no order by "
        "environment."
    )


def transfer_caption(run: Run) -> str:
    """Of the transfer matrices."""
    table = run.evaluation["transfer"].mean(axis=1)
    own = np.eye(len(table), dtype=bool)
    text = (
        "Mean return of each environment's finished policies in every environment, without adaptation. The diagonal "
        f"averages {number(float(table[own].mean()), run)}"
    )
    if len(table) > 1:
        rest = number(float(table[~own].mean()), run)
        text += f", the rest {rest}: what is lost away from it is what adaptation can win"
    text += ". White lines separate training from test environments."
    theirs = paper.transfer(run.family)
    if theirs is not None and np.any(np.all(theirs == 0, axis=1)):
        text += " The rows of zeros are in the paper's table itself."
    return text


def values_caption(run: Run) -> str:
    """Of predicted against actual returns."""
    count = run.evaluation["value_actual"].size
    text = (
        f"W's predictions for {count} pairs of a policy embedding drawn at random and a training environment (blue), "
        "and for the embeddings PD-VF chose in the test environments (orange, one point per model and environment, "
        "averaged over episodes). Points on the dashed line are right; orange points below it did better than W "
        "promised, those above it worse."
    )
    correlation = rank_correlation(run.evaluation["value_predicted"], run.evaluation["value_actual"])
    return (
        text if correlation is None else f"{text} Spearman's rank correlation of the blue points is {correlation:.2f}."
    )


def curves_caption(run: Run) -> str:
    """Of the learning curves."""
    return (
        "Return of the episodes that ended while PPO trained, with exploration noise: one faint line per environment "
        "(mean over seeds), bold lines their means. Policies of test environments serve PPOenv and the transfer table "
        "alone; PD-VF never sees them. Environments whose line stays low have no good policy to learn from."
    )


def losses_caption(run: Run) -> str:
    """Of losses and aggregation."""
    text = (
        "Bold lines are means over model seeds, faint lines single seeds. Held-out losses should fall with the "
        "training losses."
    )
    series = run.history("adapter", "optimal_return")
    if series is not None and len(series) > 1:
        first, last = (number(float(np.nanmean(series[i])), run) for i in (0, -1))
        text += (
            f" During aggregation the return of the embeddings that W prefers went from {first} to {last}: W plays "
            "what it overrates and learns from the result."
        )
    return text


# How it was made


def _recipe(run: Run) -> str:
    made = run.environment
    device = made.get("device") or {}
    facts: dict[str, Any] = {
        "Command": made.get("command"),
        "Commit": made.get("commit"),
        "Seed": run.option("seed"),
        "Policy seeds": run.option("policy_seeds"),
        "Model seeds": run.option("model_seeds"),
        "Device": f"{device.get('count')} × {device.get('kind')} ({device.get('platform')})" if device else None,
        "Platform": made.get("platform"),
        "Python": made.get("python"),
        "Versions": ", ".join(f"{name} {version}" for name, version in (made.get("versions") or {}).items() if version),
        "Begun": made.get("created"),
    }
    seconds = run.seconds()
    times = [(phase, _duration(value)) for phase, value in seconds.items()]
    if times:
        times.append(("together", _duration(sum(seconds.values()))))
    options = [(name, _plain(value)) for name, value in _flat(run.config)]
    return (
        "<h2>How it was made</h2>"
        + _differences(run)
        + _pairs((name, value) for name, value in facts.items() if value not in (None, ""))
        + (f"<h3>Time of each phase and method</h3>{_pairs(times)}" if times else "")
        + f"<details><summary>Configuration: {len(options)} options</summary>{_pairs(options)}</details>"
    )


def _differences(run: Run) -> str:
    """One sentence where a run was resumed with other versions or devices, nothing where all agree."""
    found = [
        ", ".join(f"{which} ({', '.join(artefacts)})" for which, artefacts in by.items())
        for by in run.differences().values()
    ]
    if not found:
        return ""
    words = f"Not all artefacts were made with the same versions and devices: {'; '.join(found)}."
    return f'<p class="note">{escape(words)}</p>'


def _figure(shown: Shown, moving: Sequence[Film] = ()) -> str:
    data = base64.b64encode(shown.png).decode()
    width = round(int.from_bytes(shown.png[16:20]) * PIXELS_PER_INCH / DPI)  # the header says how wide it is
    return (
        f'<h2>{escape(shown.title)}</h2><figure id="{shown.name}"><div class="card">'
        f'<img alt="{escape(shown.title)}" style="width:{width}px" src="data:image/png;base64,{data}"></div>'
        f"{_films(moving) if shown.name == 'strips' else ''}"
        f"<figcaption>{escape(shown.caption)}</figcaption></figure>"
    )


def _films(moving: Sequence[Film]) -> str:
    cells = (
        f'<figure><img alt="Film of environment {film.environment}" '
        f'src="data:image/gif;base64,{base64.b64encode(film.gif).decode()}"><small>environment {film.environment}'
        "</small></figure>"
        for film in moving
    )
    return f'<div class="films">{"".join(cells)}</div>'


# Words and numbers


def _pairs(rows: Iterable[tuple[str, Any]]) -> str:
    cells = (
        f'<tr><td class="text">{escape(str(name))}</td><td class="value"><code>{escape(str(value))}</code></td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{''.join(cells)}</tbody></table>"


def _method(run: Run, split: str, method: str) -> Group | None:
    return next((group for group in run.select(split, "honest") if group.method == method), None)


def _family(run: Run) -> str:
    return run.title.replace("_", "-").capitalize()


def _under(run: Run) -> str:
    seed = run.option("seed", default="unknown")
    return (
        f"{int((~run.is_test).sum())} training and {int(run.is_test.sum())} test environments, "
        f"{_count(run.option('policy_seeds'), 'policy seed', 'policy seeds')}, "
        f"{_count(run.option('model_seeds'), 'model seed', 'model seeds')}, seed {seed}"
    )


def _count(number: Any, one: str, many: str) -> str:
    return f"{'some' if number is None else number} {one if number == 1 else many}"


def _round(number: float) -> str:
    return f"{number / 1e6:g} million" if number >= 1e6 else f"{number:,}".replace(",", " ")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in config.items():
        rows += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return rows


def _plain(value: Any) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and not isinstance(value, bool) else str(value)
