"""What a model would gain: what is served, what is not and why, and shares of calls and time."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cudal2.dispatch.padded_m_rule import shipped_rule
from cudal2.library.kernel_library import open_library, shipped_library
from cudal2_agent.agent.cli.render.advice_table import advice_lines
from cudal2_agent.agent.library.advise.advice import Advice, ProductAdvice, Status, advise
from cudal2_agent.agent.library.advise.known_kernels import (
    KnownKernels,
    autotuning_times,
    kernels_of,
    latest_searches,
    padded_entry_of,
)
from cudal2_agent.agent.library.advise.library_times import CallTime, LibraryTimes
from cudal2_agent.agent.library.advise.products import CountedProduct, MatrixProduct, Recording
from cudal2_agent.agent.library.measured_kernels import MeasuredKernel, kernels_of_rows
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.evaluation import AUTOTUNED, HEURISTIC
from cudal2_agent.contract.records.task import Arch, ElementType, GemmTask, Layout
from tests.agent.library.advise.test_products import product
from tests.doubles.campaign_rows import shape_result
from tests.doubles.libraries import library_entry, speedup, stored_algorithm, write_entries

CHIP = REFERENCE_CHIPS[Arch.SM_90A]
ROWS = Path(__file__).parents[4] / "benchmarks/campaigns/rows/offline-2026-11-23.jsonl.gz"
PREDICTED_US = 100.0


@pytest.fixture(autouse=True)
def _predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: PREDICTED_US)


def task(**changes: object) -> GemmTask:
    return GemmTask.model_validate({"m": 4, "n": 16, "k": 8} | changes)


def library(ratios: dict[GemmTask, float], chip: str = "H200") -> KnownKernels:
    """Entries that take 2.6 us over their ratio, give or take 0.01 of the ratio."""
    entries = {one: library_entry(one, ratio) for one, ratio in ratios.items()}
    return KnownKernels("small", chip, Arch.SM_90A, entries.get)


def searched(one: GemmTask, ratio: float) -> MeasuredKernel:
    row = shape_result(one.shape, autotuned_us=8.0, plain=ratio)
    assert row.best_without is not None
    winner = row.best_without.model_copy(update={"speedup": speedup(ratio)})
    return MeasuredKernel("H200", winner, row)


def advice(
    products: dict[MatrixProduct, int],
    kernels: KnownKernels,
    searches: dict[GemmTask, MeasuredKernel] | None = None,
    **recording: object,
) -> Advice:
    counted = tuple(CountedProduct(product=one, calls=calls) for one, calls in products.items())
    told = Recording(products=counted).model_copy(update=recording)
    found = searches or {}
    return advise("model.py", told, kernels, found, LibraryTimes(autotuning_times(found), CHIP))


def only(found: Advice) -> ProductAdvice:
    (one,) = found.products
    return one


def test_a_served_product_gains_what_its_race_measured() -> None:
    found = only(advice({product(): 3}, library({task(): 1.3})))
    assert found.status == "served"
    assert found.autotuning is not None
    assert (found.autotuning.us, found.autotuning.predicted) == (2.6, False)
    assert found.gain_us is not None
    assert found.gain_us.value == pytest.approx(3 * (2.6 - 2.0))
    assert found.gain_us.low == pytest.approx(3 * (2.6 - 2.6 / 1.29))
    assert found.gain_us.high == pytest.approx(3 * (2.6 - 2.6 / 1.31))


@pytest.mark.parametrize(
    ("in_library", "in_store", "status"),
    [
        (1.3, None, "served"),
        (1.3, 0.9, "served"),
        (1.005, None, "no faster"),
        (None, 1.005, "no faster"),
        (None, 1.3, "unbuilt"),
        (None, None, "missing"),
    ],
)
def test_only_an_entry_that_beats_autotuning_with_its_whole_interval_is_called(
    in_library: float | None, in_store: float | None, status: Status
) -> None:
    searches = {} if in_store is None else {task(): searched(task(), in_store)}
    found = only(advice({product(): 1}, library({} if in_library is None else {task(): in_library}), searches))
    assert found.status == status
    assert (found.gain_us is not None) == (status == "served")
    assert (found.speedup is None) == (status == "missing")


@pytest.mark.parametrize(("ratio", "in_store"), [(None, None), (0.9, None), (None, 0.9)])
def test_a_product_that_a_stored_algorithm_runs_gains_over_pytorch_alone(ratio: float | None, in_store: float | None) -> None:
    """It takes 6 us where PyTorch takes 7.5. No figure of kernels counts it."""
    kernels = library({} if ratio is None else {task(): ratio})._replace(algorithm={task(): stored_algorithm(task())}.get)
    found = advice({product(): 3}, kernels, {} if in_store is None else {task(): searched(task(), in_store)})
    one, whole = only(found), found.whole
    assert (one.status, one.kernel_us, one.speedup, one.gain_us) == ("algorithm", 6.0, None, None)
    assert one.autotuning == CallTime(us=6.0, predicted=False)
    assert one.torch_gain_us == pytest.approx(3 * 1.5)
    assert (whole.served_calls, whole.algorithm_calls, whole.torch_gain_us) == (0, 3, pytest.approx(4.5))
    text = "\n".join(advice_lines(found, [], written=False))
    assert "algorithms of cuBLASLt that the library holds run 3 calls: 4.50 us per pass over PyTorch's own, by medians" in text
    assert "no matrix product has a kernel of its own" in text
    assert "not served" not in text


def test_a_product_that_an_entry_of_a_larger_m_runs_is_counted_and_gains_nothing(tmp_path: Path) -> None:
    """Its kernel was timed for more rows only. The entry of 4 rows serves 3, by the rule that dispatch has."""
    rule = shipped_rule()
    own = library_entry(task(), 1.5)
    here = own.model_copy(update={"evaluation": own.evaluation.model_copy(update={"environment": rule.measured})})
    opened = open_library(write_entries(tmp_path / "small", [here]))
    kernels = kernels_of(opened)._replace(algorithm={task(m=3): stored_algorithm(task(m=3))}.get)
    shapes = {product(m=m): 2 for m in (4, 3, 2)}
    found = advice(shapes, kernels, {task(m=3): searched(task(m=3), 1.3)})
    assert {one.product.m: one.status for one in found.products} == {4: "served", 3: "padded M", 2: "missing"}
    (one,) = [one for one in found.products if one.status == "padded M"]
    assert (one.kernel_us, one.speedup, one.gain_us, one.torch_gain_us) == (None, None, None, None)
    assert (found.whole.served_calls, found.whole.padded_calls, found.whole.algorithm_calls) == (2, 2, 0)
    text = "\n".join(advice_lines(found, [], written=False))
    assert "entries of a padded M run 2 calls; what that spares was not measured for them" in text
    assert "not served: 2 of 6 calls, the library has no kernel" in text
    elsewhere = padded_entry_of(opened, rule.model_copy(update={"measured": "H100 driver-1 toolkit-13.0 cublas-13.1.0"}))
    assert elsewhere(task(m=3)) is None
    assert only(advice({product(m=3): 1}, kernels._replace(chip="H100"))).status == "missing"


def test_a_kernel_comes_before_an_algorithm_which_serves_no_other_chip() -> None:
    stored = {task(): stored_algorithm(task())}.get
    assert only(advice({product(): 1}, library({task(): 1.3})._replace(algorithm=stored))).status == "served"
    assert only(advice({product(): 1}, library({}, chip="H100")._replace(algorithm=stored))).status == "missing"
    assert only(advice({product(operator="addmm"): 1}, library({})._replace(algorithm=stored))).status == "outside"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"element": "f32"}, "f32 elements"),
        ({"operator": "addmm"}, "adds a matrix"),
        ({"operator": "bmm", "batch": 2}, "a batch"),
        ({"operator": "baddbmm", "batch": 2}, "adds a matrix"),
        ({"layout": "tt"}, "layout tt"),
        ({"packed": False}, "not packed"),
        ({"m": 2**20, "k": 2**12}, "operands have over 2^31-1 elements"),
    ],
)
def test_what_no_library_computes_is_outside(changes: dict[str, object], why: str) -> None:
    """Even where an entry has the same sizes."""
    found = only(advice({product(**changes): 1}, library({task(): 1.3})))
    assert (found.status, found.reason, found.gain_us) == ("outside", why, None)


def test_element_and_layout_are_part_of_the_task() -> None:
    kernels = library({task(layout=Layout.TN, element=ElementType.BF16): 1.3})
    assert only(advice({product(layout="tn", element="bf16"): 1}, kernels)).status == "served"
    assert only(advice({product(layout="tn"): 1}, kernels)).status == "missing"


def test_over_the_heuristic_choice_medians_are_subtracted() -> None:
    evaluation = library_entry(task(), 1.3).evaluation.model_copy(update={"baselines_us": {AUTOTUNED: 2.6, HEURISTIC: 3.0}})
    measured = KnownKernels("small", "H200", Arch.SM_90A, {task(): library_entry(task(), 1.3, evaluation=evaluation)}.get)
    found = advice({product(): 3}, measured).whole
    assert found.heuristic_gain_us == pytest.approx(3 * (3.0 - 2.0))
    assert found.gain_us.value == pytest.approx(3 * 0.6)
    assert advice({product(): 3}, library({task(): 1.3})).whole.heuristic_gain_us is None


def test_a_library_of_another_chip_serves_nothing() -> None:
    assert only(advice({product(): 1}, library({task(): 1.3}, chip="H100"))).status == "missing"


def test_a_prediction_is_marked_and_never_part_of_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    products, kernels = {product(): 1, product(layout="tn", part="dX"): 2}, library({task(): 1.3})
    before = advice(products, kernels)
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 7 * PREDICTED_US)
    after = advice(products, kernels)
    assert before.whole.gain_us == after.whole.gain_us
    assert before.whole.gain_percent == after.whole.gain_percent
    assert before.whole.gain_percent.value == pytest.approx(100 * 0.6 / 2.6)
    assert (before.whole.time_us, after.whole.time_us) == pytest.approx((202.6, 1402.6))
    assert (before.whole.predicted_us, after.whole.predicted_us) == pytest.approx((200, 1400))


def test_shares_of_calls_and_time_by_part() -> None:
    products = {product(): 6, product(part="dX"): 1, product(part="dX", layout="tn"): 1, product(element="f32", part="dW"): 2}
    found = advice(products, library({task(): 1.3}), {task(layout=Layout.TN): searched(task(layout=Layout.TN), 0.9)})
    parts = {one.part: (one.calls, one.timed_calls, one.served_calls, one.time_us, one.served_us) for one in found.parts}
    assert parts == {
        "forward": (6, 6, 6, pytest.approx(15.6), pytest.approx(15.6)),
        "dX": (2, 2, 1, pytest.approx(10.6), pytest.approx(2.6)),
        "dW": (2, 0, 0, 0, 0),
        "all": (10, 8, 7, pytest.approx(26.2), pytest.approx(18.2)),
    }
    forward, dx = found.parts[0].gain_us, found.parts[1].gain_us
    whole = found.whole.gain_us
    assert whole.high - whole.value == pytest.approx(forward.high - forward.value + dx.high - dx.value), "one kernel, one error"


def test_times_of_a_trace_are_the_shares_of_time() -> None:
    counted = (
        CountedProduct(product=product(), calls=4, gpu_us=20.0),
        CountedProduct(product=product(element="f32"), calls=2, gpu_us=60.0),
    )
    recording = Recording(products=counted, passes=2, gpu="H200", capability=90, gpu_us=200.0)
    found = advise("trace.json", recording, library({task(): 1.3}), {}, LibraryTimes({}, CHIP))
    assert found.pass_us == 100.0
    assert [(one.traced_us, one.calls) for one in found.products] == [(30.0, 1), (5.0, 2)], "the longest first"
    whole = found.whole
    assert (whole.time_us, whole.predicted_us, whole.served_us) == (40.0, 0.0, 10.0)
    assert whole.gain_us.value == pytest.approx(2 * 0.6)


def test_what_the_library_was_searched_for_in_vain_is_not_missing() -> None:
    """On its own chip only, and a newer search of the store counts before it."""
    kernels = library({})._replace(no_faster=frozenset({"4x16x8 nn f16/f32"}))
    assert only(advice({product(): 1}, kernels)).status == "no faster"
    assert only(advice({product(layout="tn"): 1}, kernels)).status == "missing"
    assert only(advice({product(element="bf16"): 1}, kernels)).status == "missing"
    assert only(advice({product(): 1}, kernels._replace(chip="H100"))).status == "missing"
    assert only(advice({product(): 1}, kernels, {task(): searched(task(), 1.3)})).status == "unbuilt"
    by_algorithm = kernels._replace(algorithm=lambda one: stored_algorithm(one))
    assert only(advice({product(): 1}, by_algorithm)).status == "algorithm"
    lines = "\n".join(advice_lines(advice({product(): 1}, kernels), (), written=False))
    assert "not served: 1 of 1 calls, no kernel that was found beats AutoTuning" in lines


def test_the_newest_search_of_a_task_counts() -> None:
    old, new = searched(task(), 1.3), searched(task(), 0.9)
    later = new.row.model_copy(update={"finished_at": datetime(2027, 1, 1, tzinfo=UTC)})
    searches = latest_searches([new._replace(row=later), old, old._replace(chip="H100")], "H200")
    assert searches[task()].winner.speedup.ratio == 0.9


def test_real_rows_and_the_shipped_library_agree() -> None:
    """A shape of the H200's sweep that wins, and one that AutoTuning wins, as the rows tell them."""
    searches = latest_searches(kernels_of_rows([ROWS]), "H200")
    shipped = shipped_library("H200")
    assert shipped is not None
    kernels = kernels_of(shipped)
    won = next(one for one in searches if kernels.find(one) is not None)
    lost = next(one for one, found in searches.items() if found.winner.speedup.high < 1)
    products = {product(m=one.m, n=one.n, k=one.k): 1 for one in (won, lost)}
    found = {one.product.shape: one for one in advice(products, kernels, searches).products}
    assert {shape: one.status for shape, one in found.items()} == {won.shape: "served", lost.shape: "no faster"}
    row = searches[won].row
    gain = found[won.shape].gain_us
    assert row.best_without is not None
    assert gain is not None
    assert gain.value == pytest.approx(row.baselines_us[AUTOTUNED] * (1 - 1 / row.best_without.speedup.ratio))
