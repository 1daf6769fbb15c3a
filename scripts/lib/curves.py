# SPDX-License-Identifier: Apache-2.0
"""Draws loss curves as one SVG file: no library, so that it works wherever Python does.

curves(path, title, series, notes) with series = [(name, colour, [(x, y), ...]), ...]; x in tokens, y in
nats per token. Marks (x, text) become vertical lines: what happened to the sites at that moment."""
import html


def _ticks(low, high, count):
    span = max(high - low, 1e-9)
    step = 10 ** __import__("math").floor(__import__("math").log10(span / count))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= count:
            step *= factor
            break
    first = -(-low // step) * step
    ticks = []
    while first <= high + 1e-9:
        ticks.append(first)
        first += step
    return ticks


def _tokens(x):
    return f"{x / 1e6:.2f}M" if x >= 1e5 else f"{x:.0f}"


def curves(path, title, series, marks=(), width=960, height=520):
    left, right, top, bottom = 64, 24, 48, 56
    points = [p for _, _, line in series for p in line]
    if not points:
        raise SystemExit("curves: there is nothing to draw")
    x_high = max(p[0] for p in points)
    y_low, y_high = min(p[1] for p in points), max(p[1] for p in points)
    pad = 0.04 * (y_high - y_low + 1e-9)
    y_low, y_high = y_low - pad, y_high + pad

    def sx(x):
        return left + (width - left - right) * x / max(x_high, 1)

    def sy(y):
        return top + (height - top - bottom) * (y_high - y) / (y_high - y_low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           '<rect width="100%" height="100%" fill="#ffffff"/>',
           f'<text x="{left}" y="26" font-size="17" fill="#111">{html.escape(title)}</text>']
    for y in _ticks(y_low, y_high, 7):
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{sy(y):.1f}" y2="{sy(y):.1f}" stroke="#e4e4e4"/>'
                   f'<text x="{left - 8}" y="{sy(y) + 4:.1f}" text-anchor="end" fill="#444">{y:g}</text>')
    for x in _ticks(0, x_high, 8):
        out.append(f'<text x="{sx(x):.1f}" y="{height - bottom + 20}" text-anchor="middle" fill="#444">'
                   f'{_tokens(x)}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 14}" text-anchor="middle" fill="#444">'
               'tokens merged</text>'
               f'<text x="16" y="{(top + height - bottom) / 2}" fill="#444" text-anchor="middle" '
               f'transform="rotate(-90 16 {(top + height - bottom) / 2})">loss, nats per token</text>')
    for i, (x, text) in enumerate(marks):
        out.append(f'<line x1="{sx(x):.1f}" x2="{sx(x):.1f}" y1="{top}" y2="{height - bottom}" stroke="#bbb" '
                   'stroke-dasharray="3 4"/>'
                   f'<text x="{sx(x) + 4:.1f}" y="{top + 14 + 15 * (i % 6)}" font-size="11" fill="#666">'
                   f'{html.escape(text)}</text>')
    for i, (name, colour, line) in enumerate(series):
        d = " ".join(f"{'M' if j == 0 else 'L'}{sx(x):.1f},{sy(y):.1f}" for j, (x, y) in enumerate(line))
        out.append(f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = height - bottom - 16 - 18 * i
        out.append(f'<line x1="{left + 12}" x2="{left + 40}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" '
                   f'stroke-width="3"/><text x="{left + 48}" y="{y}" fill="#111">{html.escape(name)}</text>')
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")
