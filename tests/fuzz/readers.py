"""The readers of files that may be a stranger's, each with files to start from and the damage that is done to them.

`Target.read` reads the damaged file, which lies in a folder of its own. Errors of the product's tree are the right answer.
"""

import asyncio
import gzip
import io
import json
import random
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import damage as of
from tests.fuzz.damage import Damage

ROOT = Path(__file__).parents[2]
_ROWS = ROOT / "benchmarks/campaigns/rows/tn-2026-11-26.jsonl.gz"
_SHIPPED = ROOT / "cudal2/library/shipped/h100-offline-2026-11-27.jsonl.gz"
_STEPS = ROOT / "tests/store/exported_steps_v1.jsonl"


@dataclass(frozen=True)
class Target:
    """`name`: of the damaged file. `starts`: its content before. `sources`: the code that reads it, for the coverage."""

    name: str
    starts: Callable[[], Sequence[bytes]]
    damage: Damage
    read: Callable[[Path], object]
    sources: tuple[str, ...]


# ---- what is read -----------------------------------------------------------------------------------------------------------
def _import(path: Path) -> None:
    from cudal2_agent.store.importing import import_files

    with _empty_store(path) as store:
        import_files(store, [str(path)])
        for run in store.runs():
            store.trajectory(run.run_id)


def _merge(path: Path) -> None:
    from cudal2_agent.store.merging import merge_store

    with _empty_store(path) as store:
        merge_store(store, str(path))
        for run in store.runs():
            store.trajectory(run.run_id)


@contextmanager
def _empty_store(path: Path) -> Iterator[Any]:
    from cudal2_agent.store.store import open_store

    file = path.with_name("own.sqlite")
    file.write_bytes(_empty())
    with open_store(f"sqlite:///{file}") as store:
        yield store


@cache
def _empty() -> bytes:
    from cudal2_agent.store.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "store.sqlite")
        open_store(f"sqlite:///{file}").close()
        return _whole(file)


