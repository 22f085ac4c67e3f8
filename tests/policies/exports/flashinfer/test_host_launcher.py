"""The generated host launcher makes the launches that the sandbox makes: it runs here against a runtime that records them."""

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS, Chip
from cudal2_agent.contract.plan.launching import argument_bytes, pack_argument, programmatic_edges
from cudal2_agent.contract.plan.plan import ResolvedPlan, TensorMapSpec, plan_from_json
from cudal2_agent.contract.plan.resolve import operand_shape, resolve
from cudal2_agent.contract.plan.tensor_view import map_layout
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.task import AccumulatorType, Arch, ElementType, GemmTask, Layout
from cudal2_agent.policies.exports.flashinfer.host_launcher import arch_list, device_text, launcher_text, lost_flags
from cudal2_agent.sandbox.building.headers import find_headers
from cudal2_agent.sandbox.cuda.tensor_map import named_buffers, tensor_map_arguments

RECORDER = Path(__file__).parent / "recorder"
CHIP = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=4096, n=1024, k=512)
TURNED = GemmTask(m=96, n=200, k=72, layout=Layout.TN, element=ElementType.BF16)
GRADIENT = GemmTask(m=96, n=200, k=72, layout=Layout.NT)
POINTERS = {"A": 0x10000, "B": 0x20000, "D": 0x30000}
WRITE_D = {"tensor": "D", "access": "write"}
CODES = {ElementType.F16: "kDLFloat", ElementType.BF16: "kDLBfloat"}

