"""`prior list`, `use` and `evaluate` on a machine without a GPU; one bench with the real compiler and the emulator."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.proposals.proposal_rows import append_row
from cudal2_agent.agent.cli.main import main
from cudal2_agent.contract.settings.settings import load_settings
from tests.agent.bench.proposals.rows import judged, proposal_row
from tests.doubles.building import compile_in_this_process
from tests.doubles.learned_policies import write_policy

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def _quick_builds(kept_builds: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        compile_in_this_process(patch, kept_builds)
        yield


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


def complaint(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    return error


def test_weights_at_home_are_listed_and_the_chosen_ones_marked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_policy(home / "policies" / "mine.safetensors")
    (home / "policies" / "half.safetensors").write_bytes(b"\0")
    assert "searches use auto" in answer("prior list", capsys)
    assert "searches use mine" in answer("prior use mine", capsys)
    shown = answer("prior list", capsys)
    assert any(line.split()[:5] == ["*", "mine", "H200", "90", "schedules"] for line in shown.splitlines())
    assert "half.safetensors holds no prior that this version reads" in shown
    told = json.loads(answer("prior list --json", capsys))
    assert told["used"] == "mine"
    assert "mine" in [one["card"]["name"] for one in told["policies"]]


def test_a_choice_is_what_later_commands_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_policy(tmp_path / "other.safetensors")
    answer(f"prior use {path.name}", capsys)
    assert load_settings().schedule_prior == str(path)
    assert json.loads(answer("prior use analytic --json", capsys))["in_force"] == "analytic"
    assert load_settings().schedule_prior == "analytic"


def test_the_former_name_of_the_verb_works_with_a_notice(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "choices.toml").write_text('schedule_prior = "h200"\n')  # as `policy use h200` kept it
    assert main(["policy", "list"]) == 0
    former = capsys.readouterr()
    assert "searches use h200" in former.out
    assert former.err == "note: `policy` is now `prior`; the old name goes after this version\n"
    assert main(["prior", "list"]) == 0
    assert capsys.readouterr() == (former.out, "")
    assert main(["--help"]) == 0
    assert "\n  policy " not in capsys.readouterr().out


def test_a_choice_that_something_overrides_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDAL2_SCHEDULE_PRIOR", "analytic")
    assert "says analytic, which goes first" in answer("prior use auto", capsys)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("prior use nothing", "there is no prior 'nothing'"),
        ("prior evaluate", "there is nothing to evaluate"),
        ("prior evaluate missing.jsonl", "missing.jsonl cannot be read"),
        ("prior evaluate --shapes 64x64x64", "--out is missing"),
        ("prior evaluate --shapes 64x64x64 --out r.jsonl.gz --device none", "rows are appended unpacked"),
        ("prior evaluate --shapes 64x64 --out r.jsonl", "'64x64'"),
        ("prior evaluate --shapes 64x64x64 --out r.jsonl --arms best --device none", "arm 'best' is not known"),
        ("prior evaluate --shapes 64x64x64 --out r.jsonl --part 3/2 --device none", "--part '3/2'"),
    ],
)
def test_wrong_input_is_one_line(words: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error in complaint(words, capsys)


def test_figures_of_rows_are_shown_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_row(tmp_path / "rows.jsonl", proposal_row([judged("a", 1.0), judged("b", 0.9)], {"good": ["a"], "bad": ["b"]}))
    lines = answer("prior evaluate rows.jsonl", capsys).splitlines()
    assert lines[0].startswith("1 shapes, f16 accumulate f32, nn, offline, measured, scripted")
    assert [line.split()[0] for line in lines[2:4]] == ["good", "bad"]
    told = json.loads(answer("prior evaluate rows.jsonl --json", capsys))
    assert [arm["first_within"]["value"] for arm in told["benches"][0]["arms"]] == [1.0, 0.0]


@pytest.mark.usefixtures("_quick_builds")
def test_a_bench_on_the_emulator_predicts_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cudal2_agent.sandbox.emulator._core", reason="the emulator's core is not built here")
    words = "prior evaluate --shapes 16x16x16 --arms schedule,random --arch sm_80 --budget 1 --out rows.jsonl --device emulator"
    assert main(words.split()) == 0
    first = capsys.readouterr()
    assert "PREDICTED, not measured" in first.out
    assert "no GPU is here" in first.err
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert [len(arm["rounds"][0]) for arm in row["arms"]] == [1, 1]
    assert {one["status"] for one in row["candidates"]} == {"unmeasured"}
    assert main(words.split()) == 0
    again = capsys.readouterr()
    assert "1 of 1 tasks have a row already" in again.err
    assert again.out == first.out
