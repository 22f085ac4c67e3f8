"""The batch-invariant mode: equal bits for equal rows, whatever stands beside them; nothing else computes a product."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import cudal2
from cudal2.dispatch.decision import GpuIdentity
from cudal2.torch import invariant_products, torch_session
from cudal2_agent.contract.errors import LauncherError, LibraryError, UsageError
from cudal2_agent.contract.records.task import Arch
from tests.cudal2.torch_ops.matrices import TASK, operands
from tests.cudal2.torch_ops.test_beside_others import OtherLibrary
from tests.doubles.host_products import HostProducts
from tests.doubles.invariant_sets import OrderedPlatform, write_set

N, K = 24, 40
WEIGHTS = {  # K×N; the last three are of the other two classes of sizes
    "tn": (N, K, True),
    "nn": (N, K, False),
    "tn, odd N": (N + 1, K, True),
    "nn, odd K": (N, K + 1, False),
    "one column": (1, K, True),
}


@pytest.fixture
def platform(tmp_path: Path) -> OrderedPlatform:
    write_set(tmp_path / "cache")
    return OrderedPlatform()


@pytest.fixture
def products(tmp_path: Path, platform: OrderedPlatform) -> Iterator[HostProducts]:
    """The service whose platform the mode uses; its library has an entry for `TASK`."""
    before = torch_session.service()
    made = HostProducts(tmp_path, [TASK], platform=platform)
    torch_session.use_service(made.service)
    yield made
    torch_session.disable()
    torch_session.use_service(before)
    torch_session.invariant_operators("CPU").unregister()


@pytest.fixture
def mode(products: HostProducts) -> HostProducts:
    cudal2.enable(batch_invariant=True)
    return products


def drawn(*sizes: int, dtype: torch.dtype = torch.bfloat16, seed: int = 3) -> torch.Tensor:
    """Numbers whose sums differ in their last bits with the order."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*sizes, generator=generator) * 2.0 ** torch.randint(-3, 4, sizes, generator=generator)).to(dtype)


def weight_of(name: str) -> torch.Tensor:
    """A K×N matrix whose rows repeat, but for the last four."""
    n, k, by_columns = WEIGHTS[name]
    half = (k - 4) // 2
    rows = torch.cat((drawn(half, n), drawn(half, n), drawn(k - 2 * half, n, seed=4)))
    return rows.t().contiguous().t() if by_columns else rows


def rows_for(b: torch.Tensor, m: int) -> torch.Tensor:
    """An A for such a B: all but the last products cancel, so that the bits of D are those of rounded partial sums."""
    half = (b.shape[0] - 4) // 2
    left = drawn(m, half, seed=6)
    return torch.cat((left, -left, drawn(m, b.shape[0] - 2 * half, seed=7) * 2.0**-18), 1)


