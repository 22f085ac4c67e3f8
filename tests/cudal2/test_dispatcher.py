"""The rules of dispatch: what is chosen, and why not."""

from collections.abc import Iterable

import pytest

from cudal2.dispatch.decision import Choice, Decision, FallbackCause, GpuIdentity
from cudal2.dispatch.dispatcher import Dispatcher, kind_code
from cudal2.dispatch.padded_m_rule import PaddedMRule, margin, shipped_rule
from cudal2.library.kernel_library import EntryRange, TaskKey, key_of, shipped_library
from cudal2_agent.contract.records.library import LibraryEntry, StoredAlgorithm
from cudal2_agent.contract.records.task import AccumulatorType, Activation, Arch, ElementType, GemmTask, Layout
from cudal2_agent.contract.reward.speedup import Speedup
from tests.doubles.libraries import ENVIRONMENT, PADDED_M_RULE, library_entry, m_range, stored_algorithm

GPU = GpuIdentity(gpu="H200", driver="580.1", arch=Arch.SM_90A, sms=132)
TASK = GemmTask(m=64, n=32, k=64)
NN = kind_code(Layout.NN, ElementType.F16, AccumulatorType.F32)


class Entries:
    """A library in memory. `asked`: how often it was searched."""

    def __init__(
        self, *entries: LibraryEntry, algorithm: StoredAlgorithm | None = None, ranges: Iterable[EntryRange] = ()
    ) -> None:
        self._ranges = list(ranges)
        self._entries = {key_of(entry.task): entry for entry in entries}
        self._algorithm = algorithm
        self.asked = 0

    def find(self, key: TaskKey) -> LibraryEntry | None:
        self.asked += 1
        return self._entries.get(key)

    def keys(self) -> Iterable[TaskKey]:
        return self._entries.keys()

    def ranges(self, key: TaskKey) -> Iterable[EntryRange]:
        return [one for one in self._ranges if key_of(one.entry.task)._replace(m=0) == key._replace(m=0)]

    def range_of(self, key: TaskKey) -> EntryRange | None:
        return next((one for one in self.ranges(key) if one.m_range.smallest <= key.m < one.entry.task.m), None)

    def algorithm(self, key: TaskKey) -> StoredAlgorithm | None:
        return self._algorithm if self._algorithm is not None and key_of(self._algorithm.task) == key else None


def decide(entry: LibraryEntry | None, gpu: GpuIdentity = GPU, **parts: object) -> Decision:
    library = Entries(*([] if entry is None else [entry]))
    return Dispatcher(library, gpu, **parts).decide(TASK.m, TASK.n, TASK.k, NN)  # type: ignore[arg-type]


def test_an_entry_that_wins_here_is_chosen() -> None:
    entry = library_entry(TASK, ratio=1.3)
    decision = decide(entry)
    assert (decision.choice, decision.entry, decision.task, decision.cause) == (Choice.EXACT, entry, TASK, None)
    assert "1.300 (1.290 to 1.310)" in decision.reason


@pytest.mark.parametrize(
    ("ratio", "gpu", "cause"),
    [
        (1.005, {}, FallbackCause.NOT_FASTER),
        (1.3, {"gpu": "H100"}, FallbackCause.OTHER_GPU),
        (1.3, {"gpu": "H20"}, FallbackCause.OTHER_GPU),
        (1.3, {"driver": "580.10"}, FallbackCause.OTHER_DRIVER),
        (1.3, {"nvrtc": "13.2"}, FallbackCause.OTHER_NVRTC),
        (1.3, {"nvrtc": "13.01"}, FallbackCause.OTHER_NVRTC),
        (1.3, {"arch": Arch.SM_80}, FallbackCause.OTHER_GPU),
        (1.3, {"arch": None}, FallbackCause.OTHER_GPU),
    ],
)
def test_an_entry_that_was_not_measured_to_win_here_is_left(ratio: float, gpu: dict[str, object], cause: FallbackCause) -> None:
    decision = decide(library_entry(TASK, ratio=ratio), GPU.model_copy(update=gpu))
    assert (decision.choice, decision.entry, decision.cause) == (Choice.HEURISTIC, None, cause)
    assert decision.reason == cause.sentence


