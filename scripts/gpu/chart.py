# SPDX-License-Identifier: Apache-2.0
"""The chart of README.md: memory of trainings as bars, from recorded runs. Colours and sizes are those of `bucketpool plan --plot`."""

import os
from html import escape

import claims

FILE = os.path.join("docs", "images", "measured-memory.svg")
WIDTH, LEFT, RIGHT, BAR, STEP = 640, 228, 520, 20, 26
OTHERS, OURS, PEAK, TEXT, QUIET = "#a8b8c8", "#0072b2", "#9e0142", "#222222", "#606060"
LABELS = {"plain": "as it is", "expandable": "expandable segments", "pool": "bucketpool: pool of buckets", "whole": "bucketpool: whole step"}


def text(x, y, words, colour=TEXT, more=""):
    return f'<text x="{x:g}" y="{y:g}"{more} fill="{colour}">{escape(words)}</text>'


def drawn(found):
    """The picture. Computed bars are outlines; the dashed line is what is live at the peak."""
    trainings, lines, y = list(found.trainings()), [], 80
    most = max((size for _, known, _, _ in trainings for rows in known.values() for _, size, _ in rows), default=1)
    scale = (RIGHT - LEFT) / most
    for training, known, peak, device in trainings:
        lines.append(text(16, y, f"{training.name}, {device}", more=' font-weight="bold"'))
        top = y = y + 10
        for kind, rows in known.items():
            for name, size, computed in rows:
                ours = kind in ("pool", "whole")
                bold = ' font-weight="bold"' if ours else ""
                fill = f'fill="none" stroke="{OURS}" stroke-width="2" stroke-dasharray="2 2"' if computed else f'fill="{OURS if ours else OTHERS}"'
                lines += [text(LEFT - 8, y + 15, LABELS.get(kind, claims.LABELS.get(name, name)), more=bold + ' text-anchor="end"'),
                          f'<rect x="{LEFT}" y="{y:g}" width="{size * scale:.2f}" height="{BAR}" {fill}/>',
                          text(LEFT + size * scale + 8, y + 15, claims.gib(size) + (" computed" if computed else ""), more=bold)]
                y += STEP
        x = LEFT + peak * scale
        lines += [f'<line x1="{x:.2f}" y1="{top - 3:g}" x2="{x:.2f}" y2="{y + 1:g}" stroke="{PEAK}" stroke-width="1.5" stroke-dasharray="7 4"/>',
                  text(x, y + 15, f"live at the peak: {claims.gib(peak)}", PEAK, ' text-anchor="middle"')]
        y += 56
    height = y - 24
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        "<style>@media (prefers-color-scheme: dark) { :root { filter: invert(0.92) hue-rotate(180deg); } }</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        text(16, 30, "Memory of a rank, GiB", more=' font-size="17" font-weight="bold"'),
        text(16, 52, "reserved by PyTorch, and the pool; measured, dotted outlines computed", QUIET), *lines, "</svg>"]) + "\n"
