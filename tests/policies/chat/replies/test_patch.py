"""Patches are applied by their old lines, exactly once, or are refused with the line that does not stand there."""

import random
import time

import pytest

from cudal2_agent.policies.chat.replies.fenced_blocks import Malformed
from cudal2_agent.policies.chat.replies.forms import MAX_CHARS as MAX_REPLY_CHARS
from cudal2_agent.policies.chat.replies.forms import read_reply
from cudal2_agent.policies.chat.replies.patch import MAX_CHARS, Patch, apply_patch, choose_base
from cudal2_agent.policies.chat.tokens import shorten

SOURCE = """/* cudal2: {} */
__global__ void gemm(int* d) {
  int a = 0;
  int b = 1;
\tint c = 2;

  for (int i = 0; i < 4; ++i) {
    a += b;
  }
  for (int i = 0; i < 8; ++i) {
    a += b;
  }
  d[0] = a + c;
}
"""


def diff(*lines: str) -> str:
    return "## Design\nLess. More.\n\n## Code\n```diff\n" + "\n".join(lines) + "\n```\n"


def pairs(*both: tuple[str, str]) -> str:
    shown = "\n".join(f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE" for old, new in both)
    return f"## Code\n```patch\n{shown}\n```\n"


def applied(reply: str, source: str = SOURCE) -> str:
    patch = read_reply(reply)
    assert isinstance(patch, Patch), patch
    result = apply_patch(patch, source)
    assert isinstance(result, str), result
    return result


def refused(reply: str, source: str = SOURCE) -> str:
    patch = read_reply(reply)
    result = apply_patch(patch, source) if isinstance(patch, Patch) else patch
    assert isinstance(result, Malformed), result
    assert "\n" not in result.problem
    return result.problem


@pytest.mark.parametrize(
    "reply",
    [
        diff("--- best", "+++ best", "@@ -900,7 +1,2 @@ nonsense", "-  int b = 1;", "+  int b = 3;"),
        diff("@@", "   int a = 0;", "-  int b = 1;", "+  int b = 3;", " \tint c = 2;"),
        diff("-  int b = 1;", "+  int b = 3;"),
        diff(
            "diff --git a/k.cu b/k.cu", "index 1..2 100644", "--- a/k.cu", "+++ b/k.cu", "@@", "-  int b = 1;", "+  int b = 3;"
        ),
        diff("@@", "-  int b = 1;  ", "+  int b = 3;", " \tint c = 2;", "", "   for (int i = 0; i < 4; ++i) {", "", ""),
        diff("@@", "-  int b = 1;", "\\ No newline at end of file", "+  int b = 3;"),
        pairs(("  int b = 1;", "  int b = 3;")),
        pairs(("  int a = 0;\n  int b = 1;", "  int a = 0;\n  int b = 3;")),
        diff("@@", "-  int b = 1;", "+  int b = 3;").replace("\n", "\r\n"),
    ],
)
def test_a_patch_applies_by_its_old_lines(reply: str) -> None:
    assert applied(reply) == SOURCE.replace("int b = 1;", "int b = 3;")


def test_lines_that_stay_stay_as_the_kernel_has_them() -> None:
    source = SOURCE.replace("int a = 0;\n", "int a = 0;   \r\n")
    assert applied(diff("@@", "   int a = 0;", "-  int b = 1;", "+  int b = 3;"), source) == source.replace("b = 1", "b = 3")


def test_several_hunks_are_matched_against_the_kernel_as_shown() -> None:
    both = diff("@@", "-  d[0] = a + c;", "+  int a = 0;", "@@", "-  int a = 0;", "+  int a = 9;")
    assert applied(both) == SOURCE.replace("int a = 0;", "int a = 9;").replace("d[0] = a + c;", "int a = 0;")
    assert applied(pairs(("  d[0] = a + c;", "  int a = 0;"), ("  int a = 0;", "  int a = 9;"))) == applied(both)


def test_a_patch_in_several_blocks_is_one() -> None:
    two = diff("@@", "-  int a = 0;") + diff("@@", "-  int b = 1;")
    assert applied(two) == SOURCE.replace("  int a = 0;\n  int b = 1;\n", "")


def test_a_patch_of_a_patch_changes_lines_that_look_like_a_patch() -> None:
    source = SOURCE + "/*\n--- a\n+++ b\n@@ -1 +1 @@\n-- x\n*/\n"
    changed = applied(diff("@@", " @@ -1 +1 @@", "--- x", "+-- y"), source)
    assert changed == source.replace("-- x", "-- y")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (diff("@@", "     a += b;", "-  }"), "hunk 1 applies in 2 places: at line 8"),
        (
            diff("@@", "   int a = 0;", "-  int b = 7;"),
            'its old line 2 is "  int b = 7;", but line 4 of the kernel is "  int b = 1;"',
        ),
        (diff("@@", "-int b = 1;"), 'none of its old lines stands in the kernel, the first is "int b = 1;"'),
        (diff("@@", "-    int c = 2;", "   int b = 1;"), 'line 3 of the kernel is "  int a = 0;"'),
        (diff("@@", "+  int z;"), "no line of the kernel to be placed by"),
        (pairs(("", "x")), "no line of the kernel to be placed by"),
        (diff("@@", "-  int b = 1;", "+  int b = 1;"), "changes nothing"),
        (diff("@@", "   int b = 1;"), "changes nothing"),
        (diff("@@"), "removes and adds nothing"),
        (diff("@@", "-  int a = 0;", "-  int b = 1;", "@@", "-  int b = 1;"), "hunk 1 and hunk 2 overlap at line 4"),
        (diff("--- a", "+++ a", "@@", "-  int a = 0;", "--- b", "+++ b", "@@", "-  int b = 1;"), "changes 2 files"),
        (diff("@@", "   int a = 0;", "...", "-  int b = 1;"), "line 3 of the diff begins with neither"),
        (pairs(("  int a = 0;", "x")).replace("=======\n", ""), "pair 1 has no line ======="),
        (pairs(("  int a = 0;", "x")).replace(">>>>>>> REPLACE\n", ""), "pair 1 has no line >>>>>>> REPLACE"),
        (pairs(("  int a = 0;", "x")).replace("<<<<<<<", "int stray = 1;\n<<<<<<<"), "stands outside of SEARCH and REPLACE"),
        (diff("@@", "-" + "x" * MAX_CHARS), "give the whole file instead"),
        (diff("@@", "   int a = 0;", "-  int b = 1;").removesuffix("```\n"), "the last code block is not closed"),
    ],
)
def test_what_does_not_apply_says_which_line(reply: str, said: str) -> None:
    assert said in refused(reply)