def _whole(file: Path) -> bytes:
    """The content of an SQLite file without a log beside it."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
    return file.read_bytes()


def _results(path: Path) -> None:
    from cudal2_agent.agent.campaign.result_files import counting, read_results

    counting(read_results([path]))


def _library(path: Path) -> None:
    from cudal2.library.kernel_library import open_library
    from cudal2.library.prepared_kernels import stem_of
    from cudal2_agent.agent.library.entry_source import candidate_of
    from cudal2_agent.contract.errors import Cudal2Error

    library = open_library(path)
    for id_ in library.manifest.entries[:20]:
        try:
            entry = library.entry(id_)
            assert "/" not in stem_of(entry), stem_of(entry)
            library.kernel(entry, 132)
            candidate_of(entry)
        except Cudal2Error:
            continue
    list(library.algorithms())


def _rows(path: Path) -> None:
    from cudal2_agent.agent.bench.record_lines import RecordLines
    from cudal2_agent.agent.library.row_file import read_row_file
    from cudal2_agent.contract.records.campaign import ShapeResult

    RecordLines(ShapeResult, "row", "--out").read([path])
    read_row_file(path, ShapeResult, "library check")


def _shapes(path: Path) -> None:
    from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
    from cudal2_agent.agent.campaign.shapes import held_out_shapes, read_shapes
    from cudal2_agent.agent.library.library_building import read_products

    for read in (
        lambda: read_shapes([str(path)]),
        lambda: held_out_shapes(path),
        lambda: read_products(path),
        lambda: read_bench_shapes([str(path)], None),
    ):
        _allowed(read)


def _trace(path: Path) -> None:
    from cudal2_agent.agent.library.advise.profiler_trace import read_trace

    read_trace(path)


def _settings(path: Path) -> None:
    from cudal2_agent.contract.settings.settings import load_settings

    assert path.name == "cudal2.toml"
    settings = load_settings()
    assert settings.chat.base_url is None
    settings.recorded().model_dump_json()


def _prior(path: Path) -> None:
    from cudal2_agent.policies.schedule.learned.policy_file import read_weights

    read_weights(path)


def _archive(path: Path) -> None:
    from cudal2_agent.indexer.sources.archive import unpack

    start = path.read_bytes()[:6]
    suffixes = {b"PK": "zip", b"\x1f\x8b": "tar.gz", b"\xfd7": "tar.xz", b"BZ": "tar.bz2"}
    unpack(path.rename(path.with_suffix(f".{suffixes.get(start[:2], 'tar')}")), path.parent / "unpacked")


def _checkout(path: Path) -> None:
    """A repository whose git directory is the members of a tar file."""
    from cudal2_agent.contract.events import ignore
    from cudal2_agent.indexer.sources.opening import open_source

    folder = path.parent / "checkout"
    folder.mkdir()
    (folder / "lib.hpp").write_text("int lib;\n")
    with tarfile.open(path) as tar:
        tar.extractall(folder, filter="data")
    for spec in (str(folder), f"git+file://{folder}@v1.0"):
        _allowed(lambda spec=spec: open_source(spec, name="x", work_dir=path.parent / "work", emit=ignore).__enter__())


def _document(path: Path) -> None:
    """As a worker of the indexer does it, which answers every error with a reason. Each text is read in every form."""
    from cudal2_agent.indexer.split.split import split_file
    from cudal2_agent.indexer.workers import _result

    pdf = path.read_bytes()[:5] == b"%PDF-"
    for suffix in (".pdf",) if pdf else (".cu", ".py", ".md", ".html", ".rst", ".txt"):
        named = path.with_suffix(suffix)
        named.write_bytes(path.read_bytes())
        _result(path.parent, named.name, split_file)


def _reply(path: Path) -> None:
    from cudal2_agent.policies.chat.replies.forms import read_reply
    from cudal2_agent.policies.chat.replies.patch import Patch, apply_patch

    text = path.read_bytes().decode("utf-8", "replace")
    for cut in (False, True):
        read = read_reply(text, cut=cut)
        if isinstance(read, Patch):
            apply_patch(read, "int a;\nint b;\n")


def _stream(path: Path) -> None:
    from cudal2_agent.policies.chat.server import stream

    content = path.read_bytes()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(content), 97):
            yield content[at : at + 97]

    async def read() -> None:
        reply = stream.PartialReply()
        with suppress(stream.TooLong, stream.EmptyStream, stream.ProtocolViolation, stream.ServerError):
            await stream.read_stream(pieces(), reply, 1000, lambda: None)
        _ = reply.text, reply.reasoning, reply.refusal, reply.calls, reply.ending()

    asyncio.run(read())


def _kernel(path: Path) -> None:
    from cudal2_agent.agent.cli.files import read_candidate
    from cudal2_agent.contract.plan.chip import LIMITS
    from cudal2_agent.contract.plan.resolve import resolve
    from cudal2_agent.contract.records.candidate import Candidate
    from cudal2_agent.contract.records.task import GemmTask
    from cudal2_agent.sandbox.building.check import check

    candidate = read_candidate(path)
    assert isinstance(candidate, Candidate)
    task = GemmTask(m=64, n=64, k=64)
    check(candidate, task, LIMITS[task.arch], 132)
    resolve(candidate.plan, task, LIMITS[task.arch], 132)


def _questions(path: Path) -> None:
    from cudal2_agent.agent.cli.index_search import read_questions

    with path.open("rb") as lines:
        list(read_questions(lines, path.name))


def _cubin(path: Path) -> None:
    from cudal2_agent.sandbox.inspect import elf

    with suppress(elf.ElfError):
        cubin = elf.read(path.read_bytes())
        list(elf.cubin_rules(cubin))
        elf.variables_of(cubin)


def _rates(path: Path) -> None:
    from cudal2_agent.agent.wiring.chip_rates import read_rates

    read_rates(path)


def _spooled(path: Path) -> None:
    """As a call, as answers, as a worker, and as a frame of a stream."""
    from cudal2_agent.sandbox.remote.far_answers import FROM_WORKER
    from cudal2_agent.sandbox.remote.frames import MARK, BrokenFrame, framed_text, record_of
    from cudal2_agent.sandbox.remote.spool_folder import SpoolFolder

    content, spool = path.read_bytes(), SpoolFolder(path.parent / "spool")
    name = f"work.emulator.{1:020d}.{'ab' * 16}.json"
    for part, named in (("calls", name), ("answers", f"{'ab' * 16}.json"), ("workers", "w.json")):
        (spool.path / part / named).write_bytes(content)
    spool.take(name)
    spool.take_answers("ab" * 16)
    spool.workers()
    for line in content.splitlines()[:9]:
        with suppress(BrokenFrame):
            record_of(FROM_WORKER, framed_text(line) or framed_text(MARK + b"%d %b" % (len(line), line)) or b"")


def _allowed(read: Callable[[], object]) -> None:
    """Read, and let errors of the product pass, so that the next reader has its turn."""
    from cudal2_agent.contract.errors import Cudal2Error

    try:
        read()
    except Cudal2Error:
        return


# ---- what is started from ---------------------------------------------------------------------------------------------------
@cache
def _sweep() -> tuple[bytes, ...]:
    from cudal2_agent.contract.records.trajectory import Trajectory
    from cudal2_agent.store.sweep.sweep_files import write_sweep
    from tests.doubles import OBSERVATION, measured, run_record, step

    steps = (step(0), step(1, number=1, evaluation=measured(12.0)))
    made = io.BytesIO()
    write_sweep([Trajectory(run=run_record(), observations={OBSERVATION.id: OBSERVATION}, steps=steps)], made)
    return (made.getvalue(),)


@cache
def _stores() -> tuple[bytes, ...]:
    from cudal2_agent.store.importing import import_files
    from cudal2_agent.store.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "store.sqlite")
        with open_store(f"sqlite:///{file}") as store:
            import_files(store, [str(_STEPS)])
        return (_whole(file),)


def _damaged_store(content: bytes, rng: random.Random) -> bytes:
    """Values of a row are others; a view or a trigger stands in the schema; or bytes are damaged."""
    try:
        return of.damaged_bytes(content, rng) if rng.random() < 0.25 else _damaged_rows(content, rng)
    except sqlite3.Error:  # it was damaged before
        return of.damaged_bytes(content, rng)


def _damaged_rows(content: bytes, rng: random.Random) -> bytes:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with closing(sqlite3.connect(file.name)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for _ in range(rng.choice((1, 1, 2, 4))):
                table = rng.choice(names)
                columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
                value = rng.choice(
                    (None, 0, 1, 2, 3, -1, 2**62, "x", "", "../x", 1.5, b"", b"\x28\xb5\x2f\xfd", rng.randbytes(40))
                )
                column = rng.choice(columns)
                held = connection.execute(f'SELECT "{column}" FROM "{table}" LIMIT 1').fetchone()
                if held and isinstance(held[0], bytes) and rng.random() < 0.8:
                    inner = of.chosen((of.packed_zstd(of.damaged_json), of.damaged_bytes))
                    value = inner(held[0], rng)
                try:
                    connection.execute(
                        f'UPDATE OR IGNORE "{table}" SET "{column}" = ?' + (" WHERE rowid % 2" if rng.random() < 0.5 else ""),
                        (value,),
                    )
                except sqlite3.Error:
                    continue
            if rng.random() < 0.05:
                connection.execute("CREATE VIEW evil AS SELECT 1")
            connection.commit()
        return Path(file.name).read_bytes()


def _first_lines(path: Path, count: int) -> tuple[bytes, ...]:
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)[:count]
    return (gzip.compress(b"".join(lines)),)


@cache
def _libraries() -> tuple[bytes, ...]:
    from cudal2_agent.contract.base import canonical_json

    manifest, *lines = gzip.decompress(_SHIPPED.read_bytes()).splitlines()
    record = json.loads(manifest)
    record |= {"entries": record["entries"][:6], "algorithms": [], "no_faster": []}
    assert all(canonical_json(json.loads(line)).encode() == line for line in lines[:6])
    return (gzip.compress(b"\n".join([json.dumps(record).encode(), *lines[:6]])),)


def _damaged_library(content: bytes, rng: random.Random) -> bytes:
    """An entry is another, and the manifest names it as it is now, as a stranger would who builds a library."""
    import hashlib

    from cudal2_agent.contract.base import canonical_json

    if rng.random() < 0.4:
        return of.packed_gzip(of.damaged_lines)(content, rng)
    try:
        manifest, *lines = gzip.decompress(content).split(b"\n")
        record = dict(json.loads(manifest))
    except Exception:  # noqa: BLE001 (it was damaged before)
        return of.damaged_bytes(content, rng)
    changed = []
    for line in lines:
        try:
            value = json.loads(of.damaged_json(line, rng) if rng.random() < 0.3 else line)
            changed.append(canonical_json(value).encode("utf-8", "surrogatepass"))
        except ValueError:
            changed.append(line)
    record["entries"] = [hashlib.sha256(line).hexdigest()[:32] for line in changed]
    return gzip.compress(b"\n".join([json.dumps(record).encode(), *changed]), 1)


def _traces() -> tuple[bytes, ...]:
    arguments = {
        "External id": 1,
        "Input Dims": [[4, 8], [8, 16]],
        "Input Strides": [[8, 1], [16, 1]],
        "Input type": ["c10::Half"] * 2,
        "Sequence number": 3,
    }
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.5, "dur": 10.0, "args": arguments}
    node = {
        **operator,
        "name": "autograd::engine::evaluate_function: MmBackward0",
        "ts": 0.5,
        "dur": 20,
        "args": {"External id": 2, "Sequence number": 3},
    }
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 5, "dur": 3, "args": {"External id": 1}}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 30}
    linear = {
        **operator,
        "name": "aten::linear",
        "ts": 40,
        "args": {**arguments, "Input Dims": [[2, 4, 8], [16, 8], []], "Input Strides": [[32, 8, 1], [8, 1], []]},
    }
    trace = {
        "schemaVersion": 1,
        "deviceProperties": [{"name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0}],
        "traceEvents": [step, node, operator, kernel, linear],
    }
    text = json.dumps(trace).encode()
    return text, gzip.compress(text)


def _damaged_trace(content: bytes, rng: random.Random) -> bytes:
    return (of.packed_gzip(of.damaged_json) if content[:2] == b"\x1f\x8b" else of.damaged_json)(content, rng)


def _damaged_weights(content: bytes, rng: random.Random) -> bytes:
    """The header of a safetensors file is damaged, which says where each tensor lies, or its card is."""
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.2 or not header.startswith(b"{"):
        return of.damaged_bytes(content[: 1 << 19], rng)
    try:
        value = json.loads(header)
        card = value["__metadata__"]["card"]
        value["__metadata__"]["card"] = (
            of.damaged_json(card.encode(), rng).decode("utf-8", "replace") if rng.random() < 0.4 else card
        )
        header = json.dumps(value).encode()
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    header = header if rng.random() < 0.4 else of.damaged_json(header, rng)
    return len(header).to_bytes(8, "little") + header + data


def _archives() -> tuple[bytes, ...]:
    made: list[bytes] = []
    for mode in ("w", "w:gz", "w:xz", "w:bz2"):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
            for name in ("a/x.hpp", "a/y.md"):
                info = tarfile.TarInfo(name)
                info.size = 6
                tar.addfile(info, io.BytesIO(b"int a;"))
        made.append(file.getvalue())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a/x.hpp", "int a;" * 50)
    return (*made, file.getvalue())


@cache
def _repositories() -> tuple[bytes, ...]:
    """One tar file, not packed, of a `.git` whose objects are few."""
    import subprocess

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lib.hpp").write_text("int lib;\n")
        who = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
        for words in (
            ["init", "-q", "--template="],
            ["add", "."],
            ["commit", "-qm", "first"],
            ["tag", "v1.0"],
            ["pack-refs", "--all"],
        ):
            subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder / ".git", ".git")
        return (file.getvalue(),)


def _damaged_repository(content: bytes, rng: random.Random) -> bytes:
    """One file of the git directory is damaged, and the archive around it is not."""
    made = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as given, tarfile.open(fileobj=made, mode="w") as tar:
        members = given.getmembers()
        spoilt = rng.choice([member.name for member in members if member.isreg()])
        for member in members:
            data = given.extractfile(member).read() if member.isreg() else b""  # type: ignore[union-attr]
            if member.name == spoilt:
                data = of.damaged_bytes(data, rng)
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return made.getvalue()


@cache
def _documents() -> tuple[bytes, ...]:
    from tests.indexer.split.test_documents import pdf

    texts = [
        ROOT / "docs/internals/emulator.md",
        ROOT / "store/merging.py",
        ROOT / "policies/schedule/families/wgmma_tma/wgmma_tma.cu",
    ]
    html = (
        b"<html><title>T</title><body><h1 id='a'>A</h1><pre>code</pre><table><tr><td>x</table><script>y</script></body></html>"
    )
    rst = b"Title\n=====\n\nText::\n\n  code\n\nSub\n---\n.. note:: x\n"
    return (
        *(path.read_bytes()[:12_000] for path in texts),
        html,
        rst,
        pdf(["First words", "Second"], {"Rings": 0, "Stages": 1}, title="Guide"),
    )


_REPLY = b"""The tile is larger.

