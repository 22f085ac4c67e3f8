"""What the bounds of a module accept and refuse: right kernels in another order or formula, narrower arithmetic, less work."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from cudal2_agent.contract.records.module_graph import GraphNode, TensorType
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.contract.records.named_buffer import BufferElement
from cudal2_agent.sandbox.modules import bounds
from cudal2_agent.sandbox.modules.bounds import Judge, Verdict
from cudal2_agent.sandbox.modules.cases import (
    CASES,
    HIGH,
    INFINITE,
    LOW,
    NAN,
    NORMAL,
    OFFSET,
    OWN,
    TIES,
    WIDE,
    Case,
    Inputs,
    draw,
)
from cudal2_agent.sandbox.modules.evaluations import REFERENCE
from cudal2_agent.sandbox.modules.executor import Run, filled
from cudal2_agent.sandbox.modules.noise import Noise
from tests.sandbox.modules import small_tasks as small

CPU = torch.device("cpu")
Kernel = Callable[[Inputs], torch.Tensor]
FINITE = [case for case in CASES if not case.special]


def verdict(task: ModuleTask, kernel: Kernel, case: Case = NORMAL, seed: int = 1) -> Verdict:
    values = draw(task, case, seed, CPU)
    return Judge(task, values, seed).judge(Run({"out": kernel(values)}))


def serial(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0], y.shape[1])
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * y[k : k + 1]
    return total


def tf32(x: torch.Tensor) -> torch.Tensor:
    bits = (x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return bits.view(torch.float32)


def exp_approx(x: torch.Tensor) -> torch.Tensor:
    """ex2.approx of a rounded product: up to two ulp too large or too small, and exact at 0."""
    return torch.exp2(x * 1.4426950408889634) * (1 + 2.0**-22 * torch.cos(1e4 * x) * (x != 0))


def online_softmax(values: Inputs) -> torch.Tensor:
    x = values["x"]
    most, total = x[:, :1], torch.ones(x.shape[0], 1)
    for column in range(1, x.shape[1]):
        new = torch.maximum(most, x[:, column : column + 1])
        total = total * exp_approx(most - new) + exp_approx(x[:, column : column + 1] - new)
        most = new
    return exp_approx(x - most) / total


def welford(values: Inputs) -> torch.Tensor:
    x = values["x"]
    mean, squares = torch.zeros(x.shape[0], 1), torch.zeros(x.shape[0], 1)
    for index in range(x.shape[1]):
        column = x[:, index : index + 1]
        delta = column - mean
        mean = mean + delta / (index + 1)
        squares = squares + delta * (column - mean)
    return (x - mean) * torch.rsqrt(squares / x.shape[1] + 1e-5) * values["weight"] + values["bias"]


def one_pass(values: Inputs) -> torch.Tensor:
    x = values["x"]
    mean = x.mean(1, keepdim=True)
    variance = (x * x).mean(1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-5) * values["weight"] + values["bias"]


RIGHT = [
    (small.linear_relu(), lambda v: (v["bias"] + serial(v["x"], v["weight"])).relu()),
    (small.linear_relu(), lambda v: (v["bias"] + v["x"].flip(1) @ v["weight"].flip(0)).relu()),
    (small.softmax(), online_softmax),
    (small.layer_norm(), welford),
]


@pytest.mark.parametrize(("task", "kernel"), RIGHT)
@pytest.mark.parametrize("case", FINITE, ids=lambda case: case.name)
def test_another_order_or_formula_is_right(task: ModuleTask, kernel: Kernel, case: Case) -> None:
    found = [verdict(task, kernel, case, seed) for seed in range(2)]
    assert [each.describe() for each in found] == [""] * 2


WRONG = [
    (small.linear_relu(), lambda v: (v["bias"] + tf32(v["x"]) @ tf32(v["weight"])).relu()),
    (small.linear_relu(k=4096), lambda v: (v["bias"] + tf32(v["x"]) @ tf32(v["weight"])).relu()),
    (small.linear_relu(), lambda v: (v["bias"] + v["x"] @ v["weight"]).relu().half().float()),
    (small.linear_relu(), lambda v: (v["bias"] + v["x"][:, :51] @ v["weight"][:51]).relu()),
    (small.linear_relu(), lambda v: (v["x"] @ v["weight"]).relu()),
    (small.linear_relu(), lambda v: v["x"] @ v["weight"] + v["bias"]),
    (small.softmax(), lambda v: v["x"].half().softmax(1).float()),
    (small.softmax(), lambda v: torch.zeros_like(v["x"])),
    (small.softmax(), lambda v: torch.full_like(v["x"], 1 / 96)),
]


@pytest.mark.parametrize(("task", "kernel"), WRONG)
def test_narrower_arithmetic_and_less_work_are_wrong(task: ModuleTask, kernel: Kernel) -> None:
    assert not verdict(task, kernel).right


def test_a_variance_that_cancels_is_wrong() -> None:
    assert not verdict(small.layer_norm(), one_pass, OFFSET).right
    assert verdict(small.layer_norm(), one_pass, OWN).right


def test_a_nan_is_carried_and_nothing_else() -> None:
    task = small.linear_relu()
    assert verdict(task, lambda v: (v["bias"] + v["x"] @ v["weight"]).relu(), NAN).right
    assert not verdict(task, lambda v: (v["bias"] + v["x"] @ v["weight"]).relu().nan_to_num(), NAN).right


def test_an_index_may_be_that_of_an_equal_value() -> None:
    task = small.argmax()
    last = verdict(task, lambda v: v["x"].shape[1] - 1 - v["x"].flip(1).argmax(1), TIES)
    other = verdict(task, lambda v: (v["x"].argmax(1) + 1) % v["x"].shape[1], WIDE)
    outside = verdict(task, lambda v: torch.full((v["x"].shape[0],), 2**40), TIES)
    assert (last.right, other.right, outside.wrong) == (True, False, 8)


def test_a_loss_may_round_the_logarithm_of_the_sum_at_its_full_size() -> None:
    """log(sum) + max - x[target], and not one that is another's."""
    task = small.cross_entropy()

    def loss(values: Inputs, shift: int = 0) -> torch.Tensor:
        x, most = values["x"], values["x"].amax(1, keepdim=True)
        logs = (x - most).exp().sum(1, keepdim=True).log() + most
        return (logs - x.gather(1, (values["target"][:, None] + shift) % x.shape[1])).mean()

    found = [verdict(task, loss, case, seed).describe() for case in FINITE for seed in range(2)]
    assert found == [""] * 2 * len(FINITE)
    assert not any(verdict(task, lambda v: loss(v, 1), case).right for case in (NORMAL, OFFSET, WIDE))
    assert not verdict(task, lambda v: loss(v) * (1 + 2.0**-13), NORMAL).right


