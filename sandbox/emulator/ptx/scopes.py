"""What a name denotes: nested scopes of a function, then the module, then PTX's predefined names."""

from collections.abc import Sequence
from itertools import product

from cudal2_agent.sandbox.emulator.ptx.lexer import shown
from cudal2_agent.sandbox.emulator.ptx.module import Immediate, Label, Operand, PtxError, Register, Sink, Special, Unsupported

MAX_NESTING = 64
MAX_NAME_CHARS = 16_384  # mangled names of CUTLASS kernels take some thousands

_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_SCALARS = ("laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid")
_MASKS = tuple(f"lanemask_{which}" for which in ("eq", "le", "lt", "ge", "gt"))
_CLUSTER = ("is_explicit_cluster", "cluster_ctarank", "cluster_nctarank")
_CLOCKS = ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi")
_SHARED = ("total_smem_size", "aggr_smem_size", "dynamic_smem_size")
_RESERVED = tuple(f"reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1"))
_NUMBERED = tuple(f"{name}{i}" for name, count in (("pm", 8), ("envreg", 32)) for i in range(count))
_SPECIALS = (
    *_VECTORS,
    *(f"{name}.{axis}" for name, axis in product(_VECTORS, "xyzw")),
    *(_SCALARS + _MASKS + _CLUSTER + _CLOCKS + _SHARED + _RESERVED + _NUMBERED),
    *(f"pm{i}_64" for i in range(8)),
    "current_graph_exec",
)
_PREDEFINED: dict[str, Operand] = {
    **{f"%{name}": Special(name) for name in _SPECIALS},
    "WARP_SZ": Immediate(32),
    "_": Sink(),
}


class NameScope:
    """Names declared between two braces.

    `mark`: what makes them unique in their function; empty outside inner scopes. `any_form`: as of `parse`.
    """

    def __init__(self, outer: "NameScope | None" = None, mark: str = "", depth: int = 0, *, any_form: bool = False) -> None:
        self.outer = outer
        self.mark = mark
        self.any_form = any_form
        self._depth = depth
        self._names: dict[str, Operand] = dict(_PREDEFINED) if outer is None else {}
        self._registers: dict[str, str] = {}  # types of those that nothing has named yet

    def inner(self, number: int, line: int) -> "NameScope":
        """The scope inside this one, of its number in its function; a function's own is 0. Raises: PtxError if too deep."""
        if self._depth == MAX_NESTING:
            raise PtxError(f"scopes nested more than {MAX_NESTING} deep", line)
        return NameScope(self, f"@{number}" if number else "", self._depth + 1, any_form=self.any_form)

    def find(self, name: str) -> Operand | None:
        """What a name means here."""
        scope: NameScope | None = self
        while scope is not None:
            operand = scope._names.get(name)
            if operand is not None:
                return operand
            if name in scope._registers:
                return scope._named(name)
            scope = scope.outer
        return None

    def _named(self, name: str) -> Register:
        """A register of this scope that is named for the first time: functions declare many more than they use."""
        register = self._names[name] = Register(name + self.mark, self._registers.pop(name))
        return register

    def declare(self, name: str, operand: Operand, line: int) -> None:
        """Raises: PtxError for a name that is taken in this very scope, or too long."""
        self._require_new(name, line)
        self._names[name] = operand

    def declare_registers(self, names: Sequence[str], kind: str, line: int) -> None:
        """Raises: as `declare`."""
        for name in names:
            self._require_new(name, line)
            self._registers[name] = kind

    def _require_new(self, name: str, line: int) -> None:
        if name in self._names or name in self._registers or name in _PREDEFINED:
            raise PtxError(f"{shown(name)} is declared twice", line)
        if len(name) > MAX_NAME_CHARS:
            raise PtxError(f"a name of {len(name)} characters; the most is {MAX_NAME_CHARS}", line)

    def register(self, name: str, line: int) -> Register:
        """Raises: PtxError."""
        operand = self.find(name)
        if not isinstance(operand, Register):
            raise PtxError(f"{shown(name)} is not a register", line)
        return operand

    def label(self, name: str, line: int) -> Label:
        """Raises: PtxError."""
        operand = self.find(name)
        if not isinstance(operand, Label):
            raise PtxError(f"{shown(name)} is not a label", line)
        return operand

    def operand(self, name: str, line: int) -> Operand:
        """Raises: PtxError for a name that nothing declares; Unsupported for a component of a register."""
        operand = self.find(name)
        if operand is not None:
            return operand
        base, _, component = name.partition(".")
        whole = self.find(base)
        if component and isinstance(whole, Register):
            if self.any_form:
                return whole
            raise Unsupported(f"component {shown(name)}", line)
        raise PtxError(f"{shown(name)} is not declared", line)
