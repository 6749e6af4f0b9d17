"""The model card of a file, for people: Markdown from the `card` in its header. Needs nothing but Python."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any


def markdown(about: Mapping[str, Any]) -> str:
    """The card of a file's header; what a file does not say is left out, or said to be missing."""
    card = about.get("card") or {}
    if not card:
        return f"# {_text(about['family'])}\n\nThe file has no model card: it was exported before there were any.\n"
    trained, results = card.get("trained_on") or {}, card.get("results") or []
    lines = [f"# {_text(card.get('method'))} for {_text(about['family'])}", "", f"{_text(card.get('text'))}.", ""]
    lines += ["## Trained on", ""]
    ranges = [f"{_text(name)} {_ends(ends)}" for name, ends in (trained.get("contexts") or {}).items()]
    facts = {
        "environments": trained.get("environments"),
        "environment steps": trained.get("environment_steps"),
        "engine": trained.get("engine"),
        "seed": about.get("seed"),
    }
    lines += [f"- hidden context: {'; '.join(ranges)}"] if ranges else []
    lines += [f"- {name}: {_text(value)}" for name, value in facts.items() if value is not None]
    lines += ["", "## Results", "", *_table(results), "", "## Limits", ""]
    lines += [f"- {_text(limit)}" for limit in card.get("limits") or ["none are stated"]]
    lines += ["", "## Use", ""]
    lines += [f"- observation: {about['observation']} numbers; action: {about['action']} numbers"]
    if about.get("control_step") is not None:
        lines += [f"- one step of control: {about['control_step']:g} s"]
    lines += [f"- licence: {_text(card.get('licence'))}", f"- made with pdvf {_text(about.get('pdvf'))}"]
    lines += [f"- command: `{_line(card.get('command')).replace('`', chr(39))}`"] if card.get("command") else []
    return "\n".join(lines) + "\n"


def _table(results: list[Mapping[str, Any]]) -> list[str]:
    if not results:
        return ["Not measured: the run has not played the model in test environments."]
    rows = [
        "| test environment | mean return | 95 % interval over episodes | episodes |",
        "| --- | ---: | --- | ---: |",
    ]
    for row in results:
        ends = row.get("low"), row.get("high")
        between = "" if ends[0] is None or ends[0] == ends[1] else _ends(ends)
        cells = _text(row.get("environment")), _text(row.get("mean")), between, _text(row.get("episodes"))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _ends(ends: Any) -> str:
    low, high = map(_text, ends)
    return low if low == high else f"[{low}, {high}]"


def _text(value: Any) -> str:
    """As text in Markdown, whatever a stranger's file has put there: no link, no tag, no cell of a table."""
    return html.escape(_line(value), quote=False).translate({ord(c): f"&#{ord(c)};" for c in "]|`"})


def _line(value: Any) -> str:
    """In one line."""
    value = f"{value:.4g}" if isinstance(value, float) else value
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))
