"""Page: a report as one HTML page that needs nothing else, in light and in dark."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .check import FAILED, HELD, NOT_TRIED, Check, Table, shorten
from .plots import svg
from .report import Report

STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c2126; --soft: #5b6670; --line: #d8dde2;
  --held: #1a7f4b; --failed: #c0322b; --open: #94660a; --mark: #2f6db5; }
@media (prefers-color-scheme: dark) { :root { --back: #15191d; --ink: #e6eaee; --soft: #9aa5af;
  --line: #343c44; --held: #4cc38a; --failed: #ff7a72; --open: #e0ac4a; --mark: #6ea8ec; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 58rem; padding: 1.5rem 1rem 4rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
.held { color: var(--held); } .failed { color: var(--failed); } .open { color: var(--open); }
.said { font-size: 1.15rem; font-weight: 600; }
.soft, caption, figcaption { color: var(--soft); font-size: .9rem; text-align: left; }
.scroll, figure { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .9rem .25rem 0; text-align: left;
  vertical-align: top; }
svg { width: 100%; min-width: 34rem; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick { fill: var(--soft); }
.grid { stroke: var(--line); } .mark { fill: var(--mark); }
.dot { fill: var(--mark); fill-opacity: .55; } .middle { stroke: var(--ink); stroke-width: 2; }
pre { border: 1px solid var(--line); padding: .7rem; overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
"""


def page(report: Report) -> str:
    """Return the page."""
    kind = "failed" if not report.fine else "open" if report.open or report.quick else "held"
    body = [
        f"<h1>Qualification of {_text(report.subject)}</h1>",
        f'<p class="said {kind}">{_text(report.verdict)}</p>',
        _table(Table("", ("", ""), tuple(report.facts)), heads=False),
        f'<p class="soft">Command: <code>{_text(report.command)}</code></p>',
        _summary(report.checks),
        *(_check(check) for check in report.checks),
    ]
    body += [f'<p class="failed">could not be removed: {_text(path)}</p>' for path in report.left]
    if report.rows:
        body.append("<h2>For docs/qualification.md</h2>")
        body += [f"<pre>{_text(row)}</pre>" for row in report.rows]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Qualification of {_text(report.subject)}</title><style>{STYLE}</style></head>\n<body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _kind(check: Check) -> str:
    return {HELD: "held", FAILED: "failed"}.get(check.verdict, "open")


def _summary(checks: Sequence[Check]) -> str:
    rows = "".join(
        f'<tr><td class="{_kind(c)}">{_text(c.verdict)}</td><td>{_text(c.title)}</td>'
        f"<td>{_text(c.found)}</td></tr>"
        for c in checks
    )
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def _check(check: Check) -> str:
    parts = [f'<h2><span class="{_kind(check)}">{_text(check.verdict)}</span>: {_text(check.title)}</h2>']
    if check.expected:
        parts.append(f'<p class="soft">Expected: {_text(check.expected)}</p>')
    took = "" if check.verdict == NOT_TRIED else f' <span class="soft">({shorten(check.seconds)})</span>'
    parts.append(f"<p>Found: {_text(check.found)}{took}</p>")
    notes = [note for note in check.notes if note != check.found]
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>")
    if check.remedy:
        parts.append(f"<p>To do: {_text(check.remedy)}</p>")
    for plot in check.plots:
        picture = svg(plot)
        if picture:
            caption = f"{plot.title}, {plot.unit}" + (
                "; the line, and the number beside it, is the median" if plot.kind == "dots" else ""
            )
            parts.append(f"<figure>{picture}<figcaption>{_text(caption)}</figcaption></figure>")
    parts += [_table(table) for table in check.tables if table.rows]
    return "\n".join(parts)


def _table(table: Table, heads: bool = True) -> str:
    top = "".join(f"<th>{_text(head)}</th>" for head in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    caption = f"<caption>{_text(table.title)}</caption>" if table.title else ""
    head = f"<thead><tr>{top}</tr></thead>" if heads else ""
    return f'<div class="scroll"><table>{caption}{head}<tbody>{rows}</tbody></table></div>'


def _text(text: str) -> str:
    return html.escape(text)