def test_what_holds_the_poison_is_unwritten() -> None:
    task = small.softmax()
    values, poison = draw(task, NORMAL, 1, CPU), 0xFF81
    output = values["x"].softmax(1)
    output[3] = filled((96,), task.buffers[1].element, poison, CPU)
    found = Judge(task, values, 1).judge(Run({"out": output}, poison=poison))
    assert (found.wrong, found.unwritten) == (96, 96)
    assert "out[3, 0] is nan" in found.describe()
    covered = torch.ones_like(output, dtype=torch.bool)
    covered[3] = False
    assert Judge(task, values, 1).judge(Run({"out": output}, poison=poison, covered={"out": covered})).right


def test_the_worst_error_is_of_elements_that_are_judged() -> None:
    task = small.softmax()
    values = draw(task, NORMAL, 1, CPU)
    output, judge = values["x"].softmax(1), Judge(task, values, 1)
    output[3, 5] += 1
    free = torch.zeros_like(output, dtype=torch.bool)
    free[3, 5] = True
    assert judge.judge(Run({"out": output})).worst > 1
    judge.expected["out"] = replace(judge.expected["out"], free=free)
    found = judge.judge(Run({"out": output}))
    assert found.right
    assert found.worst <= 1


def test_of_very_many_elements_some_tell_the_typical_error_and_all_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_SAMPLED", 64)
    task = small.softmax()

    def all_but_one(values: Inputs) -> torch.Tensor:
        output = values["x"].softmax(1)
        output[-1, 94] *= 1.001
        return output

    assert verdict(task, online_softmax).right
    assert not verdict(task, lambda v: v["x"].half().softmax(1).float()).right
    assert verdict(task, all_but_one).wrong == 1


