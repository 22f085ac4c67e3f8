"""The proof of a module over guarded buffers, on numpy's memory: right kernels pass, known cheats do not."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy")
torch = pytest.importorskip("torch")

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS  # noqa: E402
from cudal2_agent.contract.settings.options import VerifyOptions  # noqa: E402
from cudal2_agent.sandbox.cuda.guard.buffers import Guarded  # noqa: E402
from cudal2_agent.sandbox.cuda.modules import cuda_executor, guarded_values, module_verifier  # noqa: E402
from cudal2_agent.sandbox.cuda.modules.module_verifier import ModuleVerifier  # noqa: E402
from tests.sandbox.cuda.modules.bench import TASK, right  # noqa: E402
from tests.sandbox.cuda.modules.test_module_timer import Late, Replay, dropped, neighbour, nothing, zeros  # noqa: E402

OPTIONS = VerifyOptions(rounds=2, seed=3)


@pytest.fixture
def verify(monkeypatch):
    late = Late()
    make = lambda *_: lambda _name, size: Guarded(size, np)  # noqa: E731
    monkeypatch.setattr(module_verifier, "use_stream", lambda _: torch.device("cpu"))
    monkeypatch.setattr(module_verifier, "map_guarded", make)
    monkeypatch.setattr(cuda_executor, "map_guarded", make)
    monkeypatch.setattr(cuda_executor, "Bystanders", lambda: late)
    monkeypatch.setattr(cuda_executor, "cupy", np)
    monkeypatch.setattr(guarded_values, "cupy", np)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1 << 30, 1 << 30))
    freed = []
    device = SimpleNamespace(
        index=0,
        chip=REFERENCE_CHIPS[TASK.arch],
        stream=SimpleNamespace(ptr=0),
        synchronize=lambda: None,
        pool=SimpleNamespace(free_all_blocks=lambda: freed.append(1)),
    )

    def run(kernel, waits=None, brief=False, **fields):
        verifier = ModuleVerifier(TASK, device)

        def enqueue(operands):
            if waits and late.pending:
                late.held.append(lambda: kernel(operands.arrays, operands.workspace))
            else:
                kernel(operands.arrays, operands.workspace)

        fixed = {"workspace_bytes": 0, "zero": False, "zero_bytes": 0, "altered": lambda: (), "atomics": False}
        contender = SimpleNamespace(
            bind=lambda operands: SimpleNamespace(enqueue=lambda _stream, **_: enqueue(operands)),
            programmatic=waits is not None,
            **fixed | fields,
        )
        return (verifier.screen if brief else verifier.verify)(contender, OPTIONS)

    return run


def test_a_right_kernel_passes_every_tier(verify):
    tests = verify(right)
    assert all(test.passed for test in tests), tests[-1]
    assert {test.tier for test in tests} >= {"exact", "accuracy", "special", "guards", "freshness", "repeatability"}
    assert all(test.passed for test in verify(right, brief=True))


def test_a_right_programmatic_kernel_waits(verify):
    assert verify(right, waits=True)[-1].tier == "programmatic"
    last = verify(right, waits=False)[-1]
    assert (last.tier, last.passed) == ("programmatic", False)


def keeps(arrays, workspace):
    """Works once, and gives what it kept afterwards."""
    if workspace[0] != 0x5A:
        right(arrays, None)
        workspace[0] = 0x5A
        workspace[256 : 256 + arrays["out"].size] = arrays["out"]
    arrays["out"][:] = workspace[256 : 256 + arrays["out"].size]


def narrow(arrays, workspace):
    """Computes in ten bits of mantissa, as TF32 does."""
    held = {name: array.copy() for name, array in arrays.items()}
    for name in ("x", "weight"):
        held[name].view(np.uint32)[:] &= 0xFFFFE000
    right({**held, "out": arrays["out"], "calls": arrays["calls"]}, workspace)


def frozen(arrays, workspace):
    """Leaves its state as it is."""
    before = arrays["calls"].copy()
    right(arrays, workspace)
    arrays["calls"][:] = before


@pytest.mark.parametrize("kernel", [dropped, zeros, nothing, neighbour, narrow, frozen])
def test_a_wrong_kernel_is_refused(verify, kernel):
    assert not verify(kernel)[-1].passed


@pytest.mark.parametrize(("kernel", "tiers"), [(keeps, {"freshness"}), (Replay(), {"exact", "accuracy", "special"})])
def test_what_is_kept_between_runs_is_refused(verify, kernel, tiers):
    last = verify(kernel, workspace_bytes=4096)[-1]
    assert not last.passed
    assert last.tier in tiers
