"""The emulator's verdicts on small kernels: each violates one rule; the report names rule, place and interleaving.

And the emulator's worker process, driven by the pool; the garbage collector, which rests while PTX is read, and no longer.
"""

import gc
import re
import subprocess
import sys

import pytest

pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")

from cudal2_agent.contract.errors import PlanError
from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.evaluation import Crashed, TimedOut
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask
from cudal2_agent.contract.settings.options import TimeOptions, VerifyOptions, WorkerOptions
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.sandbox.emulator import kernel
from cudal2_agent.sandbox.emulator.evaluator import Evaluator
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.emulator.ptx.module import PtxError
from cudal2_agent.sandbox.emulator.worker import MEMORY_BYTES, command
from cudal2_agent.sandbox.workers.messages import TIME_SHARE, Done, Evaluate, NotExecuted, Verified
from cudal2_agent.sandbox.workers.pool import WorkerPool
from tests.sandbox.building.build_kernels import host
from tests.sandbox.emulator.proving import STORE, SUM, TASK, Build, failure, naive, plan, prove


@pytest.mark.parametrize(
    "task", [TASK, TASK.model_copy(update={"element": ElementType.BF16}), GemmTask(m=1, n=1, k=1)], ids=lambda task: task.shape
)
def test_an_honest_kernel_is_verified_under_every_interleaving(build: Build, task: GemmTask) -> None:
    source = naive() if task.element == "f16" else naive().replace("half2float", "bfloat162float")
    source = source if task.element == "f16" else source.replace("half", "nv_bfloat16").replace("fp16", "bf16")
    source = source.replace("__float2nv_bfloat16", "__float2bfloat16")
    answer = prove(build(source, task=task), task)
    assert isinstance(answer, Verified), answer
    last = answer.tests[-1]
    assert (last.tier, last.name) == ("emulator", "schedules")
    assert re.search(r"\(1 latest, 1 eager, 1\d random\) without a fault$", last.message)


RACE = """\
  __shared__ float sums[256];
  sums[threadIdx.x] = sum;
  {barrier}
  const float other = sums[threadIdx.x ^ 32];
  {after}
  sums[threadIdx.x ^ 32] = other;
  __syncthreads();
"""


def staged(barrier: str, after: str) -> str:
    """Sums pass through shared memory to a thread of the next warp and back."""
    store = RACE.format(barrier=barrier, after=after) + "  if (row < m && column < n) d[row * n + column] = "
    return naive(guard="", total=SUM.replace("i < k", "i < k && row < m && column < n"), store=store + "sums[threadIdx.x];\n")


def test_a_missing_barrier_is_a_race_with_both_source_lines(build: Build) -> None:
    assert isinstance(prove(build(staged("__syncthreads();", "__syncthreads();"))), Verified)
    test = failure(prove(build(staged("", "__syncthreads();"))))
    assert (test.tier, test.name) == ("emulator", "shared-race")
    lines = re.findall(r"`(?:ld|st)\.shared[^`]*` \(kernel\.cu:(\d+)\)", test.message)
    assert len(set(lines)) == 2, test.message
    assert re.search(r"gemm, CTA \(\d, \d, 0\), warp \d, lanes 0x[0-9a-f]{8}, byte \d+ of shared memory", test.message)
    assert re.search(r"seen under (the latest|the eager|random) interleaving", test.message)


def test_equal_seeds_find_the_same_fault(build: Build) -> None:
    built = build(staged("", "__syncthreads();"))
    assert failure(prove(built, seed=7)) == failure(prove(built, seed=7))


ALONE = '  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");\n'
ONTO_OLD = STORE.replace("sum)", "isnan(old) ? sum : sum + old)")
OLD = "  const float old = __half2float(d[row * n + column]);\n"


@pytest.mark.parametrize(
    ("source", "tier", "name"),
    [
        (naive(guard="  if (column >= n) return;\n"), "emulator", "global-out-of-bounds"),
        (naive(store="  const_cast<half*>(a)[row * k] = 0;\n" + STORE), "emulator", "input-written"),
        (naive(store="  if (row) " + STORE.strip() + "\n"), "guards", "unwritten"),
        (naive(total=SUM.replace("i = 0", "i = 1")), "exact", "zero-one"),
        (naive(total=OLD + SUM, store=ONTO_OLD), "emulator", "uninitialised-read"),
        (naive(first=ALONE), "emulator", "deadlock"),
        (naive(first="  while (k > 0) asm volatile(\"\" ::: \"memory\");\n"), "emulator", None),
    ],
    ids=["reads-past-a", "writes-a", "leaves-a-row", "leaves-out-k", "reads-d", "waits-alone", "never-ends"],
)  # fmt: skip
def test_a_broken_rule_is_named(build: Build, source: str, tier: str, name: str | None) -> None:
    test = failure(prove(build(source)))
    if name is None:
        assert test.tier == tier
        assert test.name in ("endless", "deadlock")
    else:
        assert (test.tier, test.name) == (tier, name), test.message


