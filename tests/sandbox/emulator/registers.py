"""Runs PTX statements on given registers and shared memory in one CTA on the emulator's core."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from cudal2_agent.sandbox.emulator.core_module import core
from cudal2_agent.sandbox.emulator.lowering.program import lower
from cudal2_agent.sandbox.emulator.ptx.parser import parse

Array = np.ndarray[Any, Any]
INPUT, OUTPUT = 0x1000_0000, 0x2000_0000  # addresses of the buffers
_STEP = 16  # bytes that a thread copies at a time


@dataclass(frozen=True)
class After:
    """State after the statements: registers by name, one element per thread; shared memory; kinds and messages of findings.

    `tainted`: the tainted registers of each thread, by name, if taint was tracked.
    """

    registers: dict[str, Array]
    shared: Array
    output: Array
    findings: tuple[tuple[str, str], ...]
    tainted: Mapping[str, Array]


def run_statements(
    body: str,
    registers: Mapping[str, Array] = MappingProxyType({}),
    results: Sequence[str] = (),
    shared: Array | None = None,
    *,
    threads: int = 32,
    output_bytes: int = 0,
    races: bool = True,
    taint: bool = False,
    interleaving: int = 1,
) -> After:
    """Run `body`. Registers have 32 bits, those named %l… 64.

    The statements see `registers`, and may use %x0 to %x7, %y0 to %y3 (64 bits) and %p0 to %p3. They leave `results`. `shared`
    is the variable `tile`, aligned to 1024; %in and %out are the addresses of the two buffers, %me is the thread.
    """
    tile = _padded(np.zeros(0, np.uint8) if shared is None else shared.view(np.uint8).reshape(-1), _STEP * threads)
    kept = [np.ascontiguousarray(each) for each in registers.values()]
    data = np.concatenate([tile, *(each.view(np.uint8) for each in kept), np.zeros(16, np.uint8)])
    starts = np.cumsum([len(tile), *(each.nbytes for each in kept)])
    sizes = [threads * _width(name) // 8 for name in results]
    ends = [output_bytes + tile.size + sum(sizes[:at]) for at in range(len(results) + 1)]
    text = _kernel(
        body,
        dict(zip(registers, starts, strict=False)),
        dict(zip(results, ends, strict=False)),
        tile.size,
        threads,
        output_bytes,
    )
    program = lower(parse(text), "k")
    out = np.zeros(max(ends[-1], 16), np.uint8)
    memory = core.Memory()
    memory.add_buffer("input", INPUT, data, False)
    memory.add_buffer("output", OUTPUT, out, True)
    found = core.run(
        program=program.core,
        memory=memory,
        grid=[1, 1, 1],
        block=[threads, 1, 1],
        cluster=[1, 1, 1],
        dynamic_smem=0,
        parameters=struct.pack("<QQ", INPUT, OUTPUT),
        dependent=False,
        interleaving=interleaving,
        seed=0,
        races=races,
        poison=0xFF,
        most_instructions=10**7,
        deadline_s=60,
        ctas=[],
        poisoned=[],
        taint=taint,
    )
    old = np.zeros(out.size, bool)
    for offset, size, _, _ in memory.tainted("output"):
        old[offset : offset + size] = True
    places = {name: slice(end, end + size) for name, end, size in zip(results, ends, sizes, strict=False)}
    tainted = {name: old[place].reshape(threads, -1) for name, place in places.items()}
    after = {name: out[place].view(f"u{_width(name) // 8}") for name, place in places.items()}
    left = out[output_bytes : output_bytes + tile.size][: 0 if shared is None else shared.nbytes]
    findings = tuple((each.kind, each.message) for each in found.findings)
    return After(after, left, out[:output_bytes], findings, tainted)


def _padded(data: Array, multiple: int) -> Array:
    return np.concatenate([data, np.zeros(-len(data) % multiple, np.uint8)])


def _kernel(
    body: str, inputs: Mapping[str, int], outputs: Mapping[str, int], tile_bytes: int, threads: int, output_bytes: int
) -> str:
    """Loads everything, runs the body, stores everything. Offsets: of registers in the buffers, thread after thread."""
    names = sorted({*inputs, *outputs})
    declared = "".join(f".reg .b{_width(name)} {name};\n" for name in names)
    steps = range(0, tile_bytes, _STEP * threads)
    fill = "".join(
        f"ld.global.v4.b32 {{%z0, %z1, %z2, %z3}}, [%in16+{at}];\nst.shared.v4.b32 [%t16+{at}], {{%z0, %z1, %z2, %z3}};\n"
        for at in steps
    )
    drain = "".join(
        f"ld.shared.v4.b32 {{%z0, %z1, %z2, %z3}}, [%t16+{at}];\n"
        f"st.global.v4.b32 [%out16+{output_bytes + at}], {{%z0, %z1, %z2, %z3}};\n"
        for at in steps
    )
    load = "".join(f"ld.global.b{_width(name)} {name}, [%in{_width(name) // 8}+{at}];\n" for name, at in inputs.items())
    store = "".join(f"st.global.b{_width(name)} [%out{_width(name) // 8}+{at}], {name};\n" for name, at in outputs.items())
    shared = (
        f".shared .align 1024 .b8 tile[{tile_bytes}];\nmov.u32 %t16, tile;\nmad.lo.u32 %t16, %me, 16, %t16;\n"
        if tile_bytes
        else ""
    )
    return f""".version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 input, .param .u64 output)
{{
.reg .b32 %me, %t16, %z<4>, %x<8>;
.reg .b64 %in, %out, %in4, %in8, %in16, %out4, %out8, %out16, %y<4>;
.reg .pred %p<4>;
{declared}
ld.param.u64 %in, [input];
ld.param.u64 %out, [output];
mov.u32 %me, %tid.x;
mad.wide.u32 %in4, %me, 4, %in;
mad.wide.u32 %in8, %me, 8, %in;
mad.wide.u32 %in16, %me, 16, %in;
mad.wide.u32 %out4, %me, 4, %out;
mad.wide.u32 %out8, %me, 8, %out;
mad.wide.u32 %out16, %me, 16, %out;
{shared}
{fill}
fence.proxy.async;
bar.sync 0;
{load}
{body}
bar.sync 0;
{store}
{drain}
ret;
}}
"""


def _width(name: str) -> int:
    return 64 if name.startswith("%l") else 32