def unaligned(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix at an address that no kernel takes."""
    memory = torch.empty(matrix.numel() + 1, dtype=matrix.dtype)
    return memory[1:].view(matrix.shape).copy_(matrix)


def summations() -> dict[str, int]:
    status = cudal2.status().batch_invariant
    assert status is not None
    return status.served


ROWS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda a, b: torch.mm(a, b),
    "mm, out": lambda a, b: torch.mm(a, b, out=a.new_empty(a.shape[0], b.shape[1])),
    "mm, out of another shape": lambda a, b: torch.mm(a, b, out=a.new_empty(0)),
    "matmul of a batch": lambda a, b: torch.matmul(a[None], b)[0],
    "linear": lambda a, b: F.linear(a, b.t()),
    "cudal2.matmul": lambda a, b: cudal2.matmul(a, b),
    "the operator": lambda a, b: torch.ops.cudal2.matmul(a, b),
    "bmm": lambda a, b: torch.bmm(torch.stack((a, a)), torch.stack((b, b)))[1],
    "A by columns": lambda a, b: torch.mm(a.t().contiguous().t(), b),
    "a slice of A": lambda a, b: torch.mm(torch.cat((a, a), 1)[:, : a.shape[1]], b),
    "A expanded": lambda a, b: torch.mm(a[:1].expand(5, -1), b)[:1] if len(a) == 1 else torch.mm(a, b),
    "A at an odd address": lambda a, b: torch.mm(unaligned(a), b),
    "B at an odd address": lambda a, b: torch.mm(a, unaligned(b)),
    "B with gaps": lambda a, b: torch.mm(a, torch.cat((b, b), 1)[:, : b.shape[1]]),
}


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("way", ROWS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_row_has_equal_bits_whatever_stands_beside_it(way: str, weight: str) -> None:
    b = weight_of(weight)
    a = rows_for(b, 70)
    alone = torch.cat([torch.mm(row[None], b) for row in a])
    for m in (1, 2, 16, 17, 64, 65, 70):
        assert torch.equal(ROWS[way](a[:m], b), alone[:m]), m
        assert torch.equal(ROWS[way](a[70 - m :], b), alone[70 - m :]), m
    assert len(summations()) == 1, "one order of summation for one weight"


@pytest.mark.usefixtures("mode")
def test_a_split_of_k_that_depends_on_m_would_be_seen(platform: OrderedPlatform) -> None:
    platform.splits_below = 17
    b = weight_of("tn")
    a = rows_for(b, 70)
    assert not torch.equal(torch.mm(a[:16], b), torch.mm(a, b)[:16])


FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda a, b, c: torch.mm(a, b),  # noqa: ARG005
    "mv": lambda a, b, c: torch.mv(a, b[:, 0]),  # noqa: ARG005
    "addmm": lambda a, b, c: torch.addmm(c, a, b),
    "addmm of a row": lambda a, b, c: torch.addmm(c[0], a, b),
    "addmm, scaled": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=-2),
    "addmm without bias": lambda a, b, c: torch.addmm(c * float("nan"), a, b, beta=0),
    "addmm, beta": lambda a, b, c: torch.addmm(c, a, b, beta=3),
    "addmm, out": lambda a, b, c: torch.addmm(c, a, b, out=a.new_empty(0)),
    "addmm_": lambda a, b, c: c.clone().addmm_(a, b, alpha=2),
    "linear with a bias": lambda a, b, c: F.linear(a, b.t(), c[0]),
    "bmm": lambda a, b, c: torch.bmm(a[None], b[None])[0],  # noqa: ARG005
    "bmm, out": lambda a, b, c: torch.bmm(a[None], b[None], out=a.new_empty(0))[0],  # noqa: ARG005
    "baddbmm": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None], beta=2)[0],
    "baddbmm, out": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None], out=a.new_empty(0))[0],
    "baddbmm_": lambda a, b, c: c[None].clone().baddbmm_(a[None], b[None])[0],
    "einsum": lambda a, b, c: torch.einsum("mk,kn->mn", a, b),  # noqa: ARG005
}
BOUNDS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_every_form_is_served_and_agrees_with_float64(mode: HostProducts, form: str, dtype: torch.dtype) -> None:
    a, b, c = drawn(19, K, dtype=dtype), drawn(K, N, dtype=dtype), drawn(19, N, dtype=dtype, seed=5)
    for out in range(1, 3):
        found = FORMS[form](a, b, c)
        assert mode.platform.launches == out, "one launch, and no other product"
    cudal2.disable()
    wanted = FORMS[form](a.double(), b.double(), c.double())
    size = FORMS[form](a.double().abs(), b.double().abs(), c.double().abs()).abs() + wanted.abs()
    assert found.dtype is dtype
    assert ((found.double() - wanted).abs() <= 4 * BOUNDS[dtype] * size).all()


def test_gradients_are_served_and_agree_with_float64(mode: HostProducts) -> None:
    a, w, bias = (one.detach().requires_grad_() for one in (drawn(19, K), drawn(N, K), drawn(N)))
    F.linear(a, w, bias).square().sum().backward()
    assert mode.platform.launches == 3
    cudal2.disable()
    exact = [one.detach().double().requires_grad_() for one in (a, w, bias)]
    F.linear(*exact).square().sum().backward()
    for found, wanted in zip((a, w, bias), exact, strict=True):
        torch.testing.assert_close(found.grad.double(), wanted.grad, rtol=0.05, atol=0.05 * wanted.grad.abs().max().item())


@pytest.mark.usefixtures("mode")
def test_gradients_of_rows_have_equal_bits() -> None:
    w = drawn(N, K)

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.detach().requires_grad_()
        F.linear(rows, w).square().sum().backward()
        assert rows.grad is not None
        return rows.grad

    a = drawn(33, K)
    assert torch.equal(gradient(a)[:5], gradient(a[:5]))


def test_opcheck_passes_and_the_library_is_not_asked(mode: HostProducts) -> None:
    a, b = operands()
    torch.library.opcheck(torch.ops.cudal2.matmul.default, (a, b))
    assert mode.platform.launches > 0
    assert mode.service.counts.served() == {}
    with torch.no_grad():
        compiled = torch.compile(torch.mm, backend="aot_eager")
        assert torch.equal(compiled(a, b), torch.mm(a, b))


def test_what_inductor_calls_asks_the_mode(mode: HostProducts) -> None:
    from cudal2.torch.inductor.inductor_choices import cudal2_mm_out

    a, b = operands()
    out = torch.zeros(TASK.m, TASK.n).half()
    cudal2_mm_out(a, b, out)
    assert torch.equal(out, torch.mm(a, b))
    assert mode.service.counts.served() == {}


# ---- what has no kernel ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("form", [name for name in FORMS if "linear" not in name])
def test_another_type_is_refused_in_one_line(form: str) -> None:
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    with pytest.raises(UsageError, match=r"no kernel for matrix products of float32; .*allow_other=True") as refused:
        FORMS[form](a, b, c)
    assert "\n" not in str(refused.value)


def test_other_types_are_torch_s_where_the_program_allows_it(products: HostProducts) -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    wanted = a @ b
    with cudal2.enable(batch_invariant=True, allow_other=True):
        assert torch.equal(a @ b, wanted)
        assert torch.equal(torch.bmm(a[None], b[None])[0], wanted)
        told = str(cudal2.status())
    assert "2 calls were PyTorch's own: matrix products of float32" in told
    assert products.platform.launches == 0


def test_a_result_of_another_type_is_refused() -> None:
    """`mm.dtype` has a kernel for CUDA only, so it is asked here as the kernel would be."""

    class Asked:
        def other(self, what: str, instead: str) -> None:
            raise UsageError(f"{what}; {instead}")

    from cudal2.torch.invariant_operators import _PRODUCTS

    for name in ("mm.dtype", "mm.dtype_out", "addmm.dtype", "bmm.dtype"):
        with pytest.raises(UsageError, match=f"aten::{name}, whose result has another type; ask"):
            _PRODUCTS[name](Asked(), torch.ones(2, 2), torch.ones(2, 2), torch.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.mm(drawn(2, 3), drawn(4, 5)),
        lambda: torch.mm(drawn(2, 3), drawn(3, 5, dtype=torch.float16)),
        lambda: torch.bmm(drawn(2, 3, 4), drawn(3, 4, 5)),
        lambda: torch.addmm(torch.ones(5), drawn(2, 3), drawn(3, 5)),
        lambda: torch.mm(drawn(2, 3), drawn(3, 5), out=torch.empty(2, 5)),
        lambda: torch.mv(drawn(2, 3), drawn(4)),
    ],
)
@pytest.mark.usefixtures("products")
def test_errors_are_torch_s_own(call: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError) as plain:
        call()
    with cudal2.enable(batch_invariant=True), pytest.raises(RuntimeError) as served:
        call()
    assert str(served.value) == str(plain.value)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_sizes_have_nothing_to_sum(mode: HostProducts, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b, c = drawn(m, k), drawn(k, n), drawn(m, n)
    assert torch.equal(torch.mm(a, b), a.new_zeros(m, n))
    assert torch.equal(torch.addmm(c, a, b), c)
    assert torch.bmm(a[None], b[None]).shape == (1, m, n)
    assert mode.platform.launches == 0


def test_a_large_product_runs_in_slices_of_its_rows(mode: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(300, K), drawn(K, N)
    whole = torch.mm(a, b)
    monkeypatch.setattr(invariant_products, "MAX_OPERAND_ELEMENTS", 130 * K)
    before = mode.platform.launches
    assert torch.equal(torch.mm(a.t().contiguous().t(), b), whole)
    assert torch.equal(torch.mm(a.t().contiguous().t(), b, out=torch.empty_like(whole)), whole)
    assert mode.platform.launches == before + 6
    monkeypatch.setattr(invariant_products, "MAX_OPERAND_ELEMENTS", K * N - 1)
    with pytest.raises(UsageError, match="no kernel for an operand B of 40x24 elements; multiply its columns in parts"):
        torch.mm(drawn(2, K), drawn(K, N))


@pytest.mark.usefixtures("mode")
def test_a_result_may_be_written_over_an_operand() -> None:
    a, b = drawn(16, 16), drawn(16, 16, seed=4)
    wanted = torch.mm(a, b)
    copy = a.clone()
    products = torch_session._SESSION.invariant
    assert products is not None
    assert products.product(copy, b, copy) is copy
    assert torch.equal(copy, wanted)


# ---- threads, streams, graphs, a poisoned context --------------------------------------------------------------------------


@pytest.mark.usefixtures("mode")
def test_threads_share_the_mode() -> None:
    b = weight_of("tn")
    a = rows_for(b, 40)
    wanted = torch.mm(a, b)
    wrong: list[int] = []

    def work(first: int) -> None:
        for m in range(1, 41):
            if not torch.equal(torch.mm(a[:m], b), wanted[:m]):
                wrong.append(first + m)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sum(summations().values()) >= 150


@pytest.mark.usefixtures("mode")
def test_launches_are_on_the_current_stream_and_in_captures(platform: OrderedPlatform) -> None:
    a, b = drawn(5, K), drawn(K, N)
    for handle, captures in ((11, False), (12, True)):
        platform.stream_handle, platform.is_capturing = handle, captures
        torch.mm(a, b)
        torch.mm(drawn(handle, K), b)  # a size that is first seen inside the capture
    assert [stream for kernel in platform.kernels for stream in kernel.launches] == [11, 12, 11, 12]


@pytest.mark.usefixtures("mode")
def test_all_code_is_loaded_when_the_mode_begins(platform: OrderedPlatform) -> None:
    assert len(platform.kernels) == 50
    torch.mm(drawn(5, K), drawn(K, N))
    torch.mm(drawn(5, K), drawn(K, N))
    assert len(platform.kernels) == 51


@pytest.mark.usefixtures("mode")
def test_a_launch_that_fails_is_an_error(platform: OrderedPlatform) -> None:
    """As in a context that an earlier kernel has broken: nothing else computes the product."""
    a, b = drawn(5, K), drawn(K, N)
    torch.mm(a, b)
    platform.failing = True
    for _ in range(2):
        with pytest.raises(LauncherError, match="cuLaunchKernelEx failed"):
            torch.mm(a, b)
    assert sum(summations().values()) == 1


@pytest.mark.usefixtures("products")
def test_code_that_the_driver_refuses_ends_the_call_to_enable(platform: OrderedPlatform) -> None:
    def refuse(*_: object) -> None:
        raise LauncherError("cuLibraryLoadData failed", "CUDA_ERROR_INVALID_IMAGE")

    platform.load = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(LauncherError):
        cudal2.enable(batch_invariant=True)
    assert cudal2.status().batch_invariant is None


# ---- building, other chips --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("products")
def test_a_set_that_is_missing_or_damaged_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def prepare(*arguments: str) -> None:
        asked.append(arguments)
        write_set(tmp_path / "cache")

    monkeypatch.setattr(torch_session, "run_prepare", prepare)
    for file in (tmp_path / "cache").glob("*-sm_90a.cubin"):
        file.write_bytes(b"another")
    with cudal2.enable(batch_invariant=True):
        pass
    (tmp_path / "cache" / "batch-invariant-sm_90a.json").unlink()
    with cudal2.enable(batch_invariant=True):
        pass
    with cudal2.enable(batch_invariant=True):
        pass
    assert asked == 2 * [("--batch-invariant", "--arch", "sm_90a")]


@pytest.mark.usefixtures("products")
def test_a_set_that_cannot_be_built_is_one_line_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: str) -> None:
        raise LibraryError("the compiler is missing")

    monkeypatch.setattr(torch_session, "run_prepare", fail)
    (tmp_path / "cache" / "batch-invariant-sm_90a.json").unlink()
    with pytest.raises(LibraryError, match="the compiler is missing"):
        cudal2.enable(batch_invariant=True)
    assert cudal2.status().batch_invariant is None
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))


def test_the_set_of_another_chip_is_not_used(tmp_path: Path, products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "cache", Arch.SM_80, named=Arch.SM_90A)
    monkeypatch.setattr(torch_session, "run_prepare", lambda *_: None)
    with pytest.raises(LibraryError, match="is a set for sm_80"):
        cudal2.enable(batch_invariant=True)
    monkeypatch.setattr(torch_session, "run_prepare", lambda *_: write_set(tmp_path / "cache"))
    with cudal2.enable(batch_invariant=True):
        torch.mm(drawn(2, K), drawn(K, N))
    assert products.platform.launches == 1


@pytest.mark.parametrize(("arch", "summation"), [(Arch.SM_80, "mma.sync"), (Arch.SM_90A, "wgmma")])
def test_each_chip_has_its_instruction(tmp_path: Path, products: HostProducts, arch: Arch, summation: str) -> None:
    products.platform._identity = products.platform.identity(0).model_copy(update={"arch": arch})
    write_set(tmp_path / "cache", arch)
    with cudal2.enable(batch_invariant=True):
        torch.mm(drawn(2, K), drawn(K, N))
        assert [key.partition(".")[0] for key in summations()] == [summation.partition(".")[0]]


def test_a_device_gets_its_code_with_its_first_product(products: HostProducts, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a context: a process of many sees all GPUs, and uses one."""
    platform = products.platform
    loaded: list[int] = []
    load = platform.load
    monkeypatch.setattr(platform, "load", lambda device, *rest: (loaded.append(device), load(device, *rest))[1])
    monkeypatch.setattr(platform, "devices", lambda: (5, -1))
    monkeypatch.setattr(platform, "current_device", lambda: 5)
    with cudal2.enable(batch_invariant=True):
        assert set(loaded) == {5}
        torch.mm(drawn(2, K), drawn(K, N))
        assert set(loaded) == {5, -1}


def test_code_may_wait_for_the_first_product(products: HostProducts) -> None:
    torch_session.enable_invariant(allow_other=True, load=False)
    assert products.platform.kernels == []
    torch.mm(drawn(2, K), drawn(K, N))
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert products.platform.launches == 1
    assert "device -1, H200: 50 kernels for sm_90a" in str(cudal2.status())


def test_a_chip_without_kernels_is_one_line(tmp_path: Path) -> None:
    platform = OrderedPlatform(GpuIdentity(gpu="B300", driver="590", arch=None, sms=160))
    with pytest.raises(UsageError, match="no kernels for device -1, B300"):
        invariant_products.InvariantProducts(platform, tmp_path, lambda _: None, allow_other=False)


# ---- the session ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mode")
def test_status_says_that_the_mode_is_on_and_counts() -> None:
    torch.mm(drawn(3, K), drawn(K, N))
    torch.mm(unaligned(drawn(3, K + 1)), drawn(K + 1, N))
    told = str(cudal2.status()).splitlines()
    assert told[0].startswith("enabled for mm and addmm and bmm and baddbmm and mv of PyTorch")
    assert told[1:] == [
        "batch-invariant: no sum of an f16 or bf16 matrix product depends on M; any other product is an error",
        "device -1, H200: 50 kernels for sm_90a",
        "1 matrix products were summed by wgmma.m64k16 f32 in order of K",
        "1 matrix products were summed by mma.sync.m16n8k16 f32 in order of K",
        "1 operands were copied first",
    ]


def test_disable_ends_the_mode(mode: HostProducts) -> None:
    cudal2.disable()
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    torch.mm(*operands())
    assert mode.platform.launches == 0
    assert cudal2.status().batch_invariant is None


@pytest.mark.usefixtures("language")
def test_the_end_of_a_block_puts_back_what_was_there(products: HostProducts) -> None:
    a, b = operands()
    with cudal2.enable():
        with cudal2.enable(batch_invariant=True):
            with cudal2.enable(batch_invariant=True, allow_other=True):
                torch.ones(2, 2) @ torch.ones(2, 2)
            with pytest.raises(UsageError):
                torch.ones(2, 2) @ torch.ones(2, 2)
            torch.mm(a, b)
        assert products.service.counts.served() == {}
        assert cudal2.status().enabled == ("mm", "addmm")
        assert cudal2.status().batch_invariant is None
    assert cudal2.status().enabled == ()


@pytest.mark.usefixtures("mode")
def test_the_library_is_not_enabled_over_the_mode() -> None:
    with pytest.raises(UsageError, match=r"cudal2.disable\(\)"):
        cudal2.enable()
    assert cudal2.status().batch_invariant is not None


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("wrong", [{"library": "x"}, {"operators": ("mm",)}])
def test_arguments_that_contradict_each_other_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="name neither"):
        cudal2.enable(batch_invariant=True, **wrong)
    with pytest.raises(ValueError, match="allow_other belongs"):
        cudal2.enable(allow_other=True)