def test_a_deadlock_says_who_waits_where(build: Build) -> None:
    message = failure(prove(build(naive(first=ALONE)))).message
    assert re.match(r"no warp can make progress: CTA \(\d, \d, 0\) warp 0 at `bar[^`]*1, 64` \(kernel\.cu:\d+\)", message), (
        message
    )


def test_a_deadlock_tells_the_barrier_and_what_it_lacks(build: Build) -> None:
    test = failure(prove(build(naive(first=ALONE))))
    assert test.symptoms is not None
    [wait] = test.symptoms.waits
    assert (wait.kind, wait.barrier, wait.arrived, wait.expected, wait.phase) == ("named", "named barrier 1", 32, 64, None)
    assert re.match(r"warp 0 of CTAs \(0, 0, 0\), ", wait.warps)
    assert re.match(r"`bar[^`]*1, 64` \(kernel\.cu:\d+\)", wait.at)


MBARRIER = """\
  __shared__ unsigned long long barrier;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" :: "r"(at) : "memory");
  __syncthreads();
  if (threadIdx.x == 32) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 64;" :: "r"(at) : "memory");
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra again; }"
               :: "r"(at) : "memory");
"""


def test_a_wait_at_an_mbarrier_tells_its_phase_arrivals_and_bytes(build: Build) -> None:
    test = failure(prove(build(naive(first=MBARRIER))))
    assert test.symptoms is not None
    wait = test.symptoms.waits[0]
    assert (wait.kind, wait.phase, wait.arrived, wait.expected) == ("mbarrier", 0, 1, 3)
    assert (wait.missing_bytes, wait.announced) == (64, 64)
    assert re.match(r"mbarrier at byte \d+ of shared memory", wait.barrier)
    assert wait.warps.startswith("warps 0-7 of CTA")
    said = "; ".join(wait.history)
    assert re.search(r"initialised at `mbarrier\.init[^`]*` .*last arrival at `mbarrier\.arrive\.expect_tx", said), said


def test_what_a_wrong_result_is_made_of_is_told(build: Build) -> None:
    test = failure(prove(build(naive(total=SUM.replace("b[i * n + column]", "b[i * n + (column ^ 4)]")))))
    assert test.symptoms is not None
    assert test.symptoms.sources == (
        "B (100% of the probed elements): columns 0-3 hold 4-7, 4-7 hold 0-3, in every 8; "
        "B was read from other columns, or D stored to other columns",
    )
    assert test.symptoms.places is not None


def test_a_kernel_that_runs_out_of_time_tells_where_its_warps_are(build: Build) -> None:
    built = build(naive(first='  while (k > 0) asm volatile("" ::: "memory");\n'), None, TASK)
    answer = prove(built, timeout_s=0.3)  # it would be found to be endless after a second or two
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, TimedOut), answer.evaluation
    assert answer.evaluation.symptoms is not None
    assert "kernel.cu:" in answer.evaluation.symptoms.waits[0].at


def test_a_read_of_nothing_is_a_fault_only_where_it_reaches_an_output(build: Build) -> None:
    shared = "  __shared__ float nothing[256];\n  const float value = *(volatile float*)(nothing + threadIdx.x);\n"
    harmless = "  if (value == 3.25f && row > m) d[0] = __float2half(value);\n"
    answer = prove(build(naive(first=shared, store=harmless + STORE)))
    assert isinstance(answer, Verified), answer
    assert re.search(r"reached no output: uninitialised-read in \d+ runs", answer.tests[-1].message)
    test = failure(prove(build(naive(first=shared, store=STORE.replace("(sum)", "(sum + 0 * value)")))))
    assert (test.tier, test.name) == ("emulator", "uninitialised-read")


COUNTER = ", unsigned* counter"
COUNT = "  if (threadIdx.x == 0) atomicAdd(counter, 1);\n"


