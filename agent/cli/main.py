"""The command `cudal2-agent`: its verbs, and the place where errors become one line and an exit code."""

import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import typer

from agent.cli import bench, doctor, index, optimize, profile, runs, trajectories, verify
from contract.errors import Cudal2Error

INTERRUPTED = 130
# The exception of typer for a wrong command line. Its name differs between versions of typer.
_CommandLineError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="cudal2-agent",
    help="Writes, proves and times half-precision GEMM kernels for the GPU in front of it.",
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
app.command("profile", epilog=profile.EXAMPLE)(profile.profile)
app.add_typer(runs.app, name="runs")
app.add_typer(index.app, name="index")
app.add_typer(trajectories.app, name="trajectories")
app.command("doctor", epilog=doctor.EXAMPLE)(doctor.doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code. stdout carries the answer, stderr everything else."""
    try:
        code = app(args=arguments, prog_name="cudal2-agent", standalone_mode=False)
    except Cudal2Error as exc:
        return _fail(str(exc), exc.exit_code, exc.log)
    except typer.Abort:
        return _fail("interrupted", INTERRUPTED)
    except _CommandLineError as exc:
        return _fail(exc.format_message(), exc.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone; this keeps the interpreter from reporting it at exit
        return 1
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int, log: str = "") -> int:
    """One line on stderr. A long log goes to a file, which the line names."""
    where = ""
    if log:
        with tempfile.NamedTemporaryFile("w", prefix="cudal2-", suffix=".log", delete=False, encoding="utf-8") as file:
            file.write(log)
        where = f" (log: {file.name})"
    print(f"error: {' '.join(message.split())}{where}", file=sys.stderr)
    return code


def run() -> int:
    """The entry point of the package. SIGTERM ends a run as Ctrl-C does: with a report, and resumable."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
