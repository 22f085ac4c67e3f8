"""Special values: right kernels pass for any shape and seed; kernels that lose a NaN, a zero or a subnormal fail."""

import itertools

import numpy as np
import pytest

from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.sandbox.verification import tiers
from cudal2_agent.sandbox.verification.cases import PATTERNS, CaseStore, cases_for
from cudal2_agent.sandbox.verification.comparison import INFINITY_BITS, compare_exact
from cudal2_agent.sandbox.verification.elements import POISON, POISONS, Poisons, decode, encode
from cudal2_agent.sandbox.verification.executor import Traits
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.reference import Reference
from cudal2_agent.sandbox.verification.tiered_proof import run_until_failure
from cudal2_agent.sandbox.verification.tiers import Proof
from tests.sandbox.verification.in_memory import InMemoryExecutor, Memory, honest, product, prove

pytestmark = pytest.mark.usefixtures("without_patterns")
KINDS = [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")]
SHAPES = [(40, 56, 96), (70, 50, 33)]


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request):
    element, accumulate = request.param
    return {"element": ElementType(element), "accumulate": AccumulatorType(accumulate)}


@pytest.fixture(params=SHAPES, ids=str)
def task(request, kind):
    m, n, k = request.param
    return GemmTask(m=m, n=n, k=k, **kind)


def fails(task, kernel, *names, earlier=()):
    """The kernel fails one of the named tests for every seed; for a random one it may fail one of `earlier` before."""
    for seed in (None, 1):
        last = prove(task, kernel, seed=seed)[-1]
        assert not last.passed
        assert last.name in (names if seed else (*names, *earlier)), last
        assert last.seed is not None


@pytest.fixture
def without_patterns(monkeypatch):
    """The case of drawn bit patterns finds by chance what other cases must find alone."""
    monkeypatch.setattr(tiers, "cases_for", lambda task: tuple(case for case in cases_for(task) if case is not PATTERNS))


def values(task, memory: Memory):
    return decode(np, memory.a, task.element), decode(np, memory.b, task.element)


def width(task):
    return np.float32 if task.accumulate == "f32" else np.float16


def store(task, memory: Memory, a, b):
    memory.d[:] = product(task, encode(np, a, task.element), encode(np, b, task.element), dtype=width(task))


def smallest_normal(task):
    return 2.0**-14 if task.element is ElementType.F16 else 2.0**-126


@pytest.mark.parametrize("seed", range(6))
def test_the_right_kernel_passes(kind, seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(size) for size in rng.integers(1, [90, 90, 300]))
    tests = prove(GemmTask(m=m, n=n, k=k, **kind), honest, library=bool(seed % 2), seed=None)
    assert tests[-1].passed, tests[-1]


@pytest.mark.parametrize("operand", ["a", "b"])
def test_flushing_subnormals_of_one_operand_fails(task, operand):
    def kernel(task, memory: Memory):
        read = dict(zip("ab", values(task, memory), strict=True))
        read[operand] = np.where(np.abs(read[operand]) < smallest_normal(task), 0, read[operand])
        store(task, memory, read["a"], read["b"])

    fails(task, kernel, "extremes", earlier=("cancellation",))  # has a subnormal input with one seed in many


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("share", [3000 / 65504, 1 / 2, 1 - 2.0**-7])
def test_clamping_one_operand_fails(task, operand, share):
    """At a share of the largest number."""
    most = share * (65504.0 if task.element is ElementType.F16 else float(np.float32((2 - 2.0**-7) * 2.0**127)))

    def kernel(task, memory: Memory):
        read = dict(zip("ab", values(task, memory), strict=True))
        finite = np.isfinite(read[operand])
        read[operand] = np.where(finite, np.clip(read[operand], -most, most), read[operand])
        store(task, memory, read["a"], read["b"])

    fails(task, kernel, "extremes", earlier=("cancellation",))


@pytest.mark.parametrize("operand", ["a", "b"])
def test_scaling_one_operand_in_its_own_type_fails(task, operand):
    """By 16, so that large numbers overflow, and back in the sum."""

    def kernel(task, memory: Memory):
        read = dict(zip("ab", values(task, memory), strict=True))
        with np.errstate(over="ignore", invalid="ignore"):
            read[operand] = decode(np, encode(np, read[operand] * 16, task.element), task.element) / 16
        store(task, memory, read["a"], read["b"])

    fails(task, kernel, "extremes")


def test_flushing_subnormal_results_fails(task):
    def kernel(task, memory: Memory):
        honest(task, memory)
        d = decode(np, memory.d, task.element)
        memory.d[:] = encode(np, np.where(np.abs(d) < smallest_normal(task), np.copysign(0, d), d), task.element)

    fails(task, kernel, "subnormal-results", "cancellation", "gaussian")  # these have a few subnormal results too


