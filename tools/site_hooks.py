"""What `mkdocs.yml` cannot say of the documentation site.

The front page is the README. A page may link to any file of the repository, as it does where the repository is
browsed: files outside `docs/` that are linked to come with the site, text as a page. A folder in the navigation stands
for its pages. The API reference has a page for each name of `pdvf.__all__` and for what belongs to it, and notebooks
are pages with the outputs that are saved in them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

import pdvf

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
SHOWN = {".py": "python", ".json": "json", ".toml": "toml", ".cff": "yaml", "": "text"}
"""Text that is a page on the site, by the language of its highlighting."""
REFERENCE = {
    "families": ("Families", ("pdvf.families.GymFamily", "pdvf.families.MujocoModel", "pdvf.families.base")),
    "methods": ("Methods and agents", ("pdvf.methods.base",)),
    "options": ("Options", ("pdvf.config.Config", "pdvf.config.options")),
}
"""Pages of the API reference beside those of the names in `pdvf.__all__`."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills in folders and the API reference."""
    for section in config.nav or []:
        for entries in section.values():
            entries[:] = [unfolded for entry in entries for unfolded in _unfolded(entry, str(config.nav))]
    pages = [{text: f"reference/{name}.md"} for name, text in reference_names().items()]
    config.nav = [*(config.nav or []), {"API": [{"Overview": "reference/index.md"}, *pages]}]
    return config


def _unfolded(entry: Any, told: str) -> list[Any]:
    """A folder as its pages, `*` as the pages of `docs/` itself that the navigation does not name."""
    if entry == "*":
        return [page.name for page in sorted(DOCS.glob("*.md")) if page.name not in told]
    if isinstance(entry, dict) and (folder := DOCS / next(iter(entry.values()))).is_dir():
        first = place_of(_target(folder / "any", "."))
        pages = [first, *(f"{folder.name}/{page.name}" for page in sorted(folder.glob("[!R]*.md")))]
        return [{next(iter(entry)): pages}]
    return [entry]


def reference_names() -> dict[str, str]:
    """Pages of the API reference by name, with their titles."""
    return {name: f"pdvf.{name}" for name in pdvf.__all__} | {name: title for name, (title, _) in REFERENCE.items()}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what is made or lies outside `docs/`."""
    for name, text in _reference_pages():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        files.remove(files.src_uris[str(notebook.relative_to(DOCS))])
        for place, content in _notebook(notebook):
            files.append(File.generated(config, place, content=content))
    for path in _linked():
        if path.is_dir():
            listed = "".join(f"- [{_title(inside)}]({inside.name})\n" for inside in _inside(path))
            content: Any = f"# {path.name.capitalize()}\n\n{listed}"
        elif path.suffix == ".md":
            content = path.read_text(encoding="utf-8")
        elif path.suffix in SHOWN:
            language = SHOWN[path.suffix]
            content = f"# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n````{language}\n{path.read_text()}\n````\n"
        else:
            content = path.read_bytes()
        files.append(File.generated(config, place_of(path), content=content))
    return files


def _reference_pages() -> Iterator[tuple[str, str]]:
    for name in pdvf.__all__:
        yield name, f"---\ntitle: pdvf.{name}\n---\n\n::: pdvf.{name}\n    options: {{heading_level: 1}}\n"
    for name, (title, modules) in REFERENCE.items():
        yield name, f"# {title}\n\n" + "".join(f"::: {module}\n\n" for module in modules)
    listed = "".join(f"- [{title}]({name}.md)\n" for name, title in reference_names().items())
    yield "index", f"# API\n\nWhat `import pdvf` offers, and what it is made of.\n\n{listed}"


def _notebook(path: Path) -> Iterator[tuple[str, Any]]:
    """The page of a notebook and its pictures."""
    text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    for name, data in resources["outputs"].items():
        text = text.replace(f"]({name})", f"]({path.stem}_{name})")
        yield f"notebooks/{path.stem}_{name}", data
    yield f"notebooks/{path.stem}.md", text


def _title(path: Path) -> str:
    """The heading of a page, the name of any other file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") if path.suffix == ".md" else path.name


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))


def _linked() -> list[Path]:
    """The README, and files and folders that are no pages of `docs/` and that pages lead to, directly or not."""
    waiting, found = [*DOCS.glob("**/*.md"), ROOT / "README.md"], {ROOT / "README.md"}
    while waiting:
        page = waiting.pop()
        if page.is_dir():
            targets = _inside(page)
        else:
            text = page.read_text(encoding="utf-8") if page.suffix == ".md" else ""
            targets = [_target(page, link) for link in LINK.findall(text)]
        for path in targets:
            ready = path.is_relative_to(DOCS) and path.is_file()
            if path.exists() and path not in found and not ready and path.is_relative_to(ROOT):
                found.add(path)
                waiting.append(path)
    return sorted(found)


def _target(page: Path, link: str) -> Path:
    path = (page.parent / link).resolve()
    return path / "README.md" if (path / "README.md").exists() else path


def place_of(path: Path) -> str:
    """Where a file or folder of the repository is among the sources of the site."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(DOCS) and path.is_file():
        return f"{path.relative_to(DOCS).with_suffix('.md' if path.suffix == '.ipynb' else path.suffix)}"
    place = str(path.relative_to(DOCS) if path.is_relative_to(DOCS) else Path("repository") / path.relative_to(ROOT))
    return f"{place}/index.md" if path.is_dir() else f"{place}.md" if path.suffix in SHOWN else place


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to where the files are on the site."""
    del config, files
    place = page.file.src_uri
    if place.startswith(("reference/", "notebooks/")):
        return markdown
    path = ROOT / "README.md" if place == "index.md" else DOCS / place
    if place.startswith("repository/"):
        path = ROOT / place.removeprefix("repository/")

    def led(found: re.Match[str]) -> str:
        target = _target(path, found[1])
        if not target.exists():
            return found[1]
        return posixpath.relpath(place_of(target), posixpath.dirname(place) or ".")

    return LINK.sub(led, markdown)