def test_a_workspace_is_handed_over_as_the_plan_says(build: Build) -> None:
    restored = plan(args=({"workspace": 0},), workspace={"bytes": 64, "zero": "restored", "zero_bytes": 4})
    wraps = "  if (threadIdx.x == 0) atomicInc(counter, gridDim.x * gridDim.y - 1);\n"
    assert isinstance(prove(build(naive(first=wraps, parameters=COUNTER), restored)), Verified)
    test = failure(prove(build(naive(first=COUNT, parameters=COUNTER), restored)))
    assert (test.tier, test.name) == ("guards", "workspace")
    assert "not restored to zero" in test.message
    zeroed = plan(args=({"workspace": 0},), workspace={"bytes": 64, "zero": True})
    uses = STORE.replace("(sum)", "(sum + (counter[1] != 0))")
    assert isinstance(prove(build(naive(first=COUNT, store=uses, parameters=COUNTER), zeroed)), Verified)
    stale = plan(args=({"workspace": 0},), workspace={"bytes": 64})
    test = failure(prove(build(naive(store=uses, parameters=COUNTER), stale)))
    assert (test.tier, test.name) == ("emulator", "uninitialised-read")


WAIT = '  asm volatile("griddepcontrol.wait;" ::: "memory");\n'


def test_a_programmatic_launch_must_wait_for_the_kernel_ahead(build: Build) -> None:
    programmatic = plan(launch={"programmatic": True})
    answer = prove(build(naive(first=WAIT), programmatic))
    assert isinstance(answer, Verified), answer
    assert ("programmatic", "late-producer") in [(test.tier, test.name) for test in answer.tests]
    test = failure(prove(build(naive(), programmatic)))
    assert (test.tier, test.name) == ("emulator", "dependency")
    assert isinstance(prove(build(naive())), Verified)


def test_launches_follow_each_other(build: Build) -> None:
    """Two launches: halves of K through the workspace, then their sum; the second waits only if it says so."""
    store = "  float* out = partial + (blockIdx.z * m + row) * n + column;\n  *out = sum;\n"
    total = SUM.replace("i = 0; i < k", "i = blockIdx.z * (k / 2); i < (blockIdx.z + 1) * (k / 2)")
    part = naive(total=total, store=store, parameters=", float* partial")
    reads = "  const float sum = partial[row * n + column] + partial[(m + row) * n + column];\n"
    for first, verdict in ((WAIT, Verified), ("", Done)):
        reduce = naive(first=first, total=reads, parameters=", float* partial").partition("\n\n")[2].replace("gemm(", "sum(")
        args = (*({"tensor": name} for name in "AB"), {"tensor": "D", "access": "write"}, *({"scalar": x} for x in "MNK"))
        launches = tuple(
            {
                "entry": entry,
                "grid": ("ceil(N/16)", "ceil(M/16)", depth),
                "block": (256, 1, 1),
                "args": (*args, {"workspace": 0}),
                "programmatic": entry == "sum",
            }
            for entry, depth in (("gemm", 2), ("sum", 1))
        )
        both = plan(launches=launches, workspace={"bytes": "8*M*N"})
        answer = prove(build(part + reduce, both))
        assert isinstance(answer, verdict), answer
        if isinstance(answer, Done):
            assert failure(answer).name == "dependency"


def test_what_cannot_be_executed_is_no_pass(build: Build) -> None:
    unknown = naive(first='  asm volatile("{ .reg .b32 x, y; mov.b32 y, 7; vadd.u32.u32.u32 x, y, y; }");\n')
    answer = prove(build(unknown))
    assert isinstance(answer, NotExecuted), answer
    assert re.search(r"the emulator does not support opcode vadd\S+ \(kernel\.cu:4\)", answer.reason)
    launcher = build(naive()).model_copy(update={"candidate": host("int launch() {}")})
    answer = prove(launcher)
    assert isinstance(answer, NotExecuted)
    assert "GPU" in answer.reason


def test_other_parameters_than_the_plan_passes_are_refused(build: Build) -> None:
    built = build(naive())
    narrow = built.candidate.model_copy(update={"plan": plan(args=({"scalar": 1},))})
    answer = prove(built.model_copy(update={"candidate": narrow, "plan": None}))
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, Crashed)
    assert "takes parameters of [8, 8, 8, 4, 4, 4] bytes" in answer.evaluation.message


def test_a_proof_that_takes_too_long_times_out(build: Build) -> None:
    task = GemmTask(m=256, n=256, k=512)
    answer = prove(build(naive(), task=task), task, timeout_s=0.05)
    assert isinstance(answer, Done)
    assert isinstance(answer.evaluation, TimedOut)
    assert (answer.evaluation.stage, answer.evaluation.limit_s) == ("verify", TIME_SHARE * 0.05)
    assert re.fullmatch(
        r"the last [\d.e-]+ s of them in one run, under the latest interleaving(, at `.+` \(kernel.cu:\d+\))?",
        answer.evaluation.message,
    )
    assert VerifyOptions().timeout_s > 1


def test_a_plan_that_no_part_of_can_be_resolved_is_not_executed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(naive())

    def refuse(*_: object) -> None:
        raise PlanError("plan-workspace", "a workspace of 3 GiB")

    monkeypatch.setattr("cudal2_agent.contract.records.build.resolve", refuse)
    assert prove(built.model_copy(update={"plan": None})) == NotExecuted(
        reason="the emulator cannot run a part of this plan: a workspace of 3 GiB"
    )


