"""Makes the stored artefacts of a version: run it in a checkout of that version, with its emulator core built.

    git worktree add ../old COMMIT && cd ../old    # then build the core there, or copy it
    PYTHONPATH=. python THIS_FILE OUT

The folder OUT then holds what this folder commits; README.md says what is what.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path

# As long as what `tempfile.mkdtemp` makes of this prefix, so that a test can put another home into checkpoints.
HOME = Path("/tmp/cudal2-original")
SCRIPTED = Path("/tmp/cudal2-scripted")
SHAPE = ("--shape", "256x256x256", "--arch", "sm_90a")
CLI = (sys.executable, "-m", "cudal2_agent.agent.cli.main")
CHAT = """
import sys
from pathlib import Path
from tests.author.script import Author, SCRIPT
from tests.doubles.chat_server import ScriptedServer
from cudal2_agent.agent.cli.main import main
with ScriptedServer(Author("built")) as server:
    words = ["optimize", "--shape", "2048x2048x1024", "--arch", "sm_90a", "--device", "none", "--no-knowledge"]
    words += ["--policy", "chat", "--model", "test", "--base-url", server.base_url, "--budget", str(len(SCRIPT))]
    sys.exit(main([*words, "--json"]))
"""
# Every setting with a name in the environment, away from its default. `home` and keys aside: their values are no record's.
NAMES = {
    "STORE": "sqlite:////tmp/cudal2-original/other.sqlite",
    "DEVICE": "cuda:1",
    "POLICY": "portfolio",
    "BUDGET": "7",
    "MINUTES": "1.5",
    "ROUND_SIZE": "5",
    "SEED": "11",
    "VERIFY_SEED": "12",
    "COMPILE_JOBS": "3",
    "COMPILE_TIMEOUT_S": "61",
    "VERIFY_TIMEOUT_S": "31",
    "EMULATE_TIMEOUT_S": "99",
    "TIME_TIMEOUT_S": "62",
    "ROUNDS": "9",
    "QUICK_ROUNDS": "5",
    "USE_KNOWLEDGE": "false",
    "KNOWLEDGE": "/tmp/cudal2-original/base",
    "CUTLASS": "4.1.0",
    "EMBEDDING_MODEL": "minilm",
    "EMBEDDING_DEVICE": "cuda:1",
    "EMBEDDING_PRECISION": "bfloat16",
    "INDEX_JOBS": "4",
    "CHROMA_HOST": "127.0.0.1",
    "CHROMA_PORT": "8001",
    "PROFILE": "leaders",
    "PROFILE_TIMEOUT_S": "63",
    "NCU": "/opt/ncu",
    "USE_DIAGNOSIS": "false",
    "MODEL": "test",
    "BASE_URL": "http://127.0.0.1:1/v1",
    "API_KEY_FILE": "/tmp/cudal2-original/key",
    "CHAT_SAMPLES": "2",
    "CHAT_PARALLEL": "3",
    "CHAT_TEMPERATURE": "0.25",
    "CHAT_TURNS": "2",
    "CHAT_REPAIRS": "1",
    "CHAT_PROMPT_TOKENS": "9000",
    "CHAT_REPLY_TOKENS": "800",
    "CHAT_FIRST_BYTE_S": "21",
    "CHAT_REPLY_S": "22",
    "CHAT_RETRIES": "0",
    "TOKENS": "12345",
    "MONEY": "2.5",
    "CHAT_MINUTES": "3.5",
    "PROMPT_PRICE": "0.75",
    "REPLY_PRICE": "1.25",
    "REPLAY": "run-1",
    "NVCC": "/opt/nvcc",
    "TRUST_HOST": "true",
}


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDAL2_")}
    return kept | {"CUDAL2_HOME": str(home)}


def call(home: Path, *words: str) -> None:
    subprocess.run(words, env=environment(home), check=True)


def steps_in(home: Path) -> int:
    path = home / "trajectories.sqlite"
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return int(store.execute("select count(*) from steps").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def killed(home: Path, steps: int, *words: str) -> None:
    """Starts a run and kills it once the store holds so many steps."""
    run = subprocess.Popen(words, env=environment(home), start_new_session=True)
    while steps_in(home) < steps and run.poll() is None:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def shrink(home: Path) -> None:
    """Leaves out what a store holds twice: the write-ahead log, pages that are free."""
    for name in ("trajectories.sqlite", "checkpoints.sqlite"):
        with closing(sqlite3.connect(home / name, isolation_level=None)) as database:
            database.execute("pragma wal_checkpoint(truncate)")
            database.execute("pragma journal_mode=delete")
            database.execute("vacuum")
    shutil.rmtree(home / "locks", ignore_errors=True)


def entries() -> set[Path]:
    return {file.parent for file in HOME.glob("cache/compile/*/*/entry.json")}


def keep_entries(wanted: set[Path]) -> None:
    """Of the compile cache, these and the smallest entry that did not compile."""
    failed = [folder for folder in entries() if not (folder / "kernel.cubin").exists()]
    smallest = min(failed, key=lambda folder: sum(file.stat().st_size for file in folder.iterdir()))
    for folder in entries() - wanted - {smallest}:
        shutil.rmtree(folder)


def settings_sample(out: Path) -> None:
    """The settings that this version makes of the environment, and of the same names in a file."""
    load = "from cudal2_agent.contract.settings.settings import load_settings"
    code = f"import json; {load}; print(json.dumps(load_settings().recorded()))"
    names = {f"CUDAL2_{name}": value for name, value in NAMES.items()}
    said = subprocess.run([sys.executable, "-c", code], env=environment(HOME) | names, check=True, capture_output=True)
    sample = {"environment": names, "recorded": json.loads(said.stdout)}
    out.write_text(json.dumps(sample, indent=1) + "\n", "utf-8")


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for home in (HOME, SCRIPTED):
        shutil.rmtree(home, ignore_errors=True)
    call(HOME, *CLI, "optimize", *SHAPE, "--device", "emulator", "--budget", "3", "--no-knowledge")
    of_schedules = entries()
    call(HOME, sys.executable, "-c", CHAT)
    killed(HOME, steps_in(HOME) + 1, *CLI, "optimize", *SHAPE, "--device", "emulator", "--budget", "3", "--no-knowledge")
    call(HOME, *CLI, "trajectories", "export", "--out", str(HOME / "export.jsonl"))
    SCRIPTED.mkdir()
    killed(SCRIPTED, 6, sys.executable, "-m", "tests.agent.killed_run", str(SCRIPTED), "start", "written")
    for home in (HOME, SCRIPTED):
        shrink(home)
    keep_entries(of_schedules)
    with tarfile.open(out / "homes.tar.xz", "w:xz", preset=9) as tar:
        tar.add(HOME, arcname=".")
        tar.add(SCRIPTED, arcname="scripted")
    settings_sample(out / "settings.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
