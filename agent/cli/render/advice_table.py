"""What a model would gain, as tables and sentences."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cudal2_agent.agent.cli.render.alignment import NONE, aligned, cell
from cudal2_agent.agent.library.advise.advice import Advice, PartAdvice, ProductAdvice
from cudal2_agent.agent.library.advise.gains import GainInterval
from cudal2_agent.agent.library.advise.products import MatrixProduct
from cudal2_agent.agent.library.advise.search_plan import SearchPlan

_PREDICTED = "~"


def advice_lines(advice: Advice, plans: Sequence[SearchPlan], written: bool) -> list[str]:
    """`written`: whether the files of the plans exist."""
    timed = ("traced",) if advice.traced else ()
    head = ("part", "shape", "operands", "call", "calls", *timed, "AutoTuning", "library", "gain", "")
    rows = [head, *(_row(one, advice.traced) for one in advice.products)]
    return [
        f"{advice.source} on {advice.chip}, library {advice.kernels}; times in us: of a call, gains of a pass",
        *aligned(rows, right=frozenset(range(4, len(head) - 1)), flexible=len(head) - 1),
        *_legend(advice),
        "",
        *_parts(advice),
        "",
        *_gain(advice),
        *_rest(advice),
        *_searches(plans, written),
    ]


def _row(one: ProductAdvice, traced: bool) -> tuple[str, ...]:
    product = one.product
    autotuning = NONE if one.autotuning is None else f"{_PREDICTED * one.autotuning.predicted}{one.autotuning.us:.2f}"
    return (
        product.part,
        product.shape,
        product.operands,
        _call(product),
        _count(one.calls),
        *((cell(one.traced_us),) if traced else ()),
        autotuning,
        cell(one.kernel_us),
        cell(one.gain_us.value if one.gain_us else None),
        words_of(one),
    )


def words_of(one: ProductAdvice) -> str:
    """What is known of a product, or why no kernel of a library computes it."""
    return f"{one.reason or one.status}{', compiled' * one.again}"


def _legend(advice: Advice) -> Iterator[str]:
    if any(one.autotuning and one.autotuning.predicted for one in advice.products):
        yield f"{_PREDICTED}: predicted, not measured"


def _parts(advice: Advice) -> list[str]:
    basis = "GPU time" if advice.traced else "AutoTuning"
    head = ("part", "calls", "served", basis, "served", "gain per pass", "of the served")
    return aligned([head, *(_part_row(one) for one in advice.parts)], right=frozenset(range(1, 7)))


def _part_row(one: PartAdvice) -> tuple[str, ...]:
    mark = _PREDICTED if one.predicted_us else ""
    return (
        one.part,
        _count(one.calls),
        _share(one.served_calls, one.calls),
        f"{mark}{one.time_us:.1f} us",
        mark + _share(one.served_us, one.time_us),
        f"{_interval(one.gain_us)} us" if one.served_calls else NONE,
        f"{_interval(one.gain_percent)} %" if one.served_calls else NONE,
    )


def _gain(advice: Advice) -> Iterator[str]:
    whole = advice.whole
    if advice.kernels_chip != advice.chip:
        yield f"library {advice.kernels} was measured on {advice.kernels_chip}: it serves nothing on {advice.chip}"
    if whole.algorithm_calls:
        gain = f"{whole.torch_gain_us:.2f} us per pass over PyTorch's own, by medians"
        yield f"algorithms of cuBLASLt that the library holds run {_count(whole.algorithm_calls)} calls: {gain}"
    if whole.padded_calls:
        yield f"entries of a padded M run {_count(whole.padded_calls)} calls; what that spares was not measured for them"
    if not whole.served_calls:
        others = whole.algorithm_calls or whole.padded_calls
        yield "no matrix product has a kernel of its own" if others else "gain: none; no matrix product is served"
        return
    share = _interval(advice.pass_percent)
    yield f"gain over cuBLASLt-AutoTuning, with 95 % intervals: {_interval(whole.gain_us)} us per pass"
    if whole.heuristic_gain_us is not None:
        yield f"over cuBLASLt's heuristic choice, by medians: {whole.heuristic_gain_us:.2f} us per pass"
    if advice.pass_us:
        yield f"that is {share} % of the {advice.pass_us:.1f} us of GPU time of a pass"
        return
    if whole.predicted_us:
        part = _share(whole.predicted_us, whole.time_us)
        yield f"that is about {share} % of the time of all matrix products, {part} of which is predicted"
    else:
        yield f"that is {share} % of the time of all matrix products"


def _rest(advice: Advice) -> Iterator[str]:
    yield from not_served(advice)
    untimed = advice.whole.calls - advice.whole.timed_calls
    if untimed:
        yield f"{_count(untimed)} calls have no known time and count in no share of time"


def not_served(advice: Advice) -> Iterator[str]:
    """Calls that nothing serves, by the reason."""
    calls: dict[str, float] = defaultdict(float)
    for one in advice.products:
        if one.status not in ("served", "padded M", "algorithm") and not one.again:
            calls[one.reason or _WHY[one.status]] += one.calls
    for why, count in sorted(calls.items(), key=lambda item: -item[1]):
        yield f"not served: {_count(count)} of {_count(advice.whole.calls)} calls, {why}"


_WHY = {
    "no faster": "no kernel that was found beats AutoTuning",
    "unbuilt": "a faster kernel is in the store; `library build` takes it, or says why not",
    "missing": "the library has no kernel",
}


def _searches(plans: Sequence[SearchPlan], written: bool) -> Iterator[str]:
    for plan in plans:
        shapes = f"{plan.shapes} shape{'s' * (plan.shapes > 1)}"
        where = f"{shapes} in {plan.file}" if written else f"{shapes}; --shapes-out {plan.file} writes them"
        yield f"to search what is missing ({where}), about {plan.gpu_s:.0f} s of GPU time:"
        yield f"  {plan.command}"
        yield f"to look for algorithms of cuBLASLt that beat PyTorch's own choice, about {max(1.0, plan.tuning_s):.0f} s:"
        yield f"  {plan.tuning}"


def _call(product: MatrixProduct) -> str:
    return product.operator if product.batch == 1 else f"{product.operator} of {product.batch}"


def _interval(gain: GainInterval) -> str:
    return f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f})"


def _count(calls: float) -> str:
    return f"{calls:g}" if calls == round(calls) else f"{calls:.1f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else NONE
