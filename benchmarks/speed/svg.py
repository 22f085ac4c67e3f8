"""SVG elements for pictures of results: text, lines, bars and dots on white, and a logarithmic axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

INK, FAINT, RULE, BAND = "#222", "#666", "#ddd", "#f3f3f0"
OURS = "#d1662b"


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "start", colour: str = INK, bold: bool = False) -> str:
    style = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (' font-weight="bold"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{style} fill="{colour}">{escape(words, quote=False)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = RULE, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def dot(x: float, y: float, radius: float, colour: str, edge: str = "none") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}" stroke="{edge}"/>'


def document(width: float, height: float, body: Sequence[str]) -> str:
    size = f'width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:g} {height:g}" font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *body, "</svg>\n"])


@dataclass(frozen=True)
class LogAxis:
    """A horizontal logarithmic axis from `low` at `left` to `high` at `right`."""

    low: float
    high: float
    left: float
    right: float

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * log10(value / self.low) / log10(self.high / self.low)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 times the powers of ten within the axis."""
        for power in range(floor(log10(self.low)), floor(log10(self.high)) + 1):
            yield from (tick for step in (1, 2, 5) if self.low <= (tick := step * 10.0**power) <= self.high)
