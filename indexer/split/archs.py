"""The GPU architectures of a piece, from the names in it."""

import re

_KNOWN = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
_NAMED = re.compile(r"(?:(?<![A-Za-z0-9])(?:sm|SM)|Sm)_?(\d{2,3})[af]?(?![0-9])")


def archs_in(text: str) -> tuple[str, ...]:
    """Tags of the architectures that a text names, in ascending order."""
    named = {f"sm_{number}" for number in _NAMED.findall(text)}
    return tuple(tag for tag in _KNOWN if tag in named)


def piece_archs(of_path: tuple[str, ...], symbol: str, text: str) -> tuple[str, ...]:
    """The architectures of the path, else of the symbol, else the only one that the text names."""
    if of_path:
        return of_path
    if of_symbol := archs_in(symbol):
        return of_symbol
    of_text = archs_in(text)
    return of_text if len(of_text) == 1 else ()
