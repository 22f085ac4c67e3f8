"""`cudal2-agent worker`: lends the GPU of this machine to agents on others."""

from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device, TrustHost
from cudal2_agent.contract.errors import UsageError

EXAMPLE = (
    "Without --spool it answers on stdout, and an agent's device names the command that starts it, such as "
    '--device "exec:ssh gpu1 cudal2-agent worker". Of a folder, the device is --device spool:FOLDER.\n\n'
    "\b\nExample:\n"
    "  cudal2-agent worker --device cuda:1\n"
    "  cudal2-agent worker --spool /shared/spool --watch"
)


def worker(
    spool: Annotated[
        Path | None, typer.Option("--spool", metavar="FOLDER", help="Serve calls of a folder.", show_default="stdin and stdout")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Of --spool: end when nothing waits any more.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Of --spool: go on until it is interrupted.")] = False,
    idle: Annotated[float, typer.Option("--idle", help="Of --once: seconds in which nothing waits.", min=0)] = 10.0,
    device: Device = None,
    trust_host: TrustHost = None,
    as_json: AsJson = False,
) -> None:
    """Build, verify, time and profile here what agents elsewhere send."""
    from cudal2_agent.agent.wiring.serving import hello_of, serve_folder, service_of
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.sandbox.remote.stream_worker import serve_stream

    if (spool is not None) != (once != watch):
        raise UsageError("--spool FOLDER needs one of --once and --watch, and these need --spool")
    settings = load_settings(device=device, trust_host=trust_host)
    service = service_of(settings)
    if spool is None:
        raise typer.Exit(serve_stream(hello_of(settings, service), service))
    served = serve_folder(spool, settings, service, once=once, idle_s=idle, tell=lambda line: typer.echo(line, err=True))
    print(served.model_dump_json() if as_json else f"{served.calls} calls served in {served.seconds:.0f} s")
