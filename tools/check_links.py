"""Check that every relative link of the pages leads to a file, and every anchor to a heading.

Called by ``make docs`` and by the tests. Standard library only.
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]", "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken(root: pathlib.Path = ROOT) -> list[str]:
    """Return one sentence for each link that leads nowhere."""
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    found = []
    for page in sorted(pages):
        for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            where = page.relative_to(root)
            if not target.exists():
                found.append(f"{where}: no such file: {link}")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8")):
                found.append(f"{where}: no such heading: {link}")
    return found


if __name__ == "__main__":
    sentences = broken()
    print("\n".join(sentences) if sentences else "every link leads somewhere")
    sys.exit(bool(sentences))