PLAIN: dict[str, Any] = {
    "launches": [{"entry": "hgemm", "grid": ["ceil(N/128)", "ceil(M/128)", 1], "block": [256, 1, 1], "args": [WRITE_D]}]
}
# Every kind of argument and attribute; entries that are named like a function of the C library, and mangled.
RICH: dict[str, Any] = {
    "launches": [
        {
            "entry": "cbrt",
            "grid": ["SMS//2*2", 2, 3],
            "block": [128, 2, 1],
            "cluster": [2, 1, 1],
            "dynamic_smem": 200000,
            "programmatic": True,
            "args": [
                {"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128, "l2": 256}},
                {"tensor_map": {"of": "B", "box": [8, 64], "swizzle": 0, "l2": 0}},
                {"tensor_map": {"of": "A", "dims": [64, "M", "K//64"], "strides": ["K", 64], "box": [64, 128, 2]}},
                {
                    "tensor_map": {
                        "of": "workspace",
                        "element": "f32",
                        "offset_bytes": 1024,
                        "dims": [8, "M//32"],
                        "box": [8, 4],
                    }
                },
                {"scalar": "M"},
                {"scalar": -(2**31)},
                {"scalar": 2**32 - 1, "type": "u32"},
                {"scalar": -(2**63), "type": "i64"},
                {"scalar": -3, "type": "f32"},
                {"workspace": 256},
            ],
        },
        {
            "entry": "_Z6reducePf",
            "grid": [16, 1, 1],
            "block": [32, 1, 1],
            "cluster": [16, 1, 1],
            "programmatic": True,
            "args": [{"tensor": "A"}, {"tensor": "B"}, WRITE_D, {"workspace": 0}],
        },
        {"entry": "finish", "grid": [1, 1, 1], "block": [32, 1, 1]},
    ],
    "workspace": {"bytes": "M*4", "zero": True, "zero_bytes": 512},
}
RESTORED: dict[str, Any] = RICH | {"workspace": {"bytes": 4096, "zero": "restored"}}


def written(plan: dict[str, Any], flags: tuple[str, ...] = ()) -> Candidate:
    return Candidate(
        source="// kernel", flags=flags, plan=plan_from_json({"arch": "sm_90a"} | plan), origin=Origin(policy="chat")
    )


def build(folder: Path, task: GemmTask, plan: dict[str, Any], sms: int = CHIP.sms, chip: Chip = CHIP) -> Path:
    """The recorder with the launcher of a plan; `sms`: those of the GPU that it pretends to be."""
    compiler = shutil.which("c++")
    assert compiler, "the tests need a C++ compiler, as the build of the emulator does"
    candidate = written(plan)
    (folder / "launch.cu").write_text(launcher_text(candidate, task, chip))
    entries = " ".join(f"ENTRY({launch.entry})" for launch in candidate.plan.launches)
    shapes = {f"{name}_SHAPE": "{}, {}".format(*operand_shape(task, name)) for name in ("A", "B", "D")}
    macros = {"ENTRIES": entries, "SMS": str(sms), "ELEMENT": CODES[task.element], **shapes}
    include = [f"-I{folder}", f"-I{RECORDER}", *(f"-isystem{root}" for root in find_headers().roots[1:2])]
    command = [compiler, "-std=c++17", "-Wall", "-Werror", *include, *(f"-D{name}={text}" for name, text in macros.items())]
    subprocess.run([*command, str(RECORDER / "recorder.cpp"), "-o", str(folder / "recorder")], check=True)
    return folder / "recorder"


def record(recorder: Path, plan: ResolvedPlan, fault: str = "none") -> subprocess.CompletedProcess[str]:
    sizes = [",".join(str(argument_bytes(arg)) for arg in launch.args) for launch in plan.launches]
    return subprocess.run([str(recorder), fault, *sizes], capture_output=True, text=True, check=False)


def encoded(spec: TensorMapSpec, task: GemmTask, pointers: dict[str, int]) -> bytes:
    """The arguments of the sandbox's encoder, as the recorder keeps them in place of a descriptor."""
    kind, rank, pointer, sizes, strides, box, steps, *modes = tensor_map_arguments(
        spec, map_layout(spec, named_buffers(task)), pointers[spec.of]
    )
    words = [kind, rank, pointer, *sizes, *strides, *box, *set(map(int, steps)), *modes]
    return b"".join(int(word).to_bytes(8, "little") for word in words).ljust(128, b"\0")


def expected_launches(plan: ResolvedPlan, task: GemmTask, workspace: int) -> list[str]:
    lines = []
    for launch, edge in zip(plan.launches, programmatic_edges(plan), strict=True):
        triples = " ".join(",".join(map(str, triple)) for triple in (launch.grid, launch.block, launch.cluster))
        pointers = POINTERS | {"workspace": workspace}
        encode = partial(encoded, task=task, pointers=pointers)
        packed = [pack_argument(arg, pointers, encode).hex() for arg in launch.args]
        non_portable = int(launch.cluster[0] > 8)
        smem = f"{launch.dynamic_smem} {launch.dynamic_smem} {non_portable} {int(edge)} 0x57"
        lines.append(" ".join([f"launch {launch.entry} {triples} {smem}", *packed]))
    return lines


def workspace_address(lines: list[str], plan: ResolvedPlan) -> int:
    """The address that the recorder allocated, as the first launch received it behind an offset of 256 bytes."""
    if not plan.workspace_bytes:
        return 0
    first = next(line for line in lines if line.startswith("launch"))
    return int.from_bytes(bytes.fromhex(first.split()[-1]), "little") - 256


@pytest.mark.parametrize(
    ("task", "plan", "memory"),
    [
        (TASK, PLAIN, []),
        (TASK, RICH, ["malloc 16384", "memset 1 16384 0", "memset-async 1 512 0 0x57"]),
        (TURNED, RESTORED, ["malloc 4096", "memset 1 4096 0"]),
        (GRADIENT, RESTORED, ["malloc 4096", "memset 1 4096 0"]),
    ],
    ids=["plain", "rich", "restored", "nt"],
)
def test_it_makes_the_launches_of_the_sandbox(tmp_path: Path, task: GemmTask, plan: dict[str, Any], memory: list[str]) -> None:
    resolved = resolve(written(plan).plan, task, LIMITS[Arch.SM_90A], CHIP.sms)
    ended = record(build(tmp_path, task, plan), resolved, fault="twice")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    launches = expected_launches(resolved, task, workspace_address(lines, resolved))
    every_run = [line for line in memory if line.startswith("memset-async")]
    assert lines == [*memory, *launches, *every_run, *launches], "the workspace is allocated once, and zeroed as planned"


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("faults"), TASK, PLAIN)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", "ValueError: A must be 4096 x 512"),
        ("type", "TypeError: B must hold f16 elements"),
        ("stride", "ValueError: C must be contiguous"),
        ("alignment", "ValueError: C must be aligned to 256 bytes"),
        ("cpu", "ValueError: B must be on the CUDA device of A"),
        ("device", "ValueError: B must be on the CUDA device of A"),
    ],
)
def test_it_refuses_operands_that_the_kernel_was_not_verified_for(recorder: Path, fault: str, message: str) -> None:
    ended = record(recorder, resolve(written(PLAIN).plan, TASK, LIMITS[Arch.SM_90A], CHIP.sms), fault)
    assert ended.returncode == 3
    assert message in ended.stderr
    assert "launch" not in ended.stdout


