"""A few damaged files for each reader: errors of the product's own tree, nothing written outside, no program, no server."""

import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.fuzz.files import _lines_of
from tests.fuzz.readers import ROOT, TARGETS

FILES = 12
ONE = """
import random, sys, tempfile
from pathlib import Path
from tests.fuzz.files import Reader
from tests.fuzz.readers import TARGETS
with tempfile.TemporaryDirectory() as home:
    name, count = sys.argv[1], int(sys.argv[2])
    target, rng = TARGETS[name], random.Random(name)
    starts = target.starts()
    reader = Reader(target, Path(home).resolve(), traced=False)
    for number in range(count):
        start = starts[number % len(starts)]
        fate, said = reader.read(start if number < len(starts) else target.damage(start, rng))
        assert fate != "finding", said
        print(fate)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_refused_in_one_line_or_read(name: str) -> None:
    done = _run([sys.executable, "-W", "ignore", "-c", ONE, name, str(FILES)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("accepted") >= 1, "nothing was read"


WATCHED = """
import sys, tempfile
from pathlib import Path
from tests.fuzz import files
from tests.fuzz.readers import Target
def act(path):
    {act}
with tempfile.TemporaryDirectory() as home:
    target = Target("a", lambda: (b"",), lambda content, rng: content, act, ())
    print(files.Reader(target, Path(home).resolve(), traced=False).read(b"x"))
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("open('/tmp/cudal2-fuzz-outside', 'w')", "Outside"),
        ("Path('/tmp/cudal2-fuzz-outside').mkdir()", "Outside"),
        ("import subprocess; subprocess.run(['true'])", "Outside"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "Outside"),
        ("raise KeyError(3)", "KeyError"),
        ("bytearray(b'x') * (1100 << 20)", "1 GB"),
        ("path.with_name('beside').write_text('x')", "accepted"),
    ],
)
def test_the_watch_sees_what_a_reader_does(act: str, said: str) -> None:
    done = _run([sys.executable, "-c", WATCHED.format(act=act)])
    assert said in done.stdout, done.stderr
    assert not Path("/tmp/cudal2-fuzz-outside").exists()


@pytest.mark.parametrize("name", ["steps", "shapes", "trace", "reply", "stream", "settings", "archive"])
def test_equal_seeds_give_equal_damage_and_other_files(name: str) -> None:
    target = TARGETS[name]
    start = target.starts()[0]
    drawn = [target.damage(start, random.Random(number)) for number in range(8)]
    if name != "archive":  # an archive holds the time
        assert drawn == [target.damage(start, random.Random(number)) for number in range(8)]
    assert len({zlib.crc32(content) for content in (start, *drawn)}) > 5


def test_every_target_names_sources_that_there_are() -> None:
    for name, target in TARGETS.items():
        for source in target.sources:
            files = [path for path in ROOT.glob(f"{source}*") if path.suffix == ".py"] or list((ROOT / source).rglob("*.py"))
            assert any(_lines_of(compile(path.read_text(), str(path), "exec")) for path in files), (name, source)


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=ROOT)