def test_truncating_subnormal_results_fails(task):
    """Rounds subnormals towards zero, as a conversion by shifts does."""
    if task.accumulate == "f16":
        pytest.skip("an f16 accumulator holds every such result exactly")
    tiny = 2.0**-24 if task.element is ElementType.F16 else 2.0**-133

    def kernel(task, memory: Memory):
        honest(task, memory)
        a, b = (values.astype(np.float64) for values in values_of(task, memory))
        with np.errstate(invalid="ignore", over="ignore"):
            sums = a @ b
            small = np.abs(sums) < smallest_normal(task)
            cut = np.copysign(np.trunc(np.where(small, sums, 0) / tiny) * tiny, sums)
        memory.d[small] = encode(np, cut, task.element)[small]

    values_of = values
    fails(task, kernel, "subnormal-results", "cancellation", "gaussian")


def test_losing_the_sign_of_what_rounds_to_zero_fails(task):
    if task.accumulate == "f16":
        pytest.skip("an f16 accumulator rounds none of these results to zero")

    def kernel(task, memory: Memory):
        honest(task, memory)
        memory.d[memory.d == 0x8000] = 0

    fails(task, kernel, "subnormal-results")


def test_either_zero_is_right_where_the_sum_is_zero(task):
    """Tensor cores do not define the sign of a sum of zeros, or of one that cancels."""

    def kernel(task, memory: Memory):
        honest(task, memory)
        a, b = values(task, memory)
        with np.errstate(invalid="ignore", over="ignore"):
            exact = a.astype(np.float64) @ b.astype(np.float64)
        memory.d[exact == 0] = 0x8000

    assert prove(task, kernel, seed=None)[-1].passed


def skipping_elements(operand):
    """Treats every product with a zero operand as zero."""

    def kernel(task, memory: Memory):
        a, b = values(task, memory)
        with np.errstate(invalid="ignore", over="ignore"):
            honest(task, memory)
            used = (
                (a != 0).astype(np.float64) @ (~np.isfinite(b))
                if operand == "a"
                else (~np.isfinite(a)) @ (b != 0).astype(float)
            )
            finite = product(
                task, *(encode(np, np.where(np.isfinite(x), x, 0), task.element) for x in (a, b)), dtype=width(task)
            )
        other = np.isfinite(a).all(axis=1)[:, None] if operand == "a" else np.isfinite(b).all(axis=0)[None]
        skipped = (used == 0) & other
        memory.d[skipped] = finite[skipped]

    return kernel


@pytest.mark.parametrize("operand", ["a", "b"])
def test_skipping_zero_elements_fails(task, operand):
    fails(task, skipping_elements(operand), "nonfinite", "zero-times")


def skipping_blocks(operand, lines, depth):
    """A tiled kernel that skips blocks of zeros."""

    def kernel(task, memory: Memory):
        a, b = values(task, memory)
        total = np.zeros((task.m, task.n), dtype=width(task))
        with np.errstate(invalid="ignore", over="ignore"):
            for k in range(0, task.k, depth):
                left, right = a[:, k : k + depth].astype(float), b[k : k + depth].astype(float)
                keep = np.ones(total.shape, dtype=bool)
                for start in range(0, task.m if operand == "a" else task.n, lines):
                    block = slice(start, start + lines)
                    if not (left[block] if operand == "a" else right[:, block]).any():
                        keep[block if operand == "a" else (slice(None), block)] = False
                part = left @ right
                total = np.where(keep, (total.astype(float) + part).astype(width(task)), total)
        memory.d[:] = encode(np, total.astype(np.float32), task.element)

    return kernel


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize(("lines", "depth"), [(16, 16), (128, 32), (32, 256)])
def test_skipping_blocks_of_zeros_fails(kind, operand, lines, depth):
    fails(GemmTask(m=130, n=140, k=130, **kind), skipping_blocks(operand, lines, depth), "nonfinite", "zero-times")


def losing(what):
    """Replaces NaNs, or infinities, of one operand by numbers."""

    def kernel(task, memory: Memory):
        operand, kind = what.split("-")
        read = dict(zip("ab", values(task, memory), strict=True))
        gone = np.isnan if kind == "nan" else np.isinf
        read[operand] = np.where(gone(read[operand]), 1, read[operand])
        store(task, memory, read["a"], read["b"])

    return kernel


@pytest.mark.parametrize("what", ["a-nan", "a-inf", "b-nan", "b-inf"])
def test_losing_a_nan_or_an_infinity_fails(task, what):
    fails(task, losing(what), "nonfinite", "zero-times")


