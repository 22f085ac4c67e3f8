"""A scripted `ncu` and a scripted Python for its child: real programs without a GPU."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from cudal2_agent.contract.settings.options import ProfileOptions, WorkerOptions
from cudal2_agent.sandbox.profiling.profiler import Profiler

# Recorded from ncu 2025.3.1.0 on one H200; most of the columns that the metric set does not name were taken out.
HERE = Path(__file__).parent
WGMMA = (HERE / "h200_wgmma.csv").read_text()
MMA_SYNC = (HERE / "h200_mma_sync.csv").read_text()
CRASH = (HERE / "h200_crash.csv").read_text()
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target "
    "device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
)
VERSION = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)\n"
REPORTS = tuple(json.dumps({"stage": stage}) for stage in ("start", "load", "warm-up", "count", "done"))


@dataclass(frozen=True)
class Act:
    """One run of the tool. `reports`: lines of its child, None for no child. `table`: the text of the log file."""

    table: str = WGMMA
    reports: tuple[str, ...] | None = REPORTS
    stdout: str = ""
    stderr: str = ""
    hangs: str = ""  # "tool" or "child"
    exit_code: int = 0


_NCU = """#!{python}
import json, os, signal, socket, subprocess, sys, time
from pathlib import Path
words = sys.argv[1:]
if words == ["--version"]:
    print({version!r})
    sys.exit(0)
script = json.loads(Path({script!r}).read_text())
runs = Path({runs!r})
number = len(runs.read_text().splitlines()) if runs.exists() else 0
flags, rest = {{}}, words[1:]
assert words[0] == "--csv"
while rest[0].startswith("--"):
    flags[rest[0]], rest = rest[1], rest[2:]
request = json.loads(Path(rest[-2]).read_text())
run = {{"flags": flags, "program": rest, "request": request, "environment": dict(os.environ), "folder": os.getcwd(),
       "pid": os.getpid(), "interfaces": [name for _, name in socket.if_nameindex()]}}
with runs.open("a") as file:
    file.write(json.dumps(run) + chr(10))
act = script[min(number, len(script) - 1)]
print(act["stdout"], end="")
print(act["stderr"], end="", file=sys.stderr)
if act["reports"] is not None:
    with open(rest[-1], "w") as file:
        file.writelines(line + chr(10) for line in act["reports"])
if act["hangs"] == "tool":
    time.sleep(600)
if act["hangs"] == "child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open({child!r}, "w") as file:
        file.write(str(child.pid))
    child.wait()
Path(flags["--log-file"]).write_text(act["table"])
sys.exit(act["exit_code"])
"""


class PretendedTool:
    """An `ncu` in a folder; each run takes the next act of the script, and repeats the last one."""

    def __init__(self, folder: Path, *script: Act, version: str = VERSION) -> None:
        self._folder = folder
        self.path = folder / "ncu"
        self.child_pid = folder / "child.pid"
        (folder / "script.json").write_text(json.dumps([asdict(act) for act in script or (Act(),)]))
        places = {
            name: str(folder / file) for name, file in {"script": "script.json", "runs": "runs", "child": "child.pid"}.items()
        }
        self.path.write_text(_NCU.format(python=sys.executable, version=version, **places))
        self.path.chmod(0o755)

    @property
    def runs(self) -> list[dict]:
        runs = self._folder / "runs"
        return [json.loads(line) for line in runs.read_text().split("\n")[:-1]] if runs.exists() else []

    def profiler(self, *, timeout_s: float = 20.0, python: str | None = None) -> Profiler:
        options = ProfileOptions(ncu=str(self.path), timeout_s=timeout_s)
        return Profiler(options, WorkerOptions(device=3, python=python), {"CUPY_CACHE_DIR": "/nowhere"})
