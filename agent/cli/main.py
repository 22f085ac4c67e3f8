"""The command `cudal2-agent`: its verbs, and the place where errors become one line and an exit code."""

import errno
import getpass
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from cudal2_agent.agent.cli import (
    agents,
    bench,
    campaign,
    doctor,
    index,
    library,
    model_bench,
    optimize,
    prior,
    profile,
    runs,
    tasks,
    torch_models,
    train,
    trajectories,
    verify,
    worker,
)
from cudal2_agent.agent.cli import calibrate as calibrate_verb
from cudal2_agent.agent.cli.render.plain_text import plain, plain_streams
from cudal2_agent.contract.errors import Cudal2Error, UsageError

INTERRUPTED = 130
MESSAGE_CHARS = 2000  # of an error; a name of a stranger may have more
CLOSED_PIPE = 141  # as of a program that SIGPIPE ends
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)  # the user's to change, whatever was tried
_NO_THREAD = "the system refuses another process or thread; raise the limit: pids.max of a container, or ulimit -u"
# The exception of typer for a wrong command line. Its name differs between versions of typer.
_CommandLineError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="cudal2-agent",
    help="Writes, verifies and times half-precision GEMM kernels for the GPU in front of it.",
    epilog="\b\nExample:\n  cudal2-agent optimize --shape 4096x1024x512",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("optimize", epilog=optimize.EXAMPLE)(optimize.optimize)
app.command("verify", epilog=verify.EXAMPLE)(verify.verify)
app.command("bench", epilog=bench.EXAMPLE)(bench.bench)
app.command("model-bench", epilog=model_bench.EXAMPLE)(model_bench.model_bench)
app.command("mcp", epilog=agents.EXAMPLE)(agents.serve)
app.command("tune", epilog=torch_models.TUNE_EXAMPLE)(torch_models.tune)
app.command("advise", epilog=torch_models.ADVISE_EXAMPLE)(torch_models.advise)
app.command("calibrate", epilog=calibrate_verb.EXAMPLE)(calibrate_verb.calibrate)
app.command("profile", epilog=profile.EXAMPLE)(profile.profile)
app.command("worker", epilog=worker.EXAMPLE)(worker.worker)
app.add_typer(runs.app, name="runs")
app.add_typer(index.app, name="index")
app.add_typer(trajectories.app, name="trajectories")
app.add_typer(campaign.app, name="campaign")
app.add_typer(tasks.app, name="tasks")
app.add_typer(library.app, name="library")
app.add_typer(train.app, name="train")
app.add_typer(prior.app, name="prior")
app.add_typer(prior.app, name="policy", hidden=True, callback=prior.tell_renamed)
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. stdout carries the answer, stderr everything else."""
    with plain_streams(sys.stdout, sys.stderr):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name="cudal2-agent", standalone_mode=False)
        sys.stdout.flush()
    except Cudal2Error as exc:
        return _fail(str(exc), exc.exit_code, exc.log)
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except _CommandLineError as exc:
        return _fail(exc.format_message(), exc.exit_code)
    except BrokenPipeError:
        return _end_quietly()
    except OSError as exc:
        if _refused_thread(exc):
            return _fail(_NO_THREAD, 1)
        if isinstance(exc, FileNotFoundError) and _fails(tempfile.gettempdir):
            return _fail("no folder for temporary files can be written; set TMPDIR or CUDAL2_HOME to one that can", 2)
        if exc.errno not in _REFUSED or not exc.filename:
            raise
        remedy = "check its permissions and space, or choose another home with CUDAL2_HOME"
        return _fail(f"{exc.filename} cannot be used: {exc.strerror}; {remedy}", UsageError.exit_code)
    except SystemExit as exc:  # typer's answer to a closed pipe
        if isinstance(exc.__context__, BrokenPipeError):
            return _end_quietly()
        raise
    except BaseException as exc:
        if not _refused_thread(exc):
            raise
        return _fail(_NO_THREAD, 1)
    return code if isinstance(code, int) else 0


def _refused_thread(exc: BaseException) -> bool:
    """Whether the system refused to start one: to fork, to Python, or to a library in Rust."""
    said = "new thread" if isinstance(exc, RuntimeError) else "WouldBlock" if type(exc).__name__ == "PanicException" else ""
    return isinstance(exc, BlockingIOError) or (said != "" and said in str(exc))


def _fails(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (OSError, RuntimeError, KeyError):
        return True
    return False


def _lend_what_a_container_lacks() -> None:
    """The user of a container may have no home and no name, and its root may be read-only. Libraries ask for all of these.

    The home folder of the settings then stands in for the user's, and holds temporary files. Where it cannot be written, the
    command that needs one says so.
    """
    homeless, folderless = _fails(Path.home), _fails(tempfile.gettempdir)
    if _fails(getpass.getuser):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"
    if not (homeless or folderless):
        return
    from cudal2_agent.contract.settings.settings import load_settings

    with suppress(Cudal2Error, OSError):
        home = load_settings().home.absolute()
        if homeless:
            os.environ["HOME"] = str(home)
        if folderless:
            (home / "tmp").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=home / "tmp"):
                os.environ["TMPDIR"] = tempfile.tempdir = str(home / "tmp")


def _end_quietly() -> int:
    """The reader of stdout is gone. What is still buffered goes nowhere, so that the interpreter reports no error at exit."""
    with suppress(OSError, ValueError):  # a stdout without a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return CLOSED_PIPE


def _fail(message: str, code: int, log: str = "") -> int:
    """One line on stderr. A long log goes to a file, which the line names."""
    where = ""
    if log:
        with tempfile.NamedTemporaryFile("w", prefix="cudal2-", suffix=".log", delete=False, encoding="utf-8") as file:
            file.write(plain(log))
        where = f" (log: {file.name})"
    told = " ".join(message.split())
    print(f"error: {told if len(told) <= MESSAGE_CHARS else f'{told[:MESSAGE_CHARS]}…'}{where}", file=sys.stderr)
    return code


def run() -> int:
    """The entry point of the package. SIGTERM ends a run as Ctrl-C does: with a report, and resumable.

    Linear algebra has one thread here and in the processes of a campaign: after every small product each thread of OpenBLAS
    spins for 60 ms, on every core. numpy reads the setting when it is loaded, which no verb does before this.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _lend_what_a_container_lacks()
    return main()


if __name__ == "__main__":
    sys.exit(run())
