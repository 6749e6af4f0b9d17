"""The pages for people: links lead somewhere, files that are named exist, and what should be short is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [page for pattern in ("*.md", "docs/**/*.md", "results/**/*.md") for page in sorted(ROOT.glob(pattern))]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_files_in_the_paper_map_exist():
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs/paper_map.md").read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (ROOT / "src/pdvf" / path).exists()] == []


def test_short_pages_are_short_and_the_commands_come_first():
    words = {page: len((ROOT / page).read_text(encoding="utf-8").split()) for page in ("README.md", "docs/results.md")}
    assert words["README.md"] <= 700
    assert words["docs/results.md"] <= 1500
    first = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert all(command in first for command in ("make demo", "make test", "pdvf check-family", "pdvf run"))