def test_only_a_plan_that_counts_sms_is_bound_to_a_chip(tmp_path: Path) -> None:
    persistent = {"launches": [PLAIN["launches"][0] | {"grid": ["SMS", 1, 1]}]}
    for name, plan, code in (("plain", PLAIN, 0), ("persistent", persistent, 3)):
        (tmp_path / name).mkdir()
        resolved = resolve(written(plan).plan, TASK, LIMITS[Arch.SM_90A], CHIP.sms)
        ended = record(build(tmp_path / name, TASK, plan, sms=CHIP.sms - 1), resolved)
        assert ended.returncode == code, ended.stderr
    assert "planned for a GPU of 132 SMs; this one has 131" in ended.stderr


def test_a_plan_that_does_not_fit_the_task_has_no_launcher() -> None:
    with pytest.raises(PlanError):
        launcher_text(written(PLAIN | {"requires": ["M==1"]}), TASK, CHIP)
    with pytest.raises(PlanError):
        launcher_text(written(PLAIN), TASK.model_copy(update={"accumulate": AccumulatorType.F16}), CHIP)


def test_macros_of_flags_become_definitions_and_other_flags_are_named() -> None:
    flags = (
        "-DTILE=64",
        "-DFAST",
        "-DNOTHING=",
        "-lineinfo",
        "-std=c++17",
        "--maxrregcount=128",
        "-use_fast_math",
        "-std=c++20",
    )
    candidate = written(PLAIN, flags)
    defined = [line for line in device_text(candidate, Arch.SM_90A).splitlines() if line.startswith("#define")]
    assert defined == ["#define NDEBUG", "#define TILE 64", "#define FAST 1", "#define NOTHING"]
    assert lost_flags(candidate) == ("--maxrregcount=128", "-use_fast_math", "-std=c++20")


@pytest.mark.parametrize(("arch", "name"), [(Arch.SM_80, "8.0"), (Arch.SM_90A, "9.0a"), (Arch.SM_100A, "10.0a")])
def test_the_architecture_to_build_for(arch: Arch, name: str) -> None:
    text = device_text(written(PLAIN), arch)
    assert arch_list(arch) == name
    assert (f"set TVM_FFI_CUDA_ARCH_LIST={name} and build again" in text) is name.endswith("a")


def test_the_tensor_map_names_are_those_of_the_driver() -> None:
    """The launcher's text names enumerators; the recorder compares their values, and here they are seen to exist."""
    text = launcher_text(written(RICH), TASK, CHIP)
    names = {word for word in text.replace(",", " ").replace(")", " ").split() if word.startswith("CU_TENSOR_MAP_")}
    known = {name for kind in vars(driver).values() if hasattr(kind, "__members__") for name in kind.__members__}
    assert names
    assert names <= known
