"""What a user reads under the conditions of containers; `containers.py` makes them. They need root and several minutes."""

from typing import Any

import pytest

from tests.slow.containers import COMMANDS, CONDITIONS, Condition, Impossible, Said, container

NO_HOME = "error: this user has no home folder; set CUDAL2_HOME to a folder that can be written"
# Conditions under which a command fails: its line, and its exit code. All other commands work.
LINES = {
    "a read-only root, nothing writable": {
        "doctor": (2, "error: no folder for temporary files can be written; set TMPDIR or CUDAL2_HOME"),
        "optimize": (2, "error: no folder for temporary files can be written; set TMPDIR or CUDAL2_HOME"),
        "verify": (2, "error: no folder for temporary files can be written; set TMPDIR or CUDAL2_HOME"),
        "index add": (1, "Read-only file system; check the path, its permissions and space"),
        "index search": (1, "no knowledge base in"),
    },
    "a user without a home or a name": dict.fromkeys(
        ("doctor", "optimize", "verify", "index add", "index search"), (2, NO_HOME)
    ),
    "a user with the home /nonexistent": {
        "doctor": (1, "store folder /nonexistent cannot be created: Permission denied; set CUDAL2_HOME"),
        "optimize": (2, "store folder /nonexistent cannot be created: Permission denied; set CUDAL2_HOME"),
        "verify": (1, "the compile cache /nonexistent/.cudal2/cache/compile is not writable"),
        "index add": (1, "knowledge base /nonexistent/.cudal2/knowledge: Permission denied"),
        "index search": (1, "no knowledge base in"),
    },
    "at most 8 processes and threads": {
        "optimize": (1, "error: the system refuses another process or thread; raise the limit: pids.max of a container"),
        "index add": (1, "error: the system refuses another process or thread; raise the limit: pids.max of a container"),
        "index search": (1, "error: "),
    },
    "150 MiB of memory": {"optimize": (-9, ""), "verify": (-9, ""), "index add": (-9, ""), "index search": (1, "error: ")},
}
# What `doctor` says of a condition, beside that optimize works.
DOCTOR = {
    "no user namespaces and no Landlock": "none for files: a compiler or worker may open every file of this user",
    "half a processor": "1 processors, 1 compilers at a time",
    "one processor by affinity": "1 processors, 1 compilers at a time",
    "at most 8 processes and threads": "remedy: allow 1024 MiB of memory (memory.max) and 32 processes and threads (pids.max)",
    "150 MiB of memory": "150 MiB of memory",
}


def said_by(condition: Condition) -> dict[str, Said]:
    try:
        with container(condition) as here:
            return {" ".join(words[:2] if words[0] == "index" else words[:1]): here.run(*words) for words in COMMANDS}
    except Impossible as exc:
        pytest.skip(str(exc))


def marked(condition: Condition) -> Any:
    """Under a condition that commands fail under, they end soon; `slow` runs these, and all others are run on request."""
    return pytest.param(condition, id=condition.name, marks=pytest.mark.slow if condition.name in LINES else pytest.mark.long)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("condition", [marked(condition) for condition in CONDITIONS])
def test_what_a_user_reads(condition: Condition) -> None:
    expected = LINES.get(condition.name, {})
    found = said_by(condition)
    assert not [command for command, said in found.items() if "Traceback" in said.err]
    assert {command: said.code for command, said in found.items()} == {
        command: expected.get(command, (0, ""))[0] for command in found
    }
    for command, (_, line) in expected.items():
        assert line in " ".join((found[command].out + found[command].err).split()), found[command]
    assert DOCTOR.get(condition.name, "") in found["doctor"].out
