"""Draws the speed of Verbena relative to its peers, as an SVG picture of a benchmark's rows."""
import itertools
import math
import statistics
from xml.sax.saxutils import escape

# Higher numbers are better for rates, and lower numbers for times.  Rows in other units are not shown, because they do
# not measure a speed.
RATES = {"Gbit/s", "MB/s", "per second", "million messages/s"}
TIMES = {"us", "us, typical"}
# Rows with these peers show how Verbena or TCP scales, and do not compare Verbena with something else.
SCALING = {"Verbena on one", "TCP on one", "one queue pair"}

WIDTH, LEFT, RIGHT = 760, 400, 700  # the bars are between LEFT and RIGHT
TOP, LINE, GROUP = 64, 18, 30
LOWEST, HIGHEST = 1 / 16, 16  # the ends of the logarithmic axis

STYLE = """\
  <style>
    .page { fill: #ffffff }
    .word { fill: #1f2328 }
    .small { fill: #57606a; font-size: 11px }
    .line { stroke: #d0d7de }
    .equal { stroke: #57606a; stroke-width: 2 }
    .bar { fill: #0969da }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 }
      .word { fill: #e6edf3 }
      .small { fill: #9da7b1 }
      .line { stroke: #30363d }
      .equal { stroke: #8b949e }
      .bar { fill: #58a6ff }
    }
  </style>"""


def speed(row):
    """Returns Verbena's speed as a multiple of the peer's speed.  Returns None if the row does not compare speeds."""
    if row.unit not in RATES | TIMES or row.peer_name in SCALING:
        return None
    speeds = [a / b if row.unit in RATES else b / a for a, b in zip(row.ours, row.peer) if a and b]
    return statistics.median(speeds) if speeds else None


def x_of(value):
    share = math.log(min(max(value, LOWEST), HIGHEST) / LOWEST) / math.log(HIGHEST / LOWEST)
    return LEFT + share * (RIGHT - LEFT)


def picture(rows):
    """Returns the text of the picture.  Each row with a speed has a bar from the peer's speed to that of Verbena."""
    shown = [(row, speed(row)) for row in rows]
    shown = [(row, value) for row, value in shown if value is not None]
    parts, y = [], TOP
    for group, members in itertools.groupby(shown, key=lambda pair: pair[0].group):
        y += GROUP
        parts.append(f'  <text class="word" x="20" y="{y - 8}" font-weight="bold">{escape(group)}</text>')
        for row, value in members:
            begin, end = sorted((x_of(1), x_of(value)))
            parts.append(f'  <text class="word" x="20" y="{y + 9}">'
                         f'{escape(f"{row.what}, versus {row.peer_name}")}</text>')
            parts.append(f'  <rect class="bar" x="{begin:.1f}" y="{y}" width="{max(1, end - begin):.1f}" '
                         f'height="{LINE - 7}"/>')
            parts.append(f'  <text class="small" x="{RIGHT + 8}" y="{y + 9}">{value:.2f}</text>')
            y += LINE
    axis = []
    for power in range(round(math.log2(LOWEST)), round(math.log2(HIGHEST)) + 1):
        x, name = x_of(2 ** power), f"{2 ** power}" if power >= 0 else f"1/{2 ** -power}"
        axis.append(f'  <line class="{"equal" if power == 0 else "line"}" x1="{x:.1f}" y1="{TOP}" '
                    f'x2="{x:.1f}" y2="{y}"/>')
        axis.append(f'  <text class="small" x="{x:.1f}" y="{TOP - 6}" text-anchor="middle">{name}</text>')
    title = "Speed of Verbena as a multiple of its peer's (to the right: Verbena is faster)"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 20}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" role="img" aria-labelledby="title">',
        f'  <title id="title">{title}</title>', STYLE,
        f'  <rect class="page" width="{WIDTH}" height="{y + 20}" rx="8"/>',
        f'  <text class="word" x="20" y="28" font-size="15" font-weight="bold">{title}</text>',
        *axis, *parts, "</svg>", ""])
