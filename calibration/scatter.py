"""A log-log scatter plot of measured and simulated times, as an SVG of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from calibration.comparison import Comparison

_SIZE, _MARGIN = 640, 60
_COLOURS = (
    "#1b6ca8", "#c8553d", "#4f772d", "#7b2d8b", "#b8860b", "#2a9d8f", "#d1495b", "#5f5f5f",
)  # fmt: skip


def scatter_svg(comparisons: Sequence[Comparison], title: str) -> str:
    """Every modelled row as a dot with its interval; the diagonal is a perfect prediction."""
    points = [c for c in comparisons if c.simulated_us is not None]
    times = [t for c in points for t in (c.row.measured_us, c.simulated_us or 1.0)] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)

    def place(us: float) -> float:
        share = (math.log10(us) - low) / (high - low)
        return _MARGIN + min(max(share, 0.0), 1.0) * (_SIZE - 2 * _MARGIN)

    kinds = sorted({c.row.kind for c in points})
    colour = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    width, height = _SIZE + 190, max(_SIZE, 40 + 16 * len(kinds))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{_MARGIN}" y="24" '
        f'font-size="14">{escape(title)}</text>',
    ]
    for decade in range(low, high + 1):
        at = place(10.0**decade)
        parts.append(
            f'<path d="M{at:.1f} {_MARGIN}V{_SIZE - _MARGIN}M{_MARGIN} {_SIZE - at:.1f}'
            f'H{_SIZE - _MARGIN}" stroke="#ddd"/>'
            f'<text x="{at:.1f}" y="{_SIZE - _MARGIN + 16}" text-anchor="middle">{10.0**decade:g}'
            f'</text><text x="{_MARGIN - 6}" y="{_SIZE - at + 4:.1f}" text-anchor="end">'
            f"{10.0**decade:g}</text>"
        )
    parts.append(
        f'<path d="M{_MARGIN} {_SIZE - _MARGIN}L{_SIZE - _MARGIN} {_MARGIN}" stroke="#888"/>'
        f'<text x="{_SIZE / 2:g}" y="{_SIZE - 18}" text-anchor="middle">measured (us)</text>'
        f'<text transform="translate(16 {_SIZE / 2:g}) rotate(-90)" text-anchor="middle">'
        "simulated (us), 80% interval</text>"
    )
    for c in points:
        x, y = place(c.row.measured_us), _SIZE - place(c.simulated_us or 1.0)
        ends = (_SIZE - place(c.low_us or 1.0), _SIZE - place(c.high_us or 1.0))
        shade = colour[c.row.kind]
        parts.append(
            f'<path d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{shade}" opacity="0.35"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{shade}"><title>'
            f"{escape(c.row.row)} {escape(c.row.kind)}: {c.row.measured_us:g} / "
            f"{c.simulated_us:.4g} us</title></circle>"
        )
    for i, kind in enumerate(kinds):
        y = 44 + 16 * i
        parts.append(
            f'<circle cx="{_SIZE}" cy="{y - 4}" r="4" fill="{colour[kind]}"/>'
            f'<text x="{_SIZE + 10}" y="{y}">{escape(kind)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])