def test_every_hunk_that_does_not_apply_is_told() -> None:
    problem = refused(diff("@@", "-  x;", "@@", "-  int a = 0;", "@@", "     a += b;", "-  }"))
    assert "hunk 1 does not apply" in problem
    assert "hunk 3 applies in 2 places" in problem
    assert "hunk 2" not in problem


@pytest.mark.parametrize(
    ("header", "base"),
    [("best", "best"), ("a/failed.cu", "failed"), ("**failed**:", "failed"), ("0123abcd", "0123abcd"), ("kernel.cu", "failed")],
)
def test_the_header_names_the_kernel_and_else_it_follows_from_what_was_asked(header: str, base: str) -> None:
    bases = {"failed": "f", "0123abcd": "f", "best": "b"}
    headers = ([f"--- {header}", "+++ new"], [f"--- {header}"])
    for reply in (*(diff(*each, "@@", "-x") for each in headers), pairs(("x", "y")).replace("<<<", f"{header}\n<<<", 1)):
        patch = read_reply(reply)
        assert isinstance(patch, Patch)
        assert choose_base(patch, bases) == base


def test_a_removed_line_that_looks_like_a_header_stays_one_inside_a_hunk() -> None:
    patch = read_reply(diff("@@", "-x;", "--- best", "@@", "-y;"))
    assert isinstance(patch, Patch)
    assert (patch.files, [hunk.old for hunk in patch.hunks]) == ((), [["x;", "-- best"], ["y;"]])


@pytest.mark.parametrize(
    ("header", "bases", "said"),
    [
        ("failed", {"best": "b"}, 'for "failed", which is not shown here; shown: best'),
        ("deadbeef", {"best": "b"}, "which is not shown here"),
        ("/dev/null", {"best": "b"}, "new file"),
        ("best", {}, "no kernel to patch yet"),
    ],
)
def test_a_kernel_that_is_not_shown_is_not_patched(header: str, bases: dict[str, str], said: str) -> None:
    patch = read_reply(diff(f"--- {header}", "+++ new", "@@", "-x"))
    assert isinstance(patch, Patch)
    chosen = choose_base(patch, bases)
    assert isinstance(chosen, Malformed)
    assert said in chosen.problem


def test_a_patch_against_a_shortened_source_applies_to_the_whole_one() -> None:
    body = "".join(f"  d[{number}] = {number};\n" for number in range(2000))
    source = SOURCE.replace("  d[0] = a + c;\n", body)
    shown = shorten(source, 1000)
    assert "left out" in shown
    assert (
        applied(diff("@@", "   d[1999] = 1999;", "-}", "+  return; }"), source) == source.removesuffix("}\n") + "  return; }\n"
    )
    mark = next(line for line in shown.split("\n") if "left out" in line)
    assert "is the mark of lines left out" in refused(diff("@@", "   int b = 1;", f" {mark}", "-}"), source)


def test_what_is_shown_twice_in_the_part_left_out_is_told() -> None:
    source = SOURCE + "x\n" * 9
    assert "applies in 3 places or more" in refused(diff("@@", "-x"), source)


HOSTILE = {
    "equal lines": (diff("@@", *["-x"] * 20_000), "x\n" * 20_000 + "y\n" * 20_000),
    "common lines": (diff("@@", *["   a += b;"] * 9_000, "-z"), "  a += b;\n" * 9_000),
    "many hunks": (diff(*["@@\n-  int b = 1;\n+x"] * 4_000), SOURCE),
    "openings": (f"```patch\n{'<<<<<<< SEARCH' + chr(10):s}" * 20_000 + "```", SOURCE),
    "spaces": (diff("@@", "-" + " " * 400_000), SOURCE),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_patch_takes_no_time(name: str) -> None:
    reply, source = HOSTILE[name]
    begin_s = time.process_time()
    patch = read_reply(reply)
    if isinstance(patch, Patch):
        apply_patch(patch, source)
    assert time.process_time() - begin_s < 3


def test_eighty_megabytes_are_refused_at_once() -> None:
    begin_s = time.process_time()
    read = read_reply(diff("@@", "-" + "x" * 80_000_000))
    assert isinstance(read, Malformed)
    assert f"of at most {MAX_REPLY_CHARS}" in read.problem
    assert time.process_time() - begin_s < 3


def test_random_patches_never_raise_and_only_change_what_they_name() -> None:
    rng = random.Random(0)
    lines = [*SOURCE.split("\n"), "@@", "--- best", "+++ best", "=======", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "", "…"]
    for _ in range(3000):
        body = "\n".join(rng.choice((" ", "-", "+", "")) + rng.choice(lines) for _ in range(rng.randrange(8)))
        patch = read_reply(f"```diff\n{body}\n```\n")
        result = apply_patch(patch, SOURCE) if isinstance(patch, Patch) else patch
        assert isinstance(result, str) or getattr(result, "problem", "")
