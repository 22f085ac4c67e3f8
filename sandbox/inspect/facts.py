"""Facts of compiled code that depend on neither task nor plan, and the rules over them; read once and kept in the cache.

Parsing PTX and running nvdisasm take 0.2 s. A kernel whose code fits many shapes is inspected for each of them.
"""

from collections.abc import Iterator
from pathlib import Path

from cudal2_agent.contract.base import Record, digest
from cudal2_agent.contract.records.evaluation import Rejected
from cudal2_agent.contract.records.task import AccumulatorType, Arch
from cudal2_agent.sandbox.building.cache import CompileCache, sha256_of
from cudal2_agent.sandbox.building.compiler import Compiled
from cudal2_agent.sandbox.emulator.ptx.lexer import MAX_CHARS
from cudal2_agent.sandbox.emulator.ptx.module import PtxError, Unsupported
from cudal2_agent.sandbox.inspect import code, elf, sass
from cudal2_agent.sandbox.inspect.addresses import Misuse, misuses
from cudal2_agent.sandbox.inspect.allow_lists import BANKS, refusal, refused_rule
from cudal2_agent.sandbox.inspect.code import Code, Entry
from cudal2_agent.sandbox.inspect.elf import cubin_rules

FORMAT = 2  # raise it when a rule or the meaning of a fact changes
_FACTS = "facts.json"
_WHY_SPECIAL = {
    "device-clock": "a kernel that can read the time or count launches can tell when it is being timed",
    "special-register": "kernels may read sizes, places, lanes and masks only",
}


class CodeFacts(Record):
    """What the rules over launches and accumulators need of one compiled kernel.

    `fault`: the first rule that the code breaks whatever launches it. `half`: its instructions that accumulate in f16.
    `narrowing`: those that make numbers of 16 bits or less.
    `judged_sass`: whether nvdisasm could read the machine code; `opcodes` are of PTX where it could not.
    """

    entries: dict[str, Entry]
    opcodes: dict[str, int]
    mma: tuple[str, ...]
    accumulators: tuple[AccumulatorType, ...]
    half: tuple[str, ...]
    narrowing: tuple[str, ...]
    judged_sass: bool
    fault: Rejected | None = None


def facts_of(
    compiled: Compiled, arch: Arch, *, device: bool, cache: CompileCache | None = None, machine_code: bool = True
) -> CodeFacts | Rejected:
    """The facts of a compilation, from the cache where it holds them; `Rejected` where the code cannot be read.

    `device`: whether the rules for device code apply; a host candidate runs code of its own. Without `machine_code` facts
    that are not in the cache are those of PTX alone, and are not kept. Raises: WorkerError, MachineError.
    """
    key = _key(compiled, arch, device=device)
    if cache is not None and cache.load(key) is not None:
        return CodeFacts.model_validate_json((cache.path(key) / _FACTS).read_bytes())
    facts = _read(compiled, arch, device=device, machine_code=machine_code)
    if cache is not None and machine_code and isinstance(facts, CodeFacts):
        cache.save(key, {_FACTS: facts.model_dump_json().encode()}, compiled=True, seconds=0.0)
    return facts


def _key(compiled: Compiled, arch: Arch, *, device: bool) -> str:
    hashes = [sha256_of(Path(path)) for path in (compiled.ptx_path, compiled.cubin_path)]
    return digest(["facts", FORMAT, *hashes, arch, device, sass.disassembler()], length=40)


def _read(compiled: Compiled, arch: Arch, *, device: bool, machine_code: bool) -> CodeFacts | Rejected:
    ptx_path, cubin_path = Path(compiled.ptx_path), Path(compiled.cubin_path)
    if ptx_path.stat().st_size > MAX_CHARS:
        return Rejected(rule="code-size", message=f"the kernel compiles to more than {MAX_CHARS} bytes of PTX")
    try:
        variables = _variables(cubin_path) if device else ()
        ptx = code.read(ptx_path.read_bytes().decode(errors="replace"))
        listing = sass.disassemble(cubin_path) if machine_code else None
    except _Refused as exc:
        return exc.rejected
    except elf.ElfError as exc:
        return Rejected(rule="code-object", message=f"the compiled code cannot be read: {exc}")
    except (PtxError, Unsupported) as exc:
        return Rejected(rule="ptx-unreadable", message=f"the compiled code cannot be judged: {exc}")
    except sass.SassUnreadable as exc:
        return Rejected(rule="sass-unreadable", message=f"the compiled code cannot be judged: {exc}")
    return CodeFacts(
        entries=ptx.entries,
        opcodes=listing.opcodes if listing else ptx.opcodes,
        mma=ptx.mma + (listing.mma if listing else ()),
        accumulators=tuple(sorted(_accumulators(ptx, listing))),
        half=tuple(_mma_with(AccumulatorType.F16, ptx, listing)),
        narrowing=ptx.narrowing + (listing.narrowing if listing else ()),
        judged_sass=listing is not None,
        fault=next(_faults(ptx, listing, variables, arch), None) if device else None,
    )