```cuda
// cudal2: {"launches": [{"entry": "k", "grid": [1, 1, 1], "block": [32, 1, 1],
//  "args": [{"tensor": "D", "access": "write"}]}]}
extern "C" __global__ void k(half* d) {}
```
```json
{"schedules": [{"family": "latency", "block_m": 16, "loads": "cp_async"}]}
```
```
<<<<<<< SEARCH
int a;
=======
int c;
>>>>>>> REPLACE
```
"""


def _streams() -> tuple[bytes, ...]:
    call = [{"index": 0, "id": "c", "function": {"name": "search", "arguments": '{"query": "x"}'}}]
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": "<think>a</think>b", "reasoning_content": "c"}}]},
        {"choices": [{"delta": {"tool_calls": call, "refusal": None}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ]
    sse = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    body = json.dumps(
        {"choices": [{"message": {"content": "x", "tool_calls": call}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
    )
    return sse, body.encode()


def _damaged_stream(content: bytes, rng: random.Random) -> bytes:
    if not content.startswith(b"data: "):
        return of.damaged_json(content, rng)
    events = [event.removeprefix(b"data: ") for event in content.split(b"\n\n")]
    at = rng.randrange(len(events))
    events[at] = of.damaged_json(events[at], rng)
    return b"\n\n".join(b"data: " + event for event in events)


def _kernels() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((ROOT / "tests/redteam/blind").glob("*.cu"))[:6])


@cache
def _cubins() -> tuple[bytes, ...]:
    from cuda.bindings import nvrtc

    source = (
        b'__device__ int table[4] = {1, 2}; extern "C" __global__ void k(int* d) { d[threadIdx.x] = table[threadIdx.x & 3]++; }'
    )
    _, program = nvrtc.nvrtcCreateProgram(source, b"k.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90a"])
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return (cubin,)


def _rates_file() -> tuple[bytes, ...]:
    from datetime import UTC, datetime

    from cudal2_agent.agent.wiring.chip_rates import FittedRates
    from tests.doubles.scripted import ENVIRONMENT

    rates = {
        "chip": "H100",
        "tensor_tflops": 700.0,
        "dram_tbps": 3.0,
        "launch_us": 1.0,
        "shapes": 3,
        "schedules": 9,
        "product": "1",
    }
    return (FittedRates(**rates, environment=ENVIRONMENT, created_at=datetime.now(UTC)).model_dump_json().encode(),)  # type: ignore[arg-type]


def _spool_files() -> tuple[bytes, ...]:
    from cudal2_agent.sandbox.remote.calls import ExecuteCall, FarCall
    from cudal2_agent.sandbox.remote.far_answers import CallAnswer, JudgedAnswer
    from cudal2_agent.sandbox.remote.spool_folder import SpooledAnswers
    from tests.doubles import TASK, candidate, measured
    from tests.sandbox.remote.test_command_link import OPENING
    from tests.sandbox.remote.test_spool import WORKER

    answer = JudgedAnswer(position=0, evaluation=measured(5.0))
    deed = ExecuteCall(candidates=(candidate(1),), task=TASK, how="quick")
    id_ = "ab" * 16
    records = (
        FarCall(id=id_, opening=OPENING, deed=deed),
        SpooledAnswers(id=id_, answers=(answer,)),
        WORKER,
        CallAnswer(id=id_, answer=answer),
    )
    return tuple(record.model_dump_json().encode() for record in records)


_TOML = b"""budget = 8
device = "cuda:0"
[chat]
samples = 2
base_url = "http://stranger/v1"
[profiler]
timeout_s = 3.5
"""
_SHAPES = (
    b'{"grid": ["64x64x64"], "off_grid": ["100x64x64"]}',
    b'{"format": "cudal2-shapes", "version": 1, "products": [{"m": 1, "n": 2, "k": 3, "layout": "nn", "part": "dX", "count": 3}'
    b', {"m": 9, "n": 2, "k": 3, "layout": "tt", "part": "dW", "count": 1}]}',
    b"64x64x64 tn bf16\n# x\n",
)

TARGETS: dict[str, Target] = {
    "sweep": Target(
        "a.sweep.zst", _sweep, of.packed_zstd(of.damaged_lines), _import, ("store/importing", "store/incoming", "store/sweep/")
    ),
    "steps": Target(
        "a.jsonl",
        lambda: (_STEPS.read_bytes(),),
        of.damaged_lines,
        _import,
        ("store/importing", "store/incoming", "store/steps"),
    ),
    "store": Target(
        "a.sqlite", _stores, _damaged_store, _merge, ("store/merging", "store/reader", "store/packing", "store/engine")
    ),
    "results": Target(
        "a.jsonl.gz",
        lambda: _first_lines(_ROWS, 4),
        of.packed_gzip(of.damaged_lines),
        _results,
        ("agent/campaign/result_files", "contract/foreign"),
    ),
    "rows": Target(
        "rows.jsonl",
        lambda: (gzip.decompress(_first_lines(_ROWS, 4)[0]),),
        of.damaged_lines,
        _rows,
        ("agent/bench/record_lines", "agent/library/row_file"),
    ),
    "library": Target("a.jsonl.gz", _libraries, _damaged_library, _library, ("cudal2/library/", "agent/library/entry_source")),
    "shapes": Target(
        "shapes.json",
        lambda: _SHAPES,
        of.damaged_json,
        _shapes,
        ("agent/campaign/shapes", "agent/bench/proposals/bench_shapes"),
    ),
    "trace": Target("trace.json", _traces, _damaged_trace, _trace, ("agent/library/advise/profiler_trace", "contract/foreign")),
    "settings": Target("cudal2.toml", lambda: (_TOML,), of.damaged_bytes, _settings, ("contract/settings/",)),
    "spool": Target("a.json", _spool_files, of.damaged_json, _spooled, ("sandbox/remote/", "contract/foreign")),
    "prior": Target(
        "a.safetensors",
        lambda: ((ROOT / "policies/schedule/learned/shipped/h100.safetensors").read_bytes(),),
        _damaged_weights,
        _prior,
        (
            "policies/schedule/learned/policy_file",
            "policies/schedule/learned/network",
            "policies/schedule/learned/boosted_trees",
        ),
    ),
    "archive": Target("a", _archives, of.damaged_archive, _archive, ("indexer/sources/archive",)),
    "checkout": Target("git.tar", _repositories, _damaged_repository, _checkout, ("indexer/sources/checkout", "processes/git")),
    "document": Target("a.bin", _documents, of.damaged_bytes, _document, ("indexer/split/",)),
    "reply": Target("reply.txt", lambda: (_REPLY,), of.damaged_bytes, _reply, ("policies/chat/replies/",)),
    "stream": Target(
        "stream", _streams, _damaged_stream, _stream, ("policies/chat/server/stream", "policies/chat/server/tool_calls")
    ),
    "kernel": Target("a.cu", _kernels, of.damaged_bytes, _kernel, ("contract/plan/", "sandbox/building/check")),
    "questions": Target(
        "q.jsonl",
        lambda: (b'{"id": "1", "query": "tma"}\n{"id": 2, "query": "x"}\n',),
        of.damaged_lines,
        _questions,
        ("agent/cli/index_search", "contract/foreign"),
    ),
    "cubin": Target("a.cubin", _cubins, of.damaged_bytes, _cubin, ("sandbox/inspect/elf",)),
    "rates": Target("h100.json", _rates_file, of.damaged_json, _rates, ("agent/wiring/chip_rates", "contract/foreign")),
}
