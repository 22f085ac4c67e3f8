"""A child in a jail that tries operations and reports which worked."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cudal2_agent.sandbox.jail.entering import Jail, Layers
from cudal2_agent.sandbox.workers.process import ChildExit, Limits, run

LANDLOCK = Layers(landlock=True)
MOUNTS = Layers(mounts=True)
CALLS = Layers(calls=True)
ALL = Layers(landlock=True, mounts=True, calls=True)

PYTHON = (
    *(sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])),
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"),
)
_TRY = """
import json, os, sys, errno
from pathlib import Path
worked = {{}}
for name, code in json.loads({attempts!r}).items():
    try:
        exec(code, {{"os": os, "Path": Path, "sys": sys}})
        worked[name] = "worked"
    except OSError as exc:
        worked[name] = errno.errorcode.get(exc.errno, str(exc))
    except Exception as exc:
        worked[name] = repr(exc)
print(json.dumps(worked))
"""


def jail_of(scratch: Path, layers: Layers, **changes: object) -> Jail:
    return replace(Jail(write=(str(scratch),), read=PYTHON, layers=layers), **changes)


def python(code: str, scratch: Path, jail: Jail | None, **changes: object) -> ChildExit:
    limits = replace(Limits(wall_s=20, jail=jail), **changes)
    return run([sys.executable, "-P", "-s", "-c", code], scratch=scratch, limits=limits)


def attempt(attempts: Mapping[str, str], scratch: Path, jail: Jail | None, **changes: object) -> dict[str, str]:
    """The result of each attempt: `worked`, or the name of the error."""
    ended = python(_TRY.format(attempts=json.dumps(attempts)), scratch, jail, **changes)
    assert ended.returncode == 0, ended.stderr.decode()
    worked: dict[str, str] = json.loads(ended.stdout)
    return worked