def test_a_proof_without_a_seed_draws_one_and_says_it(build: Build) -> None:
    evaluator, built = Evaluator(REFERENCE_CHIPS[TASK.arch], lambda _: None), build(naive(total=SUM.replace("i = 0", "i = 1")))
    request = Evaluate(built=built, task=TASK, verify=VerifyOptions(timeout_s=60))
    tests = [failure(evaluator.evaluate(request)) for _ in range(2)]
    assert tests[0].seed not in (None, tests[1].seed)
    assert tests[0].seed is not None
    assert failure(prove(built, seed=tests[0].seed)) == tests[0]


MEETS = """\
  counter[2 + (blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.x] = threadIdx.x;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned all = gridDim.x * gridDim.y;
    atomicAdd(counter, 1);
    WAIT
  }
  __syncthreads();
  __threadfence();
  const unsigned next = (blockIdx.y * gridDim.x + blockIdx.x + 1) % (gridDim.x * gridDim.y);
  const unsigned value = __ldcg(counter + 2 + next * 256 + threadIdx.x);
"""
WAITS = {
    "volatile": "while (*(volatile unsigned*)counter < all);",
    "atomic": "while (atomicAdd(counter, 0) < all) __nanosleep(64);",
    "counted": "for (int tries = 0; *(volatile unsigned*)counter < all; ++tries) if (tries > 1 << 30) break;",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctas_that_wait_for_each_other_by_a_counter_are_verified(build: Build, wait: str) -> None:
    zeroed = plan(args=({"workspace": 0},), workspace={"bytes": 65536, "zero": True, "zero_bytes": 8})
    store = STORE.replace("(sum)", "(value == threadIdx.x ? sum : 0)")
    answer = prove(build(naive(first=MEETS.replace("WAIT", wait), store=store, parameters=COUNTER), zeroed))
    assert isinstance(answer, Verified), answer
    if wait == WAITS["counted"]:
        return  # which gives up by itself
    alone = wait.replace("< all", "<= all")
    test = failure(prove(build(naive(first=MEETS.replace("WAIT", alone), store=store, parameters=COUNTER), zeroed)))
    assert (test.tier, test.name) == ("emulator", "deadlock")


def test_a_pool_of_emulators_answers_as_one_of_gpus(build: Build) -> None:
    stages: list[str] = []
    pool = WorkerPool(
        [WorkerOptions()],
        on_stage=lambda _, stage: stages.append(stage),
        command=command(Arch.SM_80),
        memory_bytes=MEMORY_BYTES,
    )
    ready = pool.ready()
    assert ready.environment is None
    assert ready.chip.arch is Arch.SM_80
    options = VerifyOptions(timeout_s=60)
    right = build(naive())
    answer = pool.evaluate(Evaluate(built=right, task=TASK, verify=options, time=TimeOptions()))
    assert isinstance(answer, Verified)
    assert stages == ["load", "verify"]
    wrong = build(naive(store=STORE.replace("sum", "2 * sum")))
    verdict = pool.evaluate(Evaluate(built=wrong, task=TASK, verify=options))
    assert not isinstance(verdict, Verified | NotExecuted)
    assert verdict.status == "wrong"
    launcher = right.model_copy(update={"candidate": host("int launch() {}")})
    assert isinstance(pool.evaluate(Evaluate(built=launcher, task=TASK, verify=options)), NotExecuted)
    assert isinstance(prove(right), Verified)
    pool.close()


def test_an_arch_that_nobody_knows_is_refused() -> None:
    asked = [sys.executable, "-m", "cudal2_agent.sandbox.emulator.worker", "--arch", "sm_1"]
    done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"sm_90a" in done.stderr


def test_the_collector_rests_until_damaged_ptx_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    task, parse, enabled = GemmTask(m=64, n=64, k=64), kernel.parse, list[bool]()

    def observed(ptx: str) -> object:
        enabled.append(gc.isenabled())
        return parse(ptx)

    monkeypatch.setattr(kernel, "parse", observed)
    family = next(one for one in families(task.arch) if one.supports(task))
    candidate = family.write(next(iter(family.space(task, REFERENCE_CHIPS[task.arch]))), task)
    assert candidate.plan is not None
    plan = resolve(candidate.plan, task, LIMITS[task.arch], REFERENCE_CHIPS[task.arch].sms)
    with pytest.raises(PtxError):
        EmulatedKernel(candidate.id, ".visible .entry broken(", plan, task)
    assert enabled == [False]
    assert gc.isenabled()
