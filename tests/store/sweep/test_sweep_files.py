"""Sweep files: small, complete or absent, and in pieces that each import by themselves."""

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured, Timing
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import RunRecord, Step, Trajectory
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.store.importing import import_files
from cudal2_agent.store.packing import zstd
from cudal2_agent.store.store import Store, open_store
from cudal2_agent.store.sweep.sweep_files import MIN_PIECE_BYTES, SweepOptions, export_sweep
from tests.doubles import NOW, measured, run_record, step

PIECES = SweepOptions(piece_bytes=MIN_PIECE_BYTES)
CHIP = REFERENCE_CHIPS[Arch.SM_90A]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'store.sqlite'}") as made:
        yield made


def trajectory(run: RunRecord, *steps: Step) -> Trajectory:
    return Trajectory(run=run, observations={}, steps=tuple(one.model_copy(update={"run_id": run.run_id}) for one in steps))


def drawn(run_id: str, task: GemmTask, count: int, rng: random.Random) -> Trajectory:
    """A run as a sweep makes one: schedules of the real space with their sources, samples with the noise of an H200."""
    run = run_record(run_id, task=task, created_at=NOW + timedelta(seconds=rng.randrange(10**6)))
    spaces = [(family, space) for family in families(task.arch) if (space := list(family.space(task, CHIP)))]
    steps = []
    for index in range(count):
        family, space = rng.choice(spaces)
        candidate = family.write(rng.choice(space), task)
        changes = {"candidate": candidate, "round": 1 + index // 8, "reward": rng.uniform(-1, 0.2)}
        seconds = {"propose": rng.random(), "build": rng.random(), "evaluate": rng.random(), "agent": rng.random() / 50}
        created = run.created_at + timedelta(microseconds=rng.randrange(36 * 10**6))
        steps.append(step(index, evaluation=timed(candidate, rng), seconds=seconds, created_at=created, **changes))
    return trajectory(run, *steps)


def timed(candidate: Candidate, rng: random.Random) -> Measured:
    def noisy(name: str, time_us: float, detail: str = "") -> Timing:
        return Timing(name=name, samples_us=tuple(time_us * rng.gauss(1, 5e-4) for _ in range(7)), detail=detail)

    evaluation = measured(5.0)
    [kernel] = evaluation.inspection.kernels
    resources = {"registers": rng.randrange(64, 256, 8), "dynamic_smem_bytes": rng.randrange(0, 2**17, 16)}
    inspection = evaluation.inspection.model_copy(update={"kernels": (kernel.model_copy(update=resources),)})
    timing, baseline = noisy(candidate.id, rng.uniform(3, 30)), noisy(AUTOTUNED, 8.0, "layout nn, algorithm 66, tile 128x128")
    return evaluation.model_copy(update={"timing": timing, "baselines": (baseline,), "inspection": inspection})


def heavy(index: int, rng: random.Random, characters: int = 60_000) -> Step:
    """A step of which a model wrote the source, which hardly compresses."""
    source = "// " + "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=characters))
    return step(index, candidate=step(index).candidate.model_copy(update={"source": source}))


def test_a_step_of_a_sweep_takes_less_than_300_bytes_with_its_source(tmp_path: Path) -> None:
    rng = random.Random(0)
    shapes = ((64, 64, 64), (128, 4096, 1024), (8192, 8192, 512))
    runs = [drawn(f"run-{number}", GemmTask(m=m, n=n, k=k), 60, rng) for number, (m, n, k) in enumerate(shapes)]
    summary = export_sweep(runs, tmp_path / "a.sweep.zst")
    assert summary.steps == 180
    assert summary.runs == 3
    assert summary.bytes == (tmp_path / "a.sweep.zst").stat().st_size < 300 * 180


def test_what_was_imported_is_exported_as_the_same_bytes(store: Store, tmp_path: Path) -> None:
    rng = random.Random(0)
    first, again = tmp_path / "first.sweep.zst", tmp_path / "again.sweep.zst"
    runs = [drawn(f"run-{number}", GemmTask(m=64, n=64, k=64), 6, rng) for number in range(3)]
    export_sweep(sorted(runs, key=lambda one: one.run.created_at), first)
    summary = import_files(store, [str(first)])
    assert (summary.files, summary.runs, summary.steps, summary.known_steps) == (1, 3, 18, 0)
    export_sweep(store.trajectories(), again)
    assert again.read_bytes() == first.read_bytes()


def test_environments_axes_and_baselines_are_declared_once(tmp_path: Path) -> None:
    path = tmp_path / "a.sweep.zst"
    both = trajectory(run_record("a"), step(0), step(1)), trajectory(run_record("b"), step(0), step(1))
    export_sweep(both, path)
    lines = [json.loads(line) for line in zstd.decompress(path.read_bytes()).splitlines()]
    assert [next(iter(line)) for line in lines] == [
        "format",
        *("run", "axes", "environment", "baseline", "index", "index"),
        *("run", "baseline", "index", "index"),
    ]


def test_pieces_keep_to_their_size_and_each_holds_all_that_its_steps_need(store: Store, tmp_path: Path) -> None:
    rng = random.Random(1)
    runs = [trajectory(run_record(f"run-{number}"), *(heavy(index, rng) for index in range(8))) for number in range(2)]
    summary = export_sweep(runs, tmp_path / "gpu.sweep.zst", PIECES)
    names = [Path(name).name for name in summary.files]
    assert names[:2] == ["gpu-000.sweep.zst", "gpu-001.sweep.zst"]
    assert len(names) > 2
    assert all(0.2 * MIN_PIECE_BYTES < Path(name).stat().st_size <= MIN_PIECE_BYTES for name in summary.files[:-1])
    assert import_files(store, [summary.files[1]]).steps > 0
    rest = import_files(store, [*reversed(summary.files), summary.files[0]])
    assert store.step_counts() == {"run-0": 8, "run-1": 8}
    assert rest.known_steps > 0
    assert [one.candidate.source for one in store.steps("run-1")] == [one.candidate.source for one in runs[1].steps]


def test_a_step_that_is_larger_than_a_piece_has_one_of_its_own(tmp_path: Path) -> None:
    rng = random.Random(1)
    steps = [heavy(0, rng), heavy(1, rng, 2 * MIN_PIECE_BYTES), heavy(2, rng)]
    assert len(export_sweep([trajectory(run_record(), *steps)], tmp_path / "x.zst", PIECES).files) == 3


def test_a_store_without_steps_gives_no_file(store: Store, tmp_path: Path) -> None:
    summary = export_sweep(store.trajectories(), tmp_path / "none.zst")
    assert (summary.files, summary.steps, list(tmp_path.glob("none*"))) == ((), 0, [])


def test_pieces_of_another_export_are_not_mixed_with_these(tmp_path: Path) -> None:
    (tmp_path / "x-007.sweep.zst").write_bytes(b"older")
    with pytest.raises(UsageError, match=r"holds x-007.sweep.zst of an earlier export"):
        export_sweep([], tmp_path / "x.sweep.zst", PIECES)


def test_pieces_cannot_be_tiny(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pieces of 1000 bytes are too small"):
        export_sweep([], tmp_path / "x.zst", SweepOptions(piece_bytes=1000))


def test_a_failed_export_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.sweep.zst"
    path.write_bytes(b"old")

    def breaking() -> Iterator[Trajectory]:
        yield trajectory(run_record(), step(0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_sweep(breaking(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.sweep.zst"]
    assert path.read_bytes() == b"old"


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cudal2_agent.contract.whole_file.os.fsync", full)
    with pytest.raises(UsageError, match=r"a.zst cannot be written \(No space left on device\); choose another file"):
        export_sweep([trajectory(run_record(), step(0))], tmp_path / "a.zst")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        export_sweep([trajectory(run_record(), heavy(0, random.Random(1)))], tmp_path / "none" / "a.zst")


def test_a_value_of_any_kind_survives_in_a_run(store: Store, tmp_path: Path) -> None:
    odd: dict[str, Any] = {"versions": {"päckage ✗": "1\n2"}, "policy": "\u2028 odd", "finished_at": NOW, "status": "failed"}
    run = run_record("run.2+x", **odd)
    export_sweep([trajectory(run, step(0))], tmp_path / "a.zst")
    import_files(store, [str(tmp_path / "a.zst")])
    assert store.run("run.2+x") == run.model_copy(update={"status": "finished"})


def test_no_place_server_or_key_leaves_a_store(tmp_path: Path) -> None:
    own = {
        "base_url": "http://secret-host/v1",
        "api_key_file": "/secret-key",
        "store": "sqlite:////secret-store",
        "lm": "/secret-lm",
    }
    own |= {
        "home": "/secret-home",
        "nvcc": "/secret-nvcc",
        "of_another_version": "secret",
        "schedule_prior": "/secret/prior.safetensors",
    }
    run = run_record(settings={**own, "budget": 7}, out="/secret-out", status="interrupted")
    export_sweep([trajectory(run, step(0))], tmp_path / "a.zst")
    text = zstd.decompress((tmp_path / "a.zst").read_bytes()).decode()
    assert "secret" not in text
    assert '"budget":7' in text


def test_a_place_server_or_key_of_a_strangers_file_is_left_out(store: Store, tmp_path: Path) -> None:
    export_sweep([trajectory(run_record(), step(0))], tmp_path / "a.zst")
    lines = [json.loads(line) for line in zstd.decompress((tmp_path / "a.zst").read_bytes()).splitlines()]
    [run] = [line["run"] for line in lines if "run" in line]
    run |= {"status": "interrupted", "out": "/stranger/out"}
    run["settings"] |= {
        "base_url": "http://stranger/v1",
        "api_key_file": "/stranger/key",
        "home": "/stranger",
        "endpoint": "stranger",
    }
    (tmp_path / "b.zst").write_bytes(zstd.compress(b"\n".join(json.dumps(line).encode() for line in lines)))
    import_files(store, [str(tmp_path / "b.zst")])
    [imported] = store.runs()
    assert (imported.status, imported.out, imported.settings.chat.base_url) == ("finished", None, None)
    assert "stranger" not in imported.model_dump_json()
