"""Draws an SVG picture of the queries and the time of a job, by its number of hosts."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 400
TOP, BOTTOM = 70, 340
PANELS = ((70, 360), (440, 690))  # the left and the right edge of each panel

STYLE = """\
  <style>
    .page { fill: #ffffff }
    .word { fill: #1f2328 }
    .small { fill: #57606a; font-size: 11px }
    .line { stroke: #d0d7de }
    .get { stroke: #0969da; fill: #0969da }
    .table { stroke: #1a7f37; fill: #1a7f37 }
    .uncached { stroke: #bc4c00; fill: #bc4c00 }
    polyline { fill: none !important; stroke-width: 2 }
    text.get, text.table, text.uncached { stroke: none; font-size: 11px }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 }
      .word { fill: #e6edf3 }
      .small { fill: #9da7b1 }
      .line { stroke: #30363d }
      .get { stroke: #58a6ff; fill: #58a6ff }
      .table { stroke: #3fb950; fill: #3fb950 }
      .uncached { stroke: #f0883e; fill: #f0883e }
    }
  </style>"""
NAMES = {"get": "cache, a query for each destination", "table": "cache, one GetTable for each host",
         "uncached": "no cache, as Linux"}


def powers(values, base):
    """Returns two exponents.  All values are between the powers of `base` with these exponents."""
    low = math.floor(math.log(min(values), base) + 1e-9)
    high = math.ceil(math.log(max(values), base) - 1e-9)
    return low, max(high, low + 1)


def panel(parts, jobs, key, title, left, right):
    hosts = [job["hosts"] for job in jobs]
    x_low, x_high = powers(hosts, 4)
    y_low, y_high = powers([job[key] for job in jobs], 10)

    def x_of(value):
        return left + (math.log(value, 4) - x_low) / (x_high - x_low) * (right - left)

    def y_of(value):
        return BOTTOM - (math.log10(value) - y_low) / (y_high - y_low) * (BOTTOM - TOP)

    parts.append(f'  <text class="word" x="{left}" y="{TOP - 14}" font-weight="bold">{escape(title)}</text>')
    for power in range(y_low, y_high + 1):
        y = y_of(10 ** power)
        name = f"{10 ** power:,}" if -1 < power < 4 else f"10^{power}" if power >= 4 else f"{10.0 ** power:g}"
        parts.append(f'  <line class="line" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'  <text class="small" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    for power in range(x_low, x_high + 1):
        parts.append(f'  <text class="small" x="{x_of(4 ** power):.1f}" y="{BOTTOM + 16}" '
                     f'text-anchor="middle">{4 ** power:,}</text>')
    for mode in NAMES:
        points = [(x_of(job["hosts"]), y_of(job[key])) for job in jobs if job["mode"] == mode]
        if not points:
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'  <polyline class="{mode}" points="{line}"/>')
        parts += [f'  <circle class="{mode}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]


def picture(jobs):
    """Returns the text of the picture.  Each job is a dict with the keys mode, hosts, queries and seconds."""
    title = "Start of a job in which all hosts connect to all others, in virtual time"
    parts = []
    for (left, right), key, name in zip(PANELS, ("queries", "seconds"), ("queries to the SA", "seconds")):
        panel(parts, jobs, key, f"{name}, by hosts", left, right)
    for i, (mode, name) in enumerate(NAMES.items()):
        parts.append(f'  <text class="{mode}" x="{PANELS[0][0] + 230 * i}" y="{HEIGHT - 18}">{escape(name)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img" aria-labelledby="title">',
        f'  <title id="title">{title}</title>', STYLE,
        f'  <rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'  <text class="word" x="20" y="28" font-size="15" font-weight="bold">{title}</text>',
        *parts, "</svg>", ""])
