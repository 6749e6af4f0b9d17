"""The pages for people: links lead somewhere, files that are named exist, and what should be short is."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pdvf
from pdvf.families import GymFamily, MujocoModel
from pdvf.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [page for pattern in ("*.md", "docs/**/*.md", "results/**/*.md") for page in sorted(ROOT.glob(pattern))]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
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


def test_every_method_has_a_page_with_its_facts_and_results():
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "methods").glob("*.md")))
    assert [name for name in METHODS if f"<!-- table: method {name} -->" not in pages] == []
    headings = ("Overview", "Usage", "Details", "Results", "Limits")
    for name in ("pd-vf", "pd-vf-plus", "ppo-all", "ppo-dyn", "rl2", "maml", "nn", "kmeans", "rma"):
        assert anchors(ROOT / "docs" / "methods" / f"{name}.md") >= {heading.lower() for heading in headings}


@pytest.mark.parametrize("family", [GymFamily, MujocoModel], ids=lambda kind: kind.__name__)
def test_every_field_of_a_family_is_documented(family):
    rows = re.findall(r"^\|`(\w+)`\|.+\|(.*)\|$", (ROOT / "docs/your_own_family.md").read_text(encoding="utf-8"), re.M)
    told = {name for name, words in rows if words}
    assert [field.name for field in dataclasses.fields(family) if field.name not in told] == []


def test_the_navigation_names_folders_and_pages_that_are_there():
    told = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    made = {"index.md"} | {f"notebooks/{page.stem}.md" for page in ROOT.glob("docs/notebooks/*.ipynb")}
    pages = re.findall(r"[\w./-]+\.md", told)
    assert [
        page
        for page in pages
        if page not in made
        and not (ROOT / "docs" / page).exists()
        and not (ROOT / page.removeprefix("repository/")).exists()
    ] == []
    folders = set(re.findall(r": (\w+)$", told, re.MULTILINE)) | {Path(page).parts[0] for page in pages}
    assert {page.parent.name for page in ROOT.glob("docs/*/*.md")} <= folders
    methods = {f"methods/{page.name}" for page in ROOT.glob("docs/methods/*.md")}
    assert methods <= set(pages)


@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="the extra docs is not installed")
@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_every_link_leads_somewhere(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    made = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    checked = subprocess.run(
        [sys.executable, "tools/check_site.py", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    for name in pdvf.__all__:
        page = (tmp_path / "site" / "reference" / f"{name}.html").read_text(encoding="utf-8")
        assert f'id="pdvf.{name}"' in page or f'id="pdvf.api.{name}"' in page or f"{name}</code>" in page, name


def test_a_site_with_faults_is_found_out(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a> <a href="b.html#gone">x</a> <a href="c.html">x</a> <a href="https://a.b">x</a>'
        '<img src="b.html"><script src="https://a.b/c.js"></script>'
    )
    (tmp_path / "b.html").write_text('<p id="there">')
    checked = [sys.executable, str(ROOT / "tools" / "check_site.py"), str(tmp_path)]
    found = subprocess.run(checked, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stdout.splitlines() == [
        "a.html: 1 pictures without words",
        "a.html: b.html#gone has no such place on its page",
        "a.html: c.html leads nowhere",
        "a.html: loads https://a.b/c.js",
    ]
