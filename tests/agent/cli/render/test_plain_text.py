"""What is printed holds no control character of a stranger, on stdout, on stderr and in what rich draws."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from rich.text import Text

from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.cli.render.plain_console import PlainConsole
from cudal2_agent.agent.cli.render.plain_text import plain, plain_streams

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x9b2J \x7f \u202egnp.exe \u2066x\u2069 \u2028 \x85 \x08 over\rwritten \udcff"
RAW = "\x1b\x07\x9b\x7f\u202e\u2066\u2069\u2028\x85\x08\r\udcff"


def test_nothing_raw_is_left_and_plain_text_stays() -> None:
    assert not set(plain(HOSTILE)) & set(RAW)
    ordinary = "a\tb\n×µ é 中 🚀 ✗ – …\r\nend"
    assert plain(ordinary) == ordinary
    assert plain("\r 50 %") == "\r 50 %", "a progress bar"


def test_json_means_the_same() -> None:
    text = json.dumps({"a": HOSTILE}, ensure_ascii=False)
    assert json.loads(plain(text)) == {"a": HOSTILE}


def test_both_streams_are_filtered_however_they_are_written() -> None:
    out, error = io.StringIO(), io.StringIO()
    before = sys.stdout
    with plain_streams(out, error):
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines([HOSTILE])
        logging.StreamHandler().emit(logging.LogRecord("x", logging.WARNING, "", 0, HOSTILE, None, None))
    assert sys.stdout is before
    for written in (out.getvalue(), error.getvalue()):
        assert written.count("red") == 2
        assert not set(written) & set(RAW)


@pytest.mark.parametrize("drawn", [HOSTILE, Text(HOSTILE)])
def test_what_rich_draws_is_filtered_and_its_own_sequences_are_not(drawn: str | Text) -> None:
    error = io.StringIO()
    with plain_streams(io.StringIO(), error):
        console = PlainConsole()
        console._force_terminal = True
        console.print(drawn, style="bold", markup=False)
    written = error.getvalue()
    assert "red" in written
    assert not set(written) & set(RAW) - {"\x1b"}
    assert "\x1b[31m" not in written


def test_a_hostile_name_reaches_no_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--shape", "64x64x64", str(tmp_path / "\x1b[2J\u202e.jsonl")]) == 2
    told = capsys.readouterr()
    assert "\\u001b[2J\\u202e" in told.err + told.out
    assert not set(told.err + told.out) & set(RAW)