@pytest.mark.parametrize(("here", "measured"), [("13.0", " toolkit-13.0"), ("", " toolkit-13.0"), ("13.2", "")])
def test_an_entry_is_chosen_with_its_own_nvrtc_or_where_either_is_not_known(here: str, measured: str) -> None:
    entry = library_entry(TASK, ratio=1.3)
    environment = entry.evaluation.environment.replace(" toolkit-13.0", measured)
    if not measured:
        environment = environment.partition(" cublas-")[0]
    entry = entry.model_copy(update={"evaluation": entry.evaluation.model_copy(update={"environment": environment})})
    assert decide(entry, GPU.model_copy(update={"nvrtc": here})).choice is Choice.EXACT


def test_a_stored_algorithm_needs_no_nvrtc() -> None:
    decision = decide_beside(library_entry(TASK, ratio=1.3), nvrtc="13.2")
    assert (decision.choice, decision.cause) == (Choice.AUTOTUNED, FallbackCause.OTHER_NVRTC)


def test_a_product_without_an_entry_is_left() -> None:
    assert decide(None).cause is FallbackCause.NO_ENTRY


@pytest.mark.parametrize("sizes", [(0, 32, 64), (64, 0, 64), (64, 32, 0)])
def test_an_empty_product_is_left(sizes: tuple[int, int, int]) -> None:
    assert Dispatcher(Entries(), GPU).decide(*sizes, NN).cause is FallbackCause.EMPTY


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(("element", "accumulate"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")])
def test_layout_and_types_are_part_of_the_product(layout: Layout, element: str, accumulate: str) -> None:
    task = TASK.model_copy(
        update={"layout": layout, "element": ElementType(element), "accumulate": AccumulatorType(accumulate)}
    )
    entry = library_entry(TASK).model_copy(update={"task": task})
    dispatcher = Dispatcher(Entries(entry), GPU)
    kinds = [kind_code(one, kind, width) for one in Layout for kind in ElementType for width in AccumulatorType]
    assert len(set(kinds)) == 12
    served = [kind for kind in kinds if dispatcher.decide(TASK.m, TASK.n, TASK.k, kind).choice is Choice.EXACT]
    assert served == [kind_code(task.layout, task.element, task.accumulate)]


def test_a_decision_is_made_once() -> None:
    library = Entries(library_entry(TASK))
    dispatcher = Dispatcher(library, GPU)
    first = dispatcher.decide(TASK.m, TASK.n, TASK.k, NN)
    assert dispatcher.decide(TASK.m, TASK.n, TASK.k, NN) is first
    assert library.asked == 1


STORED = stored_algorithm(TASK)
WITH_CUBLAS = GPU.model_copy(update={"cublas": "13.1.0"})


def decide_beside(entry: LibraryEntry | None, **gpu: object) -> Decision:
    """Of a library that holds an algorithm for the task."""
    library = Entries(*([] if entry is None else [entry]), algorithm=STORED)
    return Dispatcher(library, WITH_CUBLAS.model_copy(update=gpu)).decide(TASK.m, TASK.n, TASK.k, NN)


@pytest.mark.parametrize("ratio", [None, 0.9])
def test_the_stored_algorithm_is_run_where_no_entry_wins(ratio: float | None) -> None:
    decision = decide_beside(None if ratio is None else library_entry(TASK, ratio=ratio))
    cause = FallbackCause.NO_ENTRY if ratio is None else FallbackCause.NOT_FASTER
    assert (decision.choice, decision.algorithm, decision.entry, decision.cause) == (Choice.AUTOTUNED, STORED, None, cause)
    assert decision.reason.endswith(f"the stored algorithm of cuBLASLt is run: {STORED.words}")


def test_an_entry_that_wins_comes_before_an_algorithm() -> None:
    assert decide_beside(library_entry(TASK, ratio=1.3)).choice is Choice.EXACT


@pytest.mark.parametrize(
    ("gpu", "cause"),
    [
        ({"cublas": "13.1.1"}, FallbackCause.OTHER_CUBLAS),
        ({"cublas": "13.1"}, FallbackCause.OTHER_CUBLAS),
        ({"cublas": ""}, FallbackCause.NO_CUBLASLT),
        ({"gpu": "H100"}, FallbackCause.OTHER_GPU),
        ({"driver": "999"}, FallbackCause.OTHER_DRIVER),
        ({"arch": Arch.SM_80}, FallbackCause.OTHER_GPU),
    ],
)
def test_an_algorithm_of_elsewhere_is_not_run(gpu: dict[str, object], cause: FallbackCause) -> None:
    decision = decide_beside(None, **gpu)
    assert (decision.choice, decision.algorithm, decision.cause) == (Choice.HEURISTIC, None, cause)


LARGER = library_entry(TASK, ratio=1.34)  # its interval begins at 1.33, so that it may serve 49 rows and not 48


def padded(m: int, *entries: LibraryEntry, rule: PaddedMRule | None = PADDED_M_RULE, gpu: GpuIdentity = GPU) -> Decision:
    return Dispatcher(Entries(*entries), gpu, rule).decide(m, TASK.n, TASK.k, NN)


def of_m(m: int, ratio: float) -> LibraryEntry:
    return library_entry(TASK.model_copy(update={"m": m}), ratio=ratio)


def test_an_entry_is_lent_as_it_is_in_the_library() -> None:
    decision = padded(49, LARGER)
    assert (decision.choice, decision.cause) == (Choice.PADDED_M, FallbackCause.NO_ENTRY)
    assert decision.entry is LARGER
    assert decision.task == TASK.model_copy(update={"m": 49})
    assert "the entry of 64x32x64 serves it with a padded M" in decision.reason


@pytest.mark.parametrize("m", [64, 48])
def test_an_own_entry_and_fewer_rows_than_the_speedup_outlasts_are_not_lent_to(m: int) -> None:
    assert padded(m, LARGER).choice is (Choice.EXACT if m == TASK.m else Choice.HEURISTIC)


def test_the_largest_margin_decides_and_not_the_nearest_m() -> None:
    near, fast = of_m(64, 1.41), of_m(80, 1.91)  # 1.4 * 50 / 64 is 1.094, and 1.9 * 50 / 80 is 1.188
    assert padded(50, near, fast).entry is fast
    assert padded(50, fast, near).entry is fast
    assert padded(50, near).entry is near


def test_of_equal_margins_the_nearest_m_is_taken() -> None:
    near, far = of_m(64, 1.51), of_m(96, 2.26)  # 1.5 / 64 is 2.25 / 96
    task = TASK.model_copy(update={"m": 56})
    assert margin(near.evaluation.speedup.low, 56, 64) == margin(far.evaluation.speedup.low, 56, 96)
    assert PADDED_M_RULE.best_entry([far], task) is far
    assert PADDED_M_RULE.best_entry([far, near], task) is near


@pytest.mark.parametrize(
    ("m", "entry", "changes"),
    [
        (65, LARGER, {}),
        (31, of_m(64, 3.0), {}),
        (60, LARGER, {"measured": "H100 driver-580.1 toolkit-13.0 cublas-13.1"}),
        (60, LARGER, {"measured": "H200 driver-580.2 toolkit-13.0 cublas-13.1"}),
        (60, LARGER, {"measured": ""}),
        (60, LARGER, {"least": 1.3}),
        (60, LARGER, {"layouts": (Layout.TN,)}),
        (60, LARGER, {"elements": (ElementType.BF16,)}),
        (60, library_entry(TASK.model_copy(update={"n": 48}), ratio=1.34), {}),
        (60, library_entry(TASK.model_copy(update={"layout": Layout.TN}), ratio=1.34), {}),
        (60, LARGER.model_copy(update={"schedule": None, "source": "its sizes may be constants"}), {}),
    ],
    ids=[
        "larger",
        "less than half",
        "rule of another chip",
        "rule of another driver",
        "rule of nowhere",
        "higher threshold",
        "unmeasured layout",
        "unmeasured element",
        "another N",
        "another layout",
        "free source",
    ],
)
def test_what_the_rule_does_not_allow_has_no_padded_m(m: int, entry: LibraryEntry, changes: dict[str, object]) -> None:
    assert padded(m, entry, rule=PADDED_M_RULE.model_copy(update=changes)).cause is FallbackCause.NO_ENTRY


def test_a_bias_is_part_of_what_is_looked_up_and_no_m_is_padded_with_one() -> None:
    biased = library_entry(TASK.model_copy(update={"bias": True}), ratio=1.34)
    dispatcher = Dispatcher(Entries(LARGER, biased), GPU, PADDED_M_RULE)
    kinds = [kind_code(Layout.NN, ElementType.F16, AccumulatorType.F32, bias=bias) for bias in (False, True)]
    assert [dispatcher.decide(TASK.m, TASK.n, TASK.k, kind).entry for kind in kinds] == [LARGER, biased]
    fewer = [dispatcher.decide(49, TASK.n, TASK.k, kind) for kind in kinds]
    assert [decision.choice for decision in fewer] == [Choice.PADDED_M, Choice.HEURISTIC]


def test_a_gated_product_is_none_with_its_activation_alone() -> None:
    """Its ranges of M serve smaller ones, and no M is padded."""
    kind = {"bias": False, "activation": Activation.SILU}
    activated, gated = (LARGER.task.model_copy(update=kind | {"gated": one}) for one in (False, True))
    entry = LARGER.model_copy(update={"task": gated})
    below = EntryRange(entry, m_range(entry, 50))
    dispatcher = Dispatcher(Entries(entry, ranges=[below]), GPU, PADDED_M_RULE)
    codes = [kind_code(one.layout, one.element, one.accumulate, **kind, gated=one.gated) for one in (activated, gated)]
    assert [dispatcher.decide(gated.m, gated.n, gated.k, code).entry for code in codes] == [None, entry]
    assert [dispatcher.serves(None, gated.n, gated.k, code) for code in codes] == [False, True]
    assert [dispatcher.decide(m, gated.n, gated.k, codes[1]).entry for m in (49, 50)] == [None, entry]
    assert dispatcher.decide(50, gated.n, gated.k, codes[0]).entry is None


def test_without_a_rule_no_m_is_padded() -> None:
    assert padded(60, LARGER).choice is Choice.PADDED_M
    assert padded(60, LARGER, rule=None).choice is Choice.HEURISTIC


def test_no_m_is_padded_with_another_nvrtc_than_the_entry_s_or_the_rule_s() -> None:
    newer = LARGER.evaluation.model_copy(update={"environment": LARGER.evaluation.environment.replace("13.0", "13.2")})
    of_newer = LARGER.model_copy(update={"evaluation": newer})
    with_newer = GPU.model_copy(update={"nvrtc": "13.2"})
    rule = PADDED_M_RULE.model_copy(update={"measured": newer.environment})
    assert padded(60, LARGER, rule=rule, gpu=with_newer).choice is Choice.HEURISTIC
    assert padded(60, of_newer, gpu=with_newer).choice is Choice.HEURISTIC
    assert padded(60, of_newer, rule=rule, gpu=with_newer).choice is Choice.PADDED_M


def test_an_entry_that_was_measured_elsewhere_has_no_padded_m() -> None:
    moved = LARGER.evaluation.model_copy(update={"environment": "H200 driver-999 toolkit-13.0 cublas-13.1"})
    assert padded(60, LARGER.model_copy(update={"evaluation": moved})).choice is Choice.HEURISTIC


def test_an_entry_that_lost_at_the_product_s_own_m_lends_nothing_to_it() -> None:
    assert padded(60, of_m(60, 0.9), of_m(64, 1.5)).cause is FallbackCause.NOT_FASTER


def test_a_lent_entry_comes_before_an_algorithm() -> None:
    m = 60
    stored = stored_algorithm(TASK.model_copy(update={"m": m}))
    library = Entries(LARGER, algorithm=stored)
    for rule, choice in ((PADDED_M_RULE, Choice.PADDED_M), (None, Choice.AUTOTUNED)):
        assert Dispatcher(library, WITH_CUBLAS, rule).decide(m, TASK.n, TASK.k, NN).choice is choice


def test_the_rule_that_ships_is_that_of_the_library_s_measurements() -> None:
    library, rule = shipped_library("H200"), shipped_rule()
    assert library is not None
    assert {entry.evaluation.environment for entry in library} == {rule.measured}
    assert (rule.layouts, rule.elements) == ((Layout.NN,), (ElementType.F16,))


def test_every_cause_has_a_sentence() -> None:
    assert all(cause.sentence for cause in FallbackCause)


def test_a_decision_of_an_earlier_version_still_loads() -> None:
    assert Decision.model_validate_json('{"choice": "compatible"}') == Decision(choice=Choice.PADDED_M)


# Which entries the rule allows for a smaller M, at its bounds, which belong to it as its fields say.
ENTRY_TASK = GemmTask(m=64, n=64, k=64)


def entry(low: float) -> LibraryEntry:
    made = library_entry(ENTRY_TASK)
    speedup = Speedup(baseline="b", ratio=low, low=low, high=low)
    return made.model_copy(update={"evaluation": made.evaluation.model_copy(update={"speedup": speedup})})


@pytest.mark.parametrize(
    ("m", "allowed"),
    [(31, False), (32, True), (33, True), (63, True), (64, False), (65, False)],
)
def test_the_smallest_m_that_was_measured_is_allowed_and_the_entrys_own_is_not(m: int, allowed: bool) -> None:
    assert PADDED_M_RULE.smallest == 0.5
    assert PADDED_M_RULE.allows(entry(4.0), ENTRY_TASK.model_copy(update={"m": m})) == allowed


@pytest.mark.parametrize(("low", "allowed"), [(1.99, False), (2.0, True)])
def test_a_margin_of_exactly_the_least_is_allowed(low: float, allowed: bool) -> None:
    assert PADDED_M_RULE.allows(entry(low), ENTRY_TASK.model_copy(update={"m": 32})) == allowed


@pytest.mark.parametrize("change", [{"n": 128}, {"k": 128}, {"layout": Layout.TN}, {"element": ElementType.BF16}])
def test_a_product_that_differs_in_more_than_m_is_not_allowed(change: dict[str, object]) -> None:
    assert not PADDED_M_RULE.allows(entry(4.0), ENTRY_TASK.model_copy(update={"m": 32, **change}))
    other = entry(4.0).model_copy(update={"task": ENTRY_TASK.model_copy(update=change)})
    measured = "layout" not in change and "element" not in change
    assert PADDED_M_RULE.allows(other, other.task.model_copy(update={"m": 32})) == measured, "the rule was measured for some"


def test_an_entry_without_a_schedule_serves_no_padded_m() -> None:
    assert not PADDED_M_RULE.allows(entry(4.0).model_copy(update={"schedule": None}), ENTRY_TASK.model_copy(update={"m": 32}))


def test_the_largest_margin_serves_and_of_equal_ones_the_nearest_m() -> None:
    wide = PADDED_M_RULE.model_copy(update={"smallest": 0.1})
    near, far = entry(2.0), entry(4.0).model_copy(update={"task": ENTRY_TASK.model_copy(update={"m": 128})})
    wanted = ENTRY_TASK.model_copy(update={"m": 32})
    assert wide.best_entry([far, near], wanted) is near
    better = entry(8.0).model_copy(update={"task": far.task})
    assert wide.best_entry([near, better], wanted) is better
    assert wide.best_entry([], wanted) is None


def in_range(m: int, entry: LibraryEntry = LARGER, gpu: GpuIdentity = GPU, **changes: object) -> Decision:
    found = EntryRange(entry, m_range(entry, 40, **changes))
    return Dispatcher(Entries(entry, ranges=[found]), gpu, PADDED_M_RULE).decide(m, TASK.n, TASK.k, NN)


@pytest.mark.parametrize("m", [40, 48, 63])
def test_a_measured_range_serves_what_the_rule_does_not_allow(m: int) -> None:
    decision = in_range(m)
    assert (decision.choice, decision.entry, decision.cause) == (Choice.PADDED_M, LARGER, FallbackCause.NO_ENTRY)
    assert decision.task == TASK.model_copy(update={"m": m})
    assert decision.m_range is not None
    assert "the entry of 64x32x64 serves M from 40 to 64, as was measured" in decision.reason


@pytest.mark.parametrize("m", [39, 64, 65])
def test_a_range_ends_where_it_was_measured(m: int) -> None:
    assert in_range(m).m_range is None
    assert in_range(m).choice is (Choice.EXACT if m == TASK.m else Choice.HEURISTIC)


@pytest.mark.parametrize(
    ("entry", "gpu", "environment"),
    [
        (of_m(64, 1.005), {}, ENVIRONMENT),
        (LARGER, {"driver": "999"}, ENVIRONMENT),
        (LARGER, {"nvrtc": "13.2"}, ENVIRONMENT),
        (LARGER, {}, ENVIRONMENT.replace("580.1", "580.2")),
        (LARGER, {}, ENVIRONMENT.replace("H200", "H100")),
    ],
)
def test_a_range_of_elsewhere_is_not_used(entry: LibraryEntry, gpu: dict[str, object], environment: str) -> None:
    identity = GPU.model_copy(update={"nvrtc": "13.0", **gpu})
    assert in_range(45, entry, identity, environment=environment).choice is Choice.HEURISTIC


def test_the_ranges_of_a_weight_are_those_that_may_be_used_here() -> None:
    ranges = [EntryRange(one, m_range(one, 40)) for one in (LARGER, of_m(96, 1.005))]
    dispatcher = Dispatcher(Entries(ranges=ranges), GPU)
    assert [one.entry for one in dispatcher.ranges(TASK.n, TASK.k, NN)] == [LARGER]
    assert dispatcher.ranges(TASK.n + 8, TASK.k, NN) == []
