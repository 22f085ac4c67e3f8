"""`cudal2-agent library`, from the command line."""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from cudal2.library.kernel_library import shipped_library
from cudal2.library.prepared_kernels import PreparedKernels
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.library.entry_source import source_sha256
from cudal2_agent.agent.library.m_ranges import range_candidate
from cudal2_agent.contract.records.task import ElementType, GemmTask
from tests.doubles.building import compile_in_this_process, leave_machine_code_unread
from tests.doubles.libraries import library_entry, m_range, small_tasks, stored_algorithm, write_entries

ROOT = Path(__file__).parents[4]
ROWS = ROOT / "benchmarks" / "campaigns" / "rows" / "server-2026-11-23.jsonl.gz"
SLOWER = ROOT / "benchmarks" / "library" / "slower_h200.txt"
WITHOUT_BLOCKS = 464  # entries of the committed rows of the grid of 2026-11-23
TASKS = small_tasks(2)
needs_core = pytest.mark.skipif(
    find_spec("cudal2_agent.sandbox.emulator._core") is None, reason="the emulator's core is not built here"
)


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def small(tmp_path: Path) -> str:
    return str(write_entries(tmp_path / "small", [library_entry(TASKS[0]), library_entry(TASKS[1], ratio=1.6)]))


def shipped() -> int:
    library = shipped_library("H200")
    assert library is not None
    return len(library)


