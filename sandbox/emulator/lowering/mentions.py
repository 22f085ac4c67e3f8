"""The registers that instructions mention, collected once for everything that asks for them."""

from collections.abc import Iterable
from typing import NamedTuple

from cudal2_agent.sandbox.emulator.ptx.module import Address, Function, Negated, Operand, Pair, Register, Vector


class Mentions(NamedTuple):
    """Names of the registers of one instruction, as often as they stand there.

    `guard`: its predicate, if any. `first`: of its first operand, `rest`: of the others.
    """

    guard: list[str]
    first: list[str]
    rest: list[str]

    @property
    def all(self) -> list[str]:
        return self.guard + self.first + self.rest


def mentions_of(function: Function) -> list[Mentions]:
    """By instruction."""
    return [
        Mentions(
            guard=[] if each.predicate is None else [each.predicate.name],
            first=_names_of_all(each.operands[:1]),
            rest=_names_of_all(each.operands[1:]),
        )
        for each in function.instructions
    ]


def _names_of_all(operands: Iterable[Operand]) -> list[str]:
    """Most are registers, of which some instructions have hundreds."""
    found: list[str] = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand.name)
        else:
            found += _names_within(operand)
    return found


def _names_within(operand: Operand) -> list[str]:
    match operand:
        case Vector(items=items):
            return _names_of_all(items)
        case Address(base=base, rest=rest):
            return _names_of_all((base, *rest))
        case Pair(first=first, second=second):
            return _names_of_all((first, second))
        case Negated(operand=register):
            return [register.name]
        case _:
            return []