def test_infinities_that_do_not_cancel_fail(task):
    """NaN inputs are kept; Inf - Inf gives an infinity."""

    def kernel(task, memory: Memory):
        honest(task, memory)
        a, b = values(task, memory)
        made = np.isnan(decode(np, memory.d, task.element))
        made &= ~np.isnan(a).any(axis=1)[:, None] & ~np.isnan(b).any(axis=0)[None]
        memory.d[made] = INFINITY_BITS[task.element]

    fails(task, kernel, "nonfinite", "zero-times")


def test_saturating_instead_of_overflowing_fails(task):
    def kernel(task, memory: Memory):
        honest(task, memory)
        top = INFINITY_BITS[task.element] - 1
        infinite = (memory.d & 0x7FFF) == INFINITY_BITS[task.element]
        memory.d[infinite] = (memory.d[infinite] & 0x8000) | top

    fails(task, kernel, "large", "nonfinite")


def never_storing(which):
    """Does not store NaN outputs (in one row, in one column, or everywhere)."""

    def kernel(task, memory: Memory):
        old = memory.d.copy()
        honest(task, memory)
        missing = np.isnan(decode(np, memory.d, task.element))
        if which == "row":
            missing &= (np.arange(task.m) == task.m - 1)[:, None]
        elif which == "one":
            missing &= np.cumsum(missing.ravel()).reshape(missing.shape) == 1
        memory.d[missing] = old[missing]

    return kernel


@pytest.mark.parametrize("which", ["all", "row", "one"])
def test_a_nan_that_is_never_stored_fails(task, which):
    fails(task, never_storing(which), "unwritten")


def test_a_kernel_that_stores_a_nan_of_its_own_is_right():
    """An executor may draw the poison that equals a kernel's NaN; the next run shows that the kernel stored it."""
    task = GemmTask(m=40, n=56, k=96)
    for own in POISONS[::50]:

        def kernel(task, memory: Memory, own=own):
            honest(task, memory)
            memory.d[np.isnan(decode(np, memory.d, task.element))] = own

        class Same(Poisons):
            """Draws the same poison every second time."""

            def next(self, own=own):
                drawn = super().next()
                self.odd = not getattr(self, "odd", False)
                return own if self.odd else drawn if drawn != own else POISON

        executor = InMemoryExecutor(task, kernel)
        executor._poisons = Same(0)
        tests = run_until_failure(Proof(executor, task, Traits(), CaseStore(np, task, 2**26), VerifyOptions()).tests())
        assert tests[-1].passed, tests[-1]


@pytest.mark.parametrize("element", list(ElementType))
def test_poisons_are_nans_that_no_reference_has(element):
    bits = np.array(POISONS, dtype=np.uint16)
    assert np.isnan(decode(np, bits, element)).all()
    assert np.isnan(np.repeat(bits, 2).view(np.float32)).all()
    computed = encode(np, np.array([np.nan, -np.nan, np.inf - np.inf, 0 * np.inf], dtype=np.float32), element)
    assert not set(POISONS) & {int(one) for one in computed}
    drawn = Poisons(3)
    row = [drawn.next() for _ in range(400)]
    assert all(one != following for one, following in itertools.pairwise(row))
    assert len(set(row)) > 150


def test_exact_comparison_takes_any_nan_but_the_poison():
    task = GemmTask(m=1, n=3, k=1)
    inputs = Inputs(encode(np, np.array([[np.nan]]), task.element), encode(np, np.ones((1, 3)), task.element))
    reference = Reference(np, task, inputs, keep=True)
    output = np.array([[0x7FFF, 0x7F91, 0xFE00]], dtype=np.uint16)
    assert compare_exact(np, task, output, reference).mismatches == 0
    found = compare_exact(np, task, output, reference, poison=0x7F91)
    assert (found.mismatches, found.unwritten, found.unwritten_nan) == (1, 1, 1)
    assert "never written" in found.describe()


def test_declared_atomics_are_not_asked_for_bf16_subnormal_sums():
    """f32 atomics on global memory flush subnormals, so an honest kernel with atomics cannot keep them."""
    task = GemmTask(m=40, n=56, k=96, element=ElementType.BF16)

    def kernel(task, memory: Memory):
        honest(task, memory)
        d = decode(np, memory.d, task.element)
        memory.d[:] = encode(np, np.where(np.abs(d) < 2.0**-126, np.copysign(0, d), d), task.element)

    assert prove(task, kernel, seed=0)[-1].name == "subnormal-results"
    assert prove(task, kernel, traits=Traits(atomics=True))[-1].passed