def test_list_and_show(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["library", "list", "--library", small]) == 0
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first == "small: 2 entries for H200 (sm_90a), 2026-11-23, cudal2-agent 0.1.0"
    assert head.split() == ["id", "shape", "layout", "types", "kernel", "AutoTuning", "ours", "speedup", "interval"]
    assert [row.split()[1] for row in rows] == ["16x16x64", "16x32x64"]
    assert main(["library", "list", "--library", small, "--top", "1", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["task"]["n"] == 32
    id_ = library_entry(TASKS[1]).model_copy(update={"evaluation": library_entry(TASKS[1], ratio=1.6).evaluation}).id
    assert main(["library", "show", id_[:10], "--library", small]) == 0
    told = capsys.readouterr().out
    assert f"entry {id_}" in told
    assert "1.600x of AutoTuning (1.590–1.610)" in told
    assert "as measured" in told
    assert main(["library", "show", id_, "--library", small, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] is None
    assert main(["library", "show", id_, "--library", small, "--source"]) == 0
    assert '/* cudal2: {\n "arch": "sm_90a"' in capsys.readouterr().out


def test_a_gated_entry_is_listed_and_shown_as_what_it_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = library_entry(GemmTask(m=64, n=64, k=64, layout="tn", activation="silu", gated=True))
    path = str(write_entries(tmp_path / "gated", [entry]))
    assert main(["library", "list", "--library", path]) == 0
    assert " 64x64x64  tn      f16/f32 gated silu " in capsys.readouterr().out
    assert main(["library", "show", entry.id, "--library", path]) == 0
    assert "64x64x64 tn, f16 with f32 sums, silu(A·B) · (A·up), H200 (sm_90a)" in capsys.readouterr().out


def test_show_says_that_an_entry_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stale = library_entry(TASKS[0], source_sha256="0" * 64)
    path = str(write_entries(tmp_path / "stale", [stale]))
    assert main(["library", "show", stale.id, "--library", path]) == 0
    assert "is stale" in capsys.readouterr().out
    assert main(["library", "prepare", "--library", path]) == 1
    assert "1 failed" in capsys.readouterr().out


def test_without_a_library_the_shipped_one_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["library", "list", "--top", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"h200-2026-11-27: {shipped():,} entries for H200 (sm_90a)")


def test_prepare_writes_what_a_program_launches(
    small: str, home: Path, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    entry = library_entry(TASKS[0])
    words = ["library", "prepare", "--library", small, "--entry", entry.id, "--sms", "114"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{entry.id[:8]} 16x16x64 nn: built",
        f"1 built, 0 ready, 0 failed; kernels in {home / 'cache' / 'library'}",
    ]
    found = PreparedKernels(home / "cache" / "library").find(entry, 114)
    assert found is not None
    assert found.plan.sms == 114
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ready"


@needs_core
def test_prepare_of_a_shape_proves_the_entry_for_fewer_rows(
    small: str, home: Path, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    entry = library_entry(TASKS[0])
    words = ["library", "prepare", "--library", small, "--entry", entry.id, "--sms", "132", "--shape"]
    assert main([*words, "9x16x64"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{entry.id[:8]} 9x16x64 nn: built, verified by the emulator"
    kernels = PreparedKernels(home / "cache" / "library")
    fewer = entry.task.model_copy(update={"m": 9})
    assert kernels.find(entry, 132, fewer) is not None
    assert kernels.find(entry, 132) is None
    assert main([*words, "16x16x64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"] == "16x16x64"
    assert kernels.find(entry, 132) is not None, "its own shape needs no proof"


def test_prepare_of_a_range_proves_one_kernel_for_many_m(
    tmp_path: Path, home: Path, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    entry = library_entry(TASKS[0])
    one = m_range(entry, 5, source_sha256=source_sha256(range_candidate(entry, 5, 132)))
    library = str(write_entries(tmp_path / "ranged", [entry, library_entry(TASKS[1])], ranges=[one]))
    words = ["library", "prepare", "--library", library, "--entry", entry.id, "--sms", "132"]
    assert main([*words, "--range"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{entry.id[:8]} 5-15x16x64 nn: built, verified by the emulator"
    kernels = PreparedKernels(home / "cache" / "library")
    assert kernels.find_range(entry, one, 132) is not None
    assert kernels.find(entry, 132) is None
    assert main([*words, "--range", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "ready"
    monkeypatch.setattr("cudal2.torch.compiled_build.COMPILERS", ("no-such-compiler",))
    assert main(["library", "prepare", "--library", library, "--sms", "132"]) == 0
    assert capsys.readouterr().out.startswith("2 built, 1 ready, 0 failed")
    assert main(["library", "show", entry.id, "--library", library]) == 0
    assert "  smaller M   from 5 on, of PyTorch's product: 15 1.200x, 5 1.200x" in capsys.readouterr().out.splitlines()
    assert main([*words[:5], library_entry(TASKS[1]).id, "--range"]) == 2
    assert "has no range of M for entry" in capsys.readouterr().err


def test_prepare_of_all_compiles_for_torch_too(
    small: str, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("cudal2.torch.compiled_build.COMPILERS", ("no-such-compiler",))
    words = ["library", "prepare", "--library", small, "--sms", "114"]
    assert main(words) == 0, "the kernels were built"
    built, compiled = capsys.readouterr().out.splitlines()
    assert built.startswith("2 built, 0 ready, 0 failed")
    assert compiled.startswith(f"enable in C++ for PyTorch {version('torch')}: failed: there is no C++ compiler")
    assert main([*words, "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["part"] == "enable in C++"


def test_prepare_without_kernels_compiles_for_torch_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a library of `tune`, whose algorithms programs run by the C++ part."""
    monkeypatch.setattr("cudal2.torch.compiled_build.COMPILERS", ("no-such-compiler",))
    path = write_entries(tmp_path / "tuned", [], [stored_algorithm(TASKS[0])])
    assert main(["library", "prepare", "--library", str(path), "--sms", "114"]) == 0
    built, compiled = capsys.readouterr().out.splitlines()
    assert built.startswith("0 built, 0 ready, 0 failed")
    assert compiled.startswith("enable in C++")


def test_prepare_of_one_element_type_leaves_the_others(
    tmp_path: Path, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    monkeypatch.setattr("cudal2.torch.compiled_build.COMPILERS", ("no-such-compiler",))
    both = [library_entry(TASKS[0]), library_entry(TASKS[0].model_copy(update={"element": ElementType.BF16}))]
    words = ["library", "prepare", "--library", str(write_entries(tmp_path / "both", both)), "--sms", "114"]
    assert main([*words, "--element", "bf16"]) == 0
    assert capsys.readouterr().out.startswith(f"{both[1].id[:8]} 16x16x64 nn: built\n1 built, 0 ready, 0 failed")
    assert main([*words, "--element", "f16", "--json"]) == 0
    assert [json.loads(line).get("id") for line in capsys.readouterr().out.splitlines()][:-1] == [both[0].id]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--element", "f32"], "--element 'f32' is not known; choose from f16, bf16"),
        (["--element", "bf16"], "has no kernel in bf16 to build"),
        (["--element", "f16", "--entry", "abc"], "leave one of them out"),
    ],
)
def test_prepare_of_an_element_type_that_is_not_there_is_one_line(
    more: list[str], said: str, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["library", "prepare", "--library", small, *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


@needs_core
def test_check_on_the_emulator(
    small: str, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    words = ["library", "check", "--library", small, "--sample", "1", "--device", "emulator"]
    assert main(words) == 0
    line, summary = capsys.readouterr().out.splitlines()
    assert "verified by the emulator" in line
    assert summary == "1 checked on emulator: 1 passed; nothing was timed; rows in library-check.jsonl"
    [row] = [json.loads(text) for text in Path("library-check.jsonl").read_text().splitlines()]
    assert (row["status"], row["time_us"], row["speedup"]) == ("passed", None, None)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == row, "it is not checked again"


def test_a_source_that_is_wrong_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_entries(tmp_path / "stale", [library_entry(TASKS[0], source_sha256="0" * 64)])
    assert main(["library", "check", "--library", str(path), "--device", "none"]) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert "FAILED" in line
    assert summary == "1 checked on none: 1 failed; nothing was timed; rows in library-check.jsonl"


def test_what_nothing_executed_is_not_called_right(
    small: str, kept_builds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_in_this_process(monkeypatch, kept_builds)
    leave_machine_code_unread(monkeypatch)
    assert main(["library", "check", "--library", small, "--sample", "1", "--device", "none"]) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert "not executed" in line
    assert summary.startswith("1 checked on none: 1 not-run; nothing was timed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--library", "nowhere"], "nowhere does not exist"),
        (["list", "--library", "damaged.jsonl.gz"], "is damaged or not a kernel library"),
        (["list", "--library", "."], "it has no manifest.json"),
        (["show", "ffffffff"], "no entry whose id begins with 'ffffffff'"),
        (["prepare", "--entry", "ffffffff"], "no entry whose id begins with"),
        (["prepare", "--shape", "48x64x64"], "--shape is for one entry; name it with --entry"),
        (["prepare", "--range"], "--range is for one entry; name it with --entry"),
        (["prepare", "--entry", "abcd", "--range", "--shape", "48x64x64"], "--shape is one M and --range many"),
        (["prepare", "--batch-invariant", "--range"], "--batch-invariant builds no entry"),
        (["check", "--entry", "ffffffff"], "no entry whose id begins with"),
        (["check", "--max-gflop", "0.0001"], "raise --max-gflop"),
        (["build", "--out", "h200"], "`cudal2-agent campaign run` finds some"),
        (["build", "--out", "h200", "--rows", "nowhere"], "nowhere does not exist"),
        (["build", "--out", "h200", "--rows", str(ROWS)], "no kernel was measured with plain launches"),
        (["build", "--out", "h200", "--rows", str(ROWS), "--from-store"], "exclude each other"),
        (["build", "--out", "h200", "--rows", str(ROWS), "--without", "nowhere"], "nowhere cannot be read"),
        (["build"], "Missing option '--out'"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged.jsonl.gz").write_bytes(b"not gzip")
    assert main(["library", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "h200").exists()


@pytest.mark.parametrize(("shape", "said"), [("17x16x64", "its N and K, and no larger M"), ("16x16", "is not M x N x K")])
def test_prepare_of_another_product_is_one_line(shape: str, said: str, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["library", "prepare", "--library", small, "--entry", library_entry(TASKS[0]).id, "--shape", shape]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_build_says_what_it_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = str(ROWS.with_name("offline-2026-11-23.jsonl.gz"))
    words = ["library", "build", "--rows", rows, "--without", str(SLOWER), "--out", "h200"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["chip"], len(answer["entries"])) == ("h200", "H200", WITHOUT_BLOCKS)
    assert {one["reason"] for one in answer["left_out"]} == {
        "does not beat AutoTuning",
        "its family writes another source today",
        "named by --without",
    }
    assert main(words) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{WITHOUT_BLOCKS} entries for H200 in h200"
    assert [line.split(",")[1].partition(":")[0].strip() for line in told[1:]] == sorted(
        {one["reason"] for one in answer["left_out"]}
    )