@pytest.mark.parametrize("finite", ["all", "one in each row"])
def test_few_samples_that_are_small_by_chance_refuse_no_right_kernel(finite: str) -> None:
    """A few columns have larger errors than the rest of their rows, or all that is finite: own samples alone say too little."""
    rows, columns, source = 4096, 256, torch.Generator().manual_seed(3)
    made = small.task([small.node("out", "aten.sigmoid.default", [small.of("x")], (rows, columns))], {"x": (rows, columns)})
    size = torch.full((columns,), 1e-6)
    size[:16] = 1e-4
    right = torch.ones(rows, columns, dtype=torch.float64)
    if finite != "all":
        right[:] = math.nan
        for row in range(rows):
            right[row, row // 256] = 1

    seen = torch.zeros(rows, columns)

    def evaluate(number: int) -> dict[str, torch.Tensor]:
        if number == REFERENCE:
            return {"out": right}
        noise = torch.randn(rows, columns, generator=source) * size
        seen.add_(noise.abs())
        return {"out": right.float() + noise}

    judge = Judge(made, {}, 1, evaluate=evaluate)
    unlucky = int(torch.where(right.isfinite() & (size == 1e-4), seen, math.inf).argmin())
    out = right.float()
    out.view(-1)[unlucky] += 5 * 1e-4
    assert judge.judge(Run({"out": out})).right
    explained = judge.expected["out"].explained
    assert float((explained / size)[right.isfinite()].mean()) < 1.5, "no looser than the errors are"


def alone(finite: Sequence[int], seed: int = 3) -> tuple[Judge, list[int], torch.Tensor]:
    """A judge of an output of which these elements alone are finite, its evaluations, and the size of the differences seen."""
    shape, source, asked = (64, 256), torch.Generator().manual_seed(seed), list[int]()
    made = small.task([small.node("out", "aten.sigmoid.default", [small.of("x")], shape)], {"x": shape})
    right, seen = torch.full(shape, math.nan, dtype=torch.float64), torch.zeros(shape)
    right.view(-1)[list(finite)] = 1

    def evaluate(number: int) -> dict[str, torch.Tensor]:
        asked.append(number)
        if number == REFERENCE:
            return {"out": right}
        noise = torch.randn(shape, generator=source) * 1e-4
        seen.add_(noise.abs())
        return {"out": right.float() + noise}

    return Judge(made, {}, 1, evaluate=evaluate), asked, seen


@pytest.mark.parametrize(("sigmas", "accepted", "looks"), [(5.5, True, 2), (14, False, 2), (60, False, 1)])
def test_an_element_whose_few_samples_were_small_is_looked_at_again(sigmas: float, accepted: bool, looks: int) -> None:
    """Far from all others, as what is finite among NaN: nothing near it tells how large its errors are."""
    places = range(0, 64 * 256, 15 * 16)
    judge, asked, seen = alone(places)
    unlucky = min(places, key=lambda place: float(seen.view(-1)[place]))
    out = judge.expected["out"].reference.float()
    out.view(-1)[unlucky] += sigmas * 1e-4
    once = len(asked)
    assert float(judge.expected["out"].bound.view(-1)[unlucky]) < 5.5e-4, "the first samples alone would refuse it"
    assert judge.judge(Run({"out": out})).right == accepted
    assert len(asked) - once == (0 if looks == 1 else 1 + bounds.AGAIN_RUNS)
    asked.clear()
    judge.judge(Run({"out": out}))
    assert asked == [] or looks == 1, "what was looked at again has its final bounds"


def test_many_elements_beyond_their_bounds_are_wrong_at_once() -> None:
    judge, asked, _ = alone(range(64 * 256))
    out, bound = judge.expected["out"].reference.float(), judge.expected["out"].bound
    out.view(-1)[:2] += 1.5 * bound.view(-1)[:2].float()
    once = len(asked)
    assert judge.judge(Run({"out": out})).wrong == 2
    assert len(asked) == once


def test_the_bound_of_one_of_very_many_elements_lies_further_out() -> None:
    assert [bounds.multiple_of(count) for count in (0, 1, 2**20)] == [bounds.MULTIPLE] * 3
    assert bounds.multiple_of(100 * 2**20) == pytest.approx(bounds.MULTIPLE + 2)


@pytest.mark.parametrize(("arithmetic", "element", "more"), [(Arithmetic.F32, "f32", True), (Arithmetic.F16, "f16", False)])
def test_short_outputs_round_more_than_long_sums_err(
    arithmetic: Arithmetic, element: str, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "TAIL_ELEMENTS", 16)
    node = small.node("out", "aten.sigmoid.default", [small.of("x")], (16, 10), element)
    task = small.task([node], {"x": (16, 10)}, arithmetic=arithmetic, elements={"x": element})
    judge = Judge(task, draw(task, NORMAL, 1, CPU), 1)
    assert judge.expected["out"].multiple == bounds.MULTIPLE + more


def test_an_infinity_stays_one_under_noise_and_is_judged() -> None:
    """Noise made a NaN of every second one, so that nothing it reached was judged."""
    task = small.linear_relu()
    values = draw(task, INFINITE, 1, CPU)
    judge = Judge(task, values, 1, nan_is_free=True, special=True)
    expected, right = judge.expected["out"], (values["bias"] + serial(values["x"], values["weight"])).relu()
    assert expected.reference.isinf().any()
    assert expected.free is not None
    assert bool((expected.free == expected.reference.isnan()).all())
    assert judge.accepts({"out": right})
    assert not judge.accepts({"out": right.nan_to_num(posinf=1e30)})
    as_nan = torch.where(right.isinf(), math.nan, right)
    assert judge.accepts({"out": as_nan}), "a running mean, as Welford has it, makes a NaN of an infinite term"
    relu = small.task([small.node("out", "aten.relu.default", [small.of("x")], (16, 64))], {"x": (16, 64)})
    pointwise = Judge(relu, values, 1, nan_is_free=True, special=True)
    assert not pointwise.accepts({"out": torch.where(values["x"].isinf(), math.nan, values["x"].relu())})


def test_what_is_free_is_not_typical() -> None:
    task = small.softmax()
    values = draw(task, NORMAL, 1, CPU)
    judge, output = Judge(task, values, 1), values["x"].softmax(1)
    free = torch.zeros_like(output, dtype=torch.bool)
    free[:5] = True
    output[:5] *= 1.5
    judge.expected["out"] = replace(judge.expected["out"], free=free)
    assert judge.judge(Run({"out": output})).right


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_may_round_what_it_adds_to_one(approximate: str) -> None:
    """PyTorch's own formula does. Where that happens to round well, another erf or tanh may round the other way."""
    gelu = GraphNode(
        name="out",
        op="aten.gelu.default",
        args=(small.of("x"),),
        kwargs={"approximate": approximate},
        results=(TensorType(shape=(64, 256), element=BufferElement.F32),),
    )
    task = small.task([gelu], {"x": (64, 256)})

    def kernel(values: Inputs, ulps: int) -> torch.Tensor:
        x = values["x"]
        inner = 0.7978845608028654 * (x + 0.044715 * x**3)
        share = torch.erf(x * 0.5**0.5) if approximate == "none" else inner.tanh()
        return 0.5 * x * (1 + share + ulps * 2.0**-24)

    wide = replace(NORMAL, draw=lambda source, shape: 2 * source.normal(shape))
    assert [verdict(task, lambda v, by=by: kernel(v, by), wide, seed).describe() for by in (-1, 0, 1) for seed in (1, 2)] == [
        ""
    ] * 6
    assert not verdict(task, lambda v: kernel(v, 32), wide).right
    other = "tanh" if approximate == "none" else "none"
    assert not verdict(task, lambda v: torch.nn.functional.gelu(v["x"], approximate=other), wide).right


def test_attention_may_round_scores_that_are_larger_than_what_is_left_of_them() -> None:
    shape = (2, 32, 512)
    inputs = dict.fromkeys("qkv", shape)
    args = [small.of(name) for name in "qkv"]
    task = small.task([small.node("out", "aten.scaled_dot_product_attention.default", args, shape)], inputs)

    def kernel(values: Inputs, narrow: bool = False) -> torch.Tensor:
        q, k = (tf32(values[name]) if narrow else values[name] for name in "qk")
        scores = torch.stack([serial(*pair) for pair in zip(q, k.mT, strict=True)])
        return (scores * shape[-1] ** -0.5).softmax(-1) @ values["v"]

    assert [verdict(task, kernel, case, seed).describe() for case in (NORMAL, LOW, HIGH) for seed in (1, 2)] == [""] * 6
    assert not any(verdict(task, lambda v: kernel(v, narrow=True), case).right for case in (NORMAL, LOW, HIGH))


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.25},
    "chosen": {"attn_mask": torch.arange(40).reshape(5, 8) % 3 > 0},
    "row hidden": {"attn_mask": torch.arange(40).reshape(5, 8) >= 8},
    "added": {"attn_mask": torch.linspace(-3, 3, 40).reshape(5, 8)},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("element", [torch.float32, torch.float16])
