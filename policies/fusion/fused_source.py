"""A candidate from a task's groups and the axes of their kernels."""

from collections.abc import Mapping

from cudal2_agent.contract.plan.library_call import LibraryCall
from cudal2_agent.contract.plan.plan import Launch, LaunchPlan, Scratch, render_plan
from cudal2_agent.contract.records.candidate import Candidate, Origin, ScheduleValue
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.fusion.axes import Axes, LibraryChoice
from cudal2_agent.policies.fusion.grouping import Groups, ProductStep, ScanStep, Step, names_of
from cudal2_agent.policies.fusion.kernel_text import KernelText, kernel_text
from cudal2_agent.policies.fusion.preamble import CLUSTERS, HEADERS, KEEPING, PREAMBLE
from cudal2_agent.policies.fusion.product_kernels.contraction import contraction
from cudal2_agent.policies.fusion.product_kernels.tile_kernel import follows, main_loop, tile_kernel
from cudal2_agent.policies.fusion.product_kernels.tiles import SumTile
from cudal2_agent.policies.fusion.product_kernels.warpgroup_kernel import warpgroup_kernel
from cudal2_agent.policies.fusion.product_kernels.winograd_kernel import winograd_kernel
from cudal2_agent.policies.fusion.programs import KernelProgram, StoredValue
from cudal2_agent.policies.fusion.scan_text import scan_text
from cudal2_agent.policies.fusion.values import Unplanned

FAMILY, ALGEBRA = "fusion", "fusion-algebra"  # the second also rewrites sums over products
Choice = Axes | SumTile | LibraryChoice  # of a kernel


def written(task: ModuleTask, groups: Groups, choices: Mapping[str, Choice]) -> Candidate:
    """The source with its plan; equal groups and choices give equal text. Raises: Unplanned."""
    launches: list[Launch | LibraryCall] = []
    kernels: list[str] = []
    states: list[Scratch] = []
    fused = fused_products(groups, choices)
    for step in groups.steps:
        if step.name in fused.values():
            continue  # a later kernel computes it
        if isinstance(step, ProductStep) and isinstance(library := choices[step.name], LibraryChoice):
            launches.append(step.call.model_copy(update={"search": library.search}))
            continue
        product = next((each for each in groups.products if each.name == fused.get(step.name)), None)
        text = _text(step, choices[step.name], groups) if product is None else _tiled(product, step, choices, groups)
        launches += [*text.before, text.launch]
        states += text.scratch
        kernels.append(text.source)
    unused = {groups.buffers[id(each.product)] for each in groups.products if each.name in fused.values()}
    scratch = (*(each for each in groups.scratch if each.name not in unused), *states)
    plan = LaunchPlan(arch=task.arch, launches=tuple(launches), scratch=scratch)
    headers = "".join(f"#include <{HEADERS[each]}>\n" for each in HEADERS if each in groups.elements.values())
    tiled = [(each.product, tile) for each in groups.products if isinstance(tile := choices[each.name], SumTile)]
    loops = "".join(dict.fromkeys(part for product, tile in tiled for part in main_loop(product, tile)))
    source = (
        render_plan(plan)
        + headers
        + PREAMBLE
        + (CLUSTERS if any("cluster_sync" in kernel for kernel in kernels) else "")
        + (KEEPING if any("wait_for_kept" in kernel for kernel in kernels) else "")
        + loops
        + "\n"
        + "\n".join(kernels)
    )
    family = ALGEBRA if groups.algebra else FAMILY
    schedule: dict[str, ScheduleValue] = {"family": family, **{name: each.text() for name, each in choices.items()}}
    return Candidate(source=source, plan=plan, origin=Origin(policy=family, schedule=schedule))


def parsed(text: str) -> Choice:
    """Raises: ValueError."""
    match text.split(" ")[0]:
        case "library":
            return LibraryChoice.parse(text)
        case "tile" | "dmma" | "mma" | "wgmma" | "winograd2d" | "winograd3d":
            return SumTile.parse(text)
    return Axes.parse(text)


def _text(step: Step, choice: Choice, groups: Groups) -> KernelText:
    match step, choice:
        case ProductStep(), SumTile():
            return _tiled(step, step, {step.name: choice}, groups)
        case KernelProgram(), Axes():
            return kernel_text(step, choice, groups.buffers, groups.elements)
        case ScanStep(), Axes():
            return scan_text(step, choice, groups.buffers, groups.elements)
    raise Unplanned(step.name, f"a kernel by {choice}")


def _tiled(product: ProductStep, step: Step, choices: Mapping[str, Choice], groups: Groups) -> KernelText:
    """The product, or the element-wise kernel behind it, from the sums of the product's tiles."""
    value, tile = product.product, choices[product.name]
    assert isinstance(tile, SumTile)
    store = StoredValue(value, groups.buffers[id(value)], by_row=True)
    if isinstance(step, KernelProgram):
        (store,) = step.stores
    if tile.points > 1:
        return winograd_kernel(step.name, value, tile, store, groups.buffers, groups.elements)
    write = warpgroup_kernel if tile.kind == "wgmma" else tile_kernel
    return write(step.name, value, contraction(value, by_tap=tile.packed), tile, store, groups.buffers, groups.elements)


def fused_products(groups: Groups, choices: Mapping[str, Choice]) -> dict[str, str]:
    """By kernel, the product that it computes as well: the only reader of a product of our own, element by element."""
    found: dict[str, str] = {}
    for step in groups.products:
        buffer = groups.buffers[id(step.product)]
        readers = [each for each in groups.steps if each is not step and buffer in names_of(each)]
        if isinstance(choices[step.name], SumTile) and len(readers) == 1 and _scratch(groups, buffer):
            (reader,) = readers
            if not isinstance(reader, KernelProgram) or reader.name in found:
                continue
            if follows(step.product, reader, groups.buffers):
                found[reader.name] = step.name
    return found


def _scratch(groups: Groups, buffer: str) -> bool:
    return any(each.name == buffer for each in groups.scratch)
