"""Wrong or hostile kernels in the whole sandbox: the tier designed for the fault must report it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.contract.events import ignore
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import Candidate, Origin
from cudal2_agent.contract.records.evaluation import Crashed, Evaluation, Prediction, TimedOut, Unmeasured, Wrong
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.options import CompileOptions, TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.sandbox.local import LocalSandbox, open_sandbox
from cudal2_agent.sandbox.workers.pool import WorkerPool

pytestmark = pytest.mark.gpu

ATTACKS = Path(__file__).with_name("attacks")
SHAPE = {"m": 200, "n": 168, "k": 320}
STORED = {"nn": (), "tn": ("-DCOLUMN_MAJOR_B",), "nt": ("-DCOLUMN_MAJOR_A",)}  # flags of `honest.cu`


@pytest.fixture(scope="module")
def arch() -> Arch:
    pool = WorkerPool([WorkerOptions()])
    try:
        return pool.ready().chip.arch
    finally:
        pool.close()


@pytest.fixture(scope="module")
def sandbox(arch: Arch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:
    opened = open_sandbox(
        arch=arch,
        device="cuda:0",
        compile_options=CompileOptions(cache_dir=str(tmp_path_factory.mktemp("cache") / "compile")),
        verify_options=VerifyOptions(timeout_s=20),
        quick=TimeOptions(rounds=3, all_baselines=False, side=False),
        full=TimeOptions(rounds=3),
        worker=WorkerOptions(),
        predict=lambda _candidate, _task, _inspection: Prediction(predicted_us=1, model="none", floor_us=1),
        emit=ignore,
    )
    yield opened
    opened.close()


def verify(
    sandbox: LocalSandbox, task: GemmTask, name: str, *, flags: tuple[str, ...] = (), atomics: bool = False
) -> Evaluation:
    source = (ATTACKS / f"{name}.cu").read_text()
    if atomics:
        source = source.replace('{"arch"', '{"atomics": true, "arch"', 1)
    candidate = Candidate.from_source(source, Origin(policy="attack"), flags)
    ((_, built),) = sandbox.build([candidate], task)
    assert isinstance(built, Built), built
    return sandbox.verify(built, task)


@pytest.mark.parametrize(
    ("name", "tier", "test"),
    [
        ("unwritten", "guards", "unwritten"),
        ("past_the_end", "guards", "canary"),
        ("not_restored", "guards", "workspace"),
        ("stale_d", "exact", "zero-one"),
        ("zero_one_only", "exact", "wide-sums"),
        ("half_accumulate", "exact", "wide-sums"),
        ("half_partial_sums", "exact", "wide-sums"),
        ("saturates", "special", "large or nonfinite or zero-times"),
        ("skips_when_done", "freshness", "round-1"),
        ("cached_result", "freshness", "round-1"),
        ("cached_under_sample", "freshness", "one-element-changed"),
    ],
)
def test_wrong_kernel_falls_at_its_tier(sandbox: LocalSandbox, arch: Arch, name: str, tier: str, test: str) -> None:
    outcome = verify(sandbox, GemmTask(arch=arch, **SHAPE), name)
    assert isinstance(outcome, Wrong), outcome
    assert outcome.test.tier == tier
    assert outcome.test.name in test.split(" or "), outcome.test


def test_a_write_before_d_hits_its_canary_or_no_memory(sandbox: LocalSandbox, arch: Arch) -> None:
    """D lies at the start or at the end of its pages, as the test of the run has it."""
    outcome = verify(sandbox, GemmTask(arch=arch, **SHAPE), "before_the_start")
    if isinstance(outcome, Crashed):
        assert "it was a write of the page at 4096 byte(s) before D" in outcome.message
    else:
        assert isinstance(outcome, Wrong), outcome
        assert (outcome.test.tier, outcome.test.name) == ("guards", "canary")


def test_a_write_to_an_input_faults_and_the_message_names_it(sandbox: LocalSandbox, arch: Arch) -> None:
    outcome = verify(sandbox, GemmTask(arch=arch, **SHAPE), "mutates_a")
    assert isinstance(outcome, Crashed), outcome
    assert "it was a write of the page at byte" in outcome.message
    assert outcome.message.endswith(" of A")


@pytest.mark.parametrize("shape", [(37, 53, 71), (1, 1, 1), (1, 257, 3), (200, 168, 320), (64, 48, 4099)])
@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_honest_kernel_passes(
    sandbox: LocalSandbox, arch: Arch, shape: tuple[int, int, int], layout: str, element: str
) -> None:
    m, n, k = shape
    flags = STORED[layout] + (("-DBF16",) if element == "bf16" else ())
    outcome = verify(sandbox, GemmTask(m=m, n=n, k=k, layout=layout, element=element, arch=arch), "honest", flags=flags)
    assert isinstance(outcome, Unmeasured), outcome
    assert all(test.passed for test in outcome.tests)


@pytest.mark.parametrize("m", [64, 40], ids=["M = K", "oblong"])
@pytest.mark.parametrize(("wrong", "layout"), [pair for pair in itertools.product(STORED, STORED) if len(set(pair)) == 2])
def test_wrong_layout_fails(sandbox: LocalSandbox, arch: Arch, wrong: str, layout: str, m: int) -> None:
    outcome = verify(sandbox, GemmTask(m=m, n=64, k=64, layout=layout, arch=arch), "honest", flags=STORED[wrong])
    assert isinstance(outcome, Wrong)
    assert outcome.test.tier == "exact"


def test_sums_in_arrival_order_must_be_declared(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(m=512, n=512, k=4096, arch=arch)
    undeclared = verify(sandbox, task, "arrival_order")
    assert isinstance(undeclared, Wrong)
    assert undeclared.test.tier == "repeatability"
    declared = verify(sandbox, task, "arrival_order", atomics=True)
    assert isinstance(declared, Unmeasured), declared


@pytest.mark.parametrize("place", [1, 2, 3])
def test_missing_dependency_wait_shows(sandbox: LocalSandbox, arch: Arch, place: int) -> None:
    if not LIMITS[arch].programmatic_launch:
        pytest.skip(f"{arch} has no programmatic launch")
    outcome = verify(sandbox, GemmTask(arch=arch, **SHAPE), "dependency", flags=(f"-DWAIT_AT={place}",))
    assert isinstance(outcome, Wrong), outcome
    assert outcome.test.tier == "programmatic", outcome.test


def test_dependency_wait_in_its_place_passes(sandbox: LocalSandbox, arch: Arch) -> None:
    if not LIMITS[arch].programmatic_launch:
        pytest.skip(f"{arch} has no programmatic launch")
    outcome = verify(sandbox, GemmTask(arch=arch, **SHAPE), "dependency", flags=("-DWAIT_AT=0",))
    assert isinstance(outcome, Unmeasured), outcome
    assert outcome.tests[-1].tier == "programmatic"


@pytest.mark.parametrize(("fault", "tiers"), [(0, ()), (1, ("programmatic",)), (2, ("exact",)), (3, ("exact",))])
def test_a_bias_that_is_added_wrongly_or_read_early_shows(
    sandbox: LocalSandbox, arch: Arch, fault: int, tiers: tuple[str, ...]
) -> None:
    if not LIMITS[arch].programmatic_launch:
        pytest.skip(f"{arch} has no programmatic launch")
    outcome = verify(sandbox, GemmTask(arch=arch, bias=True, **SHAPE), "biased", flags=(f"-DFAULT={fault}",))
    if not fault:
        assert isinstance(outcome, Unmeasured), outcome
        return
    assert isinstance(outcome, Wrong), outcome
    assert outcome.test.tier in tiers, outcome.test


@pytest.mark.parametrize("fault", [0, 1, 3, 4])
def test_an_activation_that_is_left_out_or_another_one_shows(sandbox: LocalSandbox, arch: Arch, fault: int) -> None:
    outcome = verify(sandbox, GemmTask(arch=arch, activation="gelu", **SHAPE), "activated", flags=(f"-DFAULT={fault}",))
    if not fault:
        assert isinstance(outcome, Unmeasured), outcome
        assert all(test.passed for test in outcome.tests)
        return
    assert isinstance(outcome, Wrong), outcome


@pytest.mark.parametrize("fault", range(9))
def test_the_factors_of_a_gated_product_are_told_apart(sandbox: LocalSandbox, arch: Arch, fault: int) -> None:
    task = GemmTask(arch=arch, layout="tn", activation="silu", gated=True, **SHAPE)
    outcome = verify(sandbox, task, "gated", flags=(f"-DFAULT={fault}",))
    if not fault:
        assert isinstance(outcome, Unmeasured), outcome
        assert all(test.passed for test in outcome.tests)
        return
    assert isinstance(outcome, Wrong), outcome
    named = {
        1: "B and up are exchanged",
        2: "B is read in place of up",
        3: "silu is not computed there",
        4: "silu is of the product of both",
        5: "A·up of the next column",
        6: "the factor A·up is left out",
    }
    if fault in named:
        assert outcome.test.symptoms is not None
        assert any(named[fault] in words for words in outcome.test.symptoms.values), outcome.test


def test_illegal_address_crashes_and_the_next_candidate_runs(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    outcome = verify(sandbox, task, "illegal_address")
    assert isinstance(outcome, Crashed), outcome
    assert outcome.stage == "verify"
    assert isinstance(verify(sandbox, task, "honest"), Unmeasured)


def test_endless_kernel_times_out_and_the_next_candidate_runs(sandbox: LocalSandbox, arch: Arch) -> None:
    task = GemmTask(arch=arch, **SHAPE)
    outcome = verify(sandbox, task, "spins")
    assert isinstance(outcome, TimedOut), outcome
    assert outcome.stage == "verify"
    assert isinstance(verify(sandbox, task, "honest"), Unmeasured)