def test_attention_with_noise_is_attention(options: dict[str, Any], element: torch.dtype) -> None:
    node = small.node("out", "aten.scaled_dot_product_attention.default", [small.of(name) for name in "qkv"], (2, 5, 16))
    options = {
        name: each.to(element) if name == "attn_mask" and each.is_floating_point() else each for name, each in options.items()
    }
    q, k, v = (torch.randn(2, size, 16, generator=torch.Generator().manual_seed(size)).to(element) for size in (5, 8, 8))
    function = torch.ops.aten.scaled_dot_product_attention.default
    noisy = Noise(1, CPU, Arithmetic.F32)(node, function, [q, k, v], options)
    right = function(q, k, v, **options)
    assert noisy.dtype == element
    assert torch.allclose(noisy, right, rtol=0, atol=1e-5 if element is torch.float32 else 1e-2)
    assert not torch.equal(noisy, right)


def convolved(groups: int = 1) -> ModuleTask:
    args = [small.of("x"), small.of("w"), None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups]
    return small.task(
        [small.node("conv", "aten.convolution.default", args, (2, 4, 6, 6))], {"x": (2, 4, 6, 6)}, {"w": (4, 4 // groups, 3, 3)}
    )


def test_a_convolution_may_spread_nan_within_its_entry_and_group_and_in_tests_of_special_values_alone() -> None:
    made = convolved(groups=2)
    values = draw(made, NORMAL, 1, CPU)
    values["x"][0, 0, 2, 2] = math.nan
    special, plain = (Judge(made, values, 1, special=each) for each in (True, False))
    right = special.eager["out"].clone()
    spread = right.clone()
    spread[0, :2] = math.nan
    assert special.accepts({"out": right})
    assert special.accepts({"out": spread})
    assert not plain.accepts({"out": spread})
    for place in [(0, 2, 5, 5), (1, 0, 5, 5)]:  # another group, another entry
        beyond = right.clone()
        beyond[place] = math.nan
        assert not special.accepts({"out": beyond})
    for place, value in [((0, 0, 2, 2), 0.0), ((0, 0, 5, 5), 7.0)]:  # what must be NaN, and a wrong number where it may be
        wrong = right.clone()
        wrong[place] = value
        assert not special.accepts({"out": wrong})