@pytest.mark.usefixtures("products")
def test_the_mode_runs_over_kernels_that_came_after_it() -> None:
    a, b = drawn(3, K), drawn(K, N)
    with cudal2.enable(batch_invariant=True):
        wanted = torch.mm(a, b)
    other = OtherLibrary(7.0, "mm", allow_override=True)
    try:
        assert torch.mm(a, b)[0, 0] == 7
        with cudal2.enable(batch_invariant=True):
            assert torch.equal(torch.mm(a, b), wanted)
        assert torch.mm(a, b)[0, 0] == 7, "what was there before"
    finally:
        torch_session.invariant_operators("CPU").unregister()
        other.leave()


@pytest.mark.usefixtures("products")
def test_a_kernel_below_the_mode_may_leave() -> None:
    a, b = torch.randn(3, K), torch.randn(K, N)
    wanted = [torch.mm(a, b), torch.mv(a, b[:, 0]), torch.addmm(torch.ones(N), a, b, beta=2)]
    other = OtherLibrary(7.0, "mm", "addmm", allow_override=True)
    with cudal2.enable(batch_invariant=True, allow_other=True):
        assert torch.mm(a, b)[0, 0] == 7, "an allowed product is that of the kernel which was there"
    other.leave()
    for allowed in (False, True):
        with cudal2.enable(batch_invariant=True, allow_other=True) if allowed else nullcontext():
            found = [torch.mm(a, b), torch.mv(a, b[:, 0]), torch.addmm(torch.ones(N), a, b, beta=2)]
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.usefixtures("mode")
def test_a_kernel_over_the_mode_is_told() -> None:
    other = OtherLibrary(7.0, "addmm", allow_override=True)
    try:
        assert "note: aten::addmm was replaced again, so its products are not batch-invariant" in str(cudal2.status())
    finally:
        other.leave()


@pytest.mark.usefixtures("products")
def test_without_a_gpu_nothing_is_replaced(tmp_path: Path) -> None:
    none = HostProducts(tmp_path / "none", [TASK], platform=OrderedPlatform(why_missing="no GPU here"))
    torch_session.use_service(none.service)
    cudal2.enable(batch_invariant=True)
    assert cudal2.status().batch_invariant is None
    assert str(cudal2.status()).startswith("not enabled: no GPU here")
