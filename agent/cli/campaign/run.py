"""`cudal2-agent campaign run`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import Accumulate, ArchName, AsJson, Element, LayoutName, Mode, read_task
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from cudal2_agent.contract.records.module_campaign import CampaignTask

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent campaign run --shapes grid1000 --gpus all --hours 2\n"
    "  cudal2-agent campaign run --shapes 512x512x512,64x4096x64 --gpus 0,1 --budget 48 --name small\n"
    "  cudal2-agent campaign run --shapes grid1000 --device spool:/shared/spool\n"
    "  cudal2-agent campaign run --problems kernelbench --levels 1,2 --name modules"
)
NAME = "main"
EMULATOR = "emulator"

CampaignName = Annotated[str, typer.Option("--name", help="Name of the campaign.")]
CountedEnvironment = Annotated[
    str | None,
    typer.Option("--environment", help="Whose rows count, where they come from several.", show_default=False),
]


def run(
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            metavar="SHAPES…",
            help="grid1000, a file (a shape per line, or of `campaign record`), or shapes with commas; may be repeated. "
            "Without it, a campaign goes on.",
            show_default=False,
        ),
    ] = None,
    problems: Annotated[
        str | None,
        typer.Option(
            "--problems", metavar="SOURCE", help="Modules: a folder, kernelbench or kernelbench:1.", show_default=False
        ),
    ] = None,
    levels: Annotated[str | None, typer.Option("--levels", help="Of --problems: levels, like 1,2.", show_default="all")] = None,
    names: Annotated[
        str | None, typer.Option("--names", help="Of --problems: names, like 1/19 or *gelu*, with commas.", show_default="all")
    ] = None,
    arithmetic: Annotated[str, typer.Option("--arithmetic", help="Of modules: f32, tf32, f16 or bf16.")] = "f32",
    training: Annotated[bool, typer.Option("--training", help="Modules in training mode.")] = False,
    small: Annotated[
        bool, typer.Option("--small", help="Modules at the sizes at which soundness is tried, not the files'.")
    ] = False,
    layout: LayoutName = "nn",
    element: Element = "f16",
    accumulate: Accumulate = "f32",
    mode: Mode = "offline",
    arch: ArchName = None,
    gpus: Annotated[
        str, typer.Option("--gpus", help="all, numbers such as 0,1, or emulator or emulator:2 for no GPU.")
    ] = "all",
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", help="exec:COMMAND or spool:FOLDER, for GPUs elsewhere; may be repeated.", show_default="GPUs of --gpus"
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Run on a Ray cluster instead; local starts one.", show_default=False),
    ] = None,
    hours: Annotated[float | None, typer.Option("--hours", help="Time limit in hours.", min=0, show_default="none")] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", help="Candidates per shape.", show_default=str(RunSettings.model_fields["budget"].default)),
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Time limit per shape.", show_default="4")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the order and the searches.", show_default="0")] = None,
    provers: Annotated[
        int, typer.Option("--provers", help="Processes that prove winners on the emulator; 0 leaves it to `prove`.", min=0)
    ] = 1,
    name: CampaignName = NAME,
    as_json: AsJson = False,
) -> None:
    """Search a kernel for every shape or module of a campaign, or go on with it: what has a result is not searched again."""
    from cudal2_agent.agent.campaign.asked_modules import AskedHow, asked_modules
    from cudal2_agent.agent.campaign.shapes import read_shapes
    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.cli.campaign.running import run_campaign
    from cudal2_agent.agent.cli.module_flags import read_problem
    from cudal2_agent.agent.run.versions import own_commit
    from cudal2_agent.agent.wiring.sandbox import device_of
    from cudal2_agent.contract.records.module_task import Arithmetic
    from cudal2_agent.contract.records.task import TimingMode
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(budget=budget, minutes=minutes, seed=seed, use_knowledge=False, profile="off")
    wanted, notices = read_shapes(shapes or [])
    if shapes and not wanted:
        raise UsageError("--shapes names no shape this version can search: " + "; ".join(notices or ["it is empty"]))
    of_modules = {"--levels": levels, "--names": names, "--arithmetic": arithmetic != "f32", "--training": training}
    of_shapes = {"--layout": layout != "nn", "--element": element != "f16", "--accumulate": accumulate != "f32"}
    _refuse_foreign(bool(shapes), bool(problems), of_modules | {"--small": small}, of_shapes)
    devices = _devices(gpus, tuple(device or ()), ray)
    on = settings.model_copy(update={"device": device_of(devices[0]) if devices else "auto"})
    chosen = read_task("16x16x16", accumulate, element, layout, arch, mode, on).arch
    tasks: dict[CampaignTask, float] = {}
    if problems:
        how = AskedHow(
            choice("--arithmetic", Arithmetic, arithmetic), training, small, chosen, choice("--mode", TimingMode, mode)
        )
        asked = asked_modules(problems, read_levels(levels), _parts(names), settings.home, read_problem, how)
        tasks |= dict.fromkeys(asked, 1.0)
    for one in wanted:
        shape, own_layout = f"{one.m}x{one.n}x{one.k}", one.layout or layout
        kinds = accumulate, element, own_layout, chosen, mode, settings
        tasks[read_task(shape, *kinds, bias=one.bias, activation=one.activation, gated=one.gated)] = one.weight
    code = run_campaign(
        name=name,
        tasks=tasks,
        settings=settings,
        arch=chosen,
        devices=devices,
        ray=ray,
        hours=hours,
        provers=0 if gpus.startswith(EMULATOR) or problems else provers,  # a search proves its own modules
        commit=own_commit(),
        notices=notices,
        as_json=as_json,
    )
    raise typer.Exit(code)


def _devices(gpus: str, elsewhere: tuple[str, ...], ray: str | None) -> tuple[str, ...]:
    """The GPUs that search; none where those of a Ray cluster do. Raises: UsageError, DeviceUnavailable."""
    from cudal2_agent.agent.wiring.remote import is_remote

    if wrong := [one for one in elsewhere if not is_remote(one)]:
        raise UsageError(f"--device {wrong[0]}: write exec:COMMAND or spool:FOLDER; GPUs of this machine are named by --gpus")
    if elsewhere and (ray is not None or gpus != "all"):
        raise UsageError("--device names GPUs elsewhere; leave out --gpus and --ray")
    return elsewhere or (devices_named(gpus) if ray is None or gpus.startswith(EMULATOR) else ())


def _refuse_foreign(shapes: bool, problems: bool, of_modules: Mapping[str, object], of_shapes: Mapping[str, object]) -> None:
    """What is asked of tasks that the call does not name. `of_…`: flags, and whether they are given. Raises: UsageError."""
    if shapes and problems:
        raise UsageError("--shapes and --problems name two kinds of tasks; start two campaigns")
    if not problems and (alone := [flag for flag, given in of_modules.items() if given]):
        raise UsageError(f"{alone[0]} is about modules; name them with --problems")
    if problems and (foreign := [flag for flag, given in of_shapes.items() if given]):
        raise UsageError(f"modules have no {foreign[0]}; leave it out")


def _parts(text: str | None) -> list[str]:
    """What commas part."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def read_levels(text: str | None) -> set[int]:
    """`1,2` as numbers; none for all. Raises: UsageError."""
    parts = _parts(text)
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit())]:
        raise UsageError(f"--levels {wrong[0]!r} is no number; write for example --levels 1,2")
    return set(map(int, parts))


