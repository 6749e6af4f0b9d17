"""Checks a folder of HTML pages: every link inside it leads somewhere, and no page needs the network.

`python tools/check_site.py FOLDER`.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ASSETS = {"script", "link", "img", "iframe", "source", "video", "audio", "object", "embed"}


class Page(HTMLParser):
    """What a page leads to, what it loads, and what on it can be led to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = {""}
        self.pictures_without_words = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes ids and addresses."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        self.pictures_without_words += tag == "img" and not given.get("alt")
        address = given.get("href") or given.get("src") or given.get("data")
        if address and tag in ASSETS and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.loaded.add(address)
        elif address:
            self.links.add(address)


def faults(folder: Path) -> list[str]:
    """What is wrong, one line each."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.glob("**/*.html"))}
    found = [] if pages else [f"{folder} has no pages"]
    for path, page in pages.items():
        where = path.relative_to(folder.resolve())
        found += [f"{where}: {page.pictures_without_words} pictures without words"] * bool(page.pictures_without_words)
        for address in sorted(page.links | page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                remote = parts.netloc and address in page.loaded
                found += [f"{where}: loads {address}"] * bool(remote)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.path.startswith("/"):
                target = folder.resolve() / unquote(parts.path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{where}: {address} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: {address} has no such place on its page")
    return found


def main(words: list[str]) -> int:
    """Prints what is wrong."""
    if len(words) != 1:
        print("usage: python tools/check_site.py FOLDER")
        return 2
    found = faults(Path(words[0]))
    print("\n".join(found) or f"{words[0]}: every link leads somewhere, nothing is loaded from elsewhere")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
