"""Plots: pictures of a check as inline SVG. Colours come from the page, so they fit light and dark."""

from __future__ import annotations

import html
import math
import statistics

from .check import Plot, shorten

WIDTH, LINE, LEFT, RIGHT, TOP, BOTTOM = 720, 26, 220, 90, 8, 34


def svg(plot: Plot) -> str:
    """Return a picture; nothing where there is nothing to show."""
    series = [(label, [v for v in values if v >= 0]) for label, values in plot.series]
    series = [(label, values) for label, values in series if values]
    if not series:
        return ""
    return _bars(plot, series) if plot.kind == "bars" else _dots(plot, series)


def _frame(plot: Plot, rows: int, body: list[str]) -> str:
    height = TOP + rows * LINE + BOTTOM
    title = html.escape(f"{plot.title} ({plot.unit})")
    return "".join(
        [
            f'<svg role="img" viewBox="0 0 {WIDTH} {height}" aria-label="{title}">',
            f"<title>{title}</title>",
            *body,
            "</svg>",
        ]
    )


def _label(text: str, at: float) -> str:
    return (
        f'<text class="label" x="{LEFT - 10}" y="{at + 4:.1f}" text-anchor="end">{html.escape(text)}</text>'
    )


def _step(most: float) -> float:
    """Return a round distance of marks on an axis up to `most`: 1, 2 or 5 and a power of ten."""
    rough = most / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= rough)


def _bars(plot: Plot, series: list[tuple[str, list[float]]]) -> str:
    most = max(values[0] for _, values in series) or 1.0
    body = []
    for i, (label, values) in enumerate(series):
        y = TOP + (i + 0.5) * LINE
        width = (WIDTH - LEFT - RIGHT) * values[0] / most
        body.append(_label(label, y))
        body.append(f'<rect class="mark" x="{LEFT}" y="{y - 8:.1f}" width="{width:.1f}" height="16"/>')
        body.append(f'<text class="value" x="{LEFT + width + 6:.1f}" y="{y + 4:.1f}">{values[0]:g}</text>')
    return _frame(plot, len(series), body)


def _dots(plot: Plot, series: list[tuple[str, list[float]]]) -> str:
    times = plot.unit == "s"
    every = [value for _, values in series for value in values]
    low, high = (math.floor(math.log10(max(min(every), 1e-7))), math.ceil(math.log10(max(*every, 1e-6))))
    if not times:
        low, high = 0, 1
    high = max(high, low + 1)
    step = _step(max(every) or 1.0)
    count = math.ceil((max(every) or 1.0) / step)
    most = count * step

    def x(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low) if times else value / most
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    bottom = TOP + len(series) * LINE
    ticks = [10.0**n for n in range(low, high + 1)] if times else [step * n for n in range(count + 1)]
    body = []
    for tick in ticks:
        text = shorten(tick) if times else f"{tick:.3g}"
        body.append(f'<line class="grid" x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{bottom}"/>')
        body.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>'
        )
    for i, (label, values) in enumerate(series):
        y = TOP + (i + 0.5) * LINE
        body.append(_label(label, y))
        body += [f'<circle class="dot" cx="{x(value):.1f}" cy="{y:.1f}" r="4"/>' for value in values[:400]]
        middle = statistics.median(values)
        at = x(middle)
        body.append(f'<line class="middle" x1="{at:.1f}" y1="{y - 10:.1f}" x2="{at:.1f}" y2="{y + 10:.1f}"/>')
        told = shorten(middle) if times else f"{middle:.3g}"
        body.append(f'<text class="value" x="{WIDTH - RIGHT + 10}" y="{y + 4:.1f}">{told}</text>')
    return _frame(plot, len(series), body)