def devices_named(gpus: str) -> tuple[str, ...]:
    """The devices that `--gpus` names. Raises: UsageError."""
    if gpus == EMULATOR or gpus.startswith(f"{EMULATOR}:"):
        count = gpus.partition(":")[2] or "1"
        if not count.isdigit() or not 1 <= int(count) <= 64:
            raise UsageError(f"--gpus {gpus!r}: write emulator, or emulator:2 for two processes, at most 64")
        return tuple(f"{EMULATOR}/{number}" for number in range(int(count)))
    from cudal2_agent.agent.wiring.gpus import by_chip, visible_gpus

    known = {gpu.index: gpu for gpu in visible_gpus() if gpu.arch is not None}
    found = list(known)
    if gpus == "all":
        if not found:
            raise UsageError("there is no GPU for this product here; --gpus emulator proves kernels without times")
        wanted = found
    else:
        try:
            wanted = [int(part) for part in gpus.split(",")]
        except ValueError as exc:
            raise UsageError(f"--gpus {gpus!r}: write all, or numbers such as 0,1") from exc
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UsageError(f"--gpus {gpus}: there is no GPU {missing[0]} here; there are {found or 'none'}")
    chips = by_chip(known[index] for index in wanted)
    if len(chips) > 1:
        groups = "; ".join(f"{','.join(map(str, numbers))} for {chip}" for chip, numbers in chips.items())
        raise UsageError(f"--gpus {gpus}: these are different chips, whose times are never mixed; choose --gpus {groups}")
    return tuple(f"cuda:{index}" for index in dict.fromkeys(wanted))