def _faults(
    ptx: Code, machine_code: sass.Sass | None, variables: tuple[elf.ModuleVariable, ...], arch: Arch
) -> Iterator[Rejected]:
    yield from _code_rules(ptx)
    yield from _state_rules(ptx, variables)
    if machine_code is not None:
        yield from _sass_rules(machine_code, arch)


class _Refused(Exception):
    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


def _variables(cubin_path: Path) -> tuple[elf.ModuleVariable, ...]:
    """The module variables of a cubin that breaks no rule on cubins. Raises: ElfError, _Refused."""
    cubin = elf.read(cubin_path.read_bytes())
    broken = next(cubin_rules(cubin), None)
    if broken is not None:
        raise _Refused(broken)
    return elf.variables_of(cubin)


def _code_rules(ptx: Code) -> Iterator[Rejected]:
    yield from _special_register_rules(ptx.special_registers)
    for name in ptx.outside_calls:
        yield Rejected(rule="device-call", message=f"{name[:80]}: device code may not print, allocate, assert or launch")
    for name in ptx.traps:
        yield Rejected(rule="device-trap", message=f"{name}: a kernel ends by returning; remove the trap")


def _special_register_rules(names: tuple[str, ...]) -> Iterator[Rejected]:
    for name in names:
        rule = refused_rule(name)
        if rule is not None:
            yield Rejected(rule=rule, message=f"{name}: {_WHY_SPECIAL[rule]}")


def _state_rules(ptx: Code, variables: tuple[elf.ModuleVariable, ...]) -> Iterator[Rejected]:
    """Memory of the module: PTX must use the address of every variable for reading only."""
    for misuse in misuses(ptx.module):
        yield _misused(misuse)
    for variable in variables:
        if variable.name not in ptx.module.variables:
            message = (
                f"variable {variable.name[:80]} in device memory could be written; use shared memory or the plan's workspace"
            )
            yield Rejected(rule="device-state", message=message)


def _misused(misuse: Misuse) -> Rejected:
    where = f"PTX line {misuse.instruction.line}, {misuse.instruction.text[:80]!r}"
    if misuse.space == "param":
        message = (
            f"{misuse.origin[:80]}: a kernel may only read inside its own parameters, at places that the code fixes; {where}"
        )
        return Rejected(rule="launch-data", message=message)
    message = (
        f"variable {misuse.origin[:80]} in device memory could be written; "
        f"use __constant__, shared memory or the plan's workspace; {where}"
    )
    return Rejected(rule="device-state", message=message)


def _sass_rules(machine_code: sass.Sass, arch: Arch) -> Iterator[Rejected]:
    yield from _special_register_rules(machine_code.special_registers)
    for line in machine_code.unread:
        yield Rejected(rule="opcode", message=f"{line!r} is not a machine instruction of a known form")
    for word in machine_code.opcodes:
        refused = refusal(word)
        if refused is not None and (word != "BPT" or machine_code.traps):
            yield Rejected(rule=refused[0], message=f"{word}: {refused[1]}")
    for offset, indexed in machine_code.constants:
        if offset is None or not BANKS[arch].allows(offset, indexed=indexed):
            place = "an unknown place" if offset is None else f"{offset:#x}{' and a register' if indexed else ''}"
            message = f"the code reads constant bank 0 at {place}, where the driver keeps data of the launch"
            yield Rejected(rule="launch-data", message=message)


def _mma_with(kind: AccumulatorType, ptx: Code, machine_code: sass.Sass | None) -> Iterator[str]:
    yield from (name for name in ptx.mma if kind in code.accumulators(name))
    yield from (name for name in (machine_code.mma if machine_code else ()) if kind in sass.accumulators(name))


def _accumulators(ptx: Code, machine_code: sass.Sass | None) -> set[AccumulatorType]:
    return {kind for kind in AccumulatorType if next(_mma_with(kind, ptx, machine_code), None)}
