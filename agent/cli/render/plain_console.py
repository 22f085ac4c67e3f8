"""Rich's console behind the filter of printed text."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cudal2_agent.agent.cli.render.plain_text import plain


class PlainConsole(Console):
    """Rich's console on stderr. What it draws is filtered, and its own sequences are not."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)
