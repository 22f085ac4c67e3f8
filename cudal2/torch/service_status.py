"""What the library has done for this process, in plain words and as a record."""

from collections.abc import Sequence

import torch

from cudal2.dispatch.decision import FallbackCause
from cudal2.torch.device_dispatch import DeviceDispatch
from cudal2.torch.invariant_products import InvariantProducts
from cudal2.torch.kernel_registrations import told_of_shadows
from cudal2.torch.product_service import ProductService
from cudal2_agent.contract.base import Record


class DeviceStatus(Record):
    """`library`: where the entries come from; None where nothing is served, for `cause`. `fit`: entries that may be chosen.

    `algorithms`: of cuBLASLt, which `cublas` may run; the version is empty where this process can run none.
    `other_nvrtc`: entries that were measured here with another NVRTC than `nvrtc`, which compiles another kernel of them.
    """

    device: int
    gpu: str = ""
    driver: str = ""
    library: str | None = None
    entries: int = 0
    fit: int = 0
    cublas: str = ""
    algorithms: int = 0
    nvrtc: str = ""
    other_nvrtc: int = 0
    cause: FallbackCause | None = None


class InvariantStatus(Record):
    """The batch-invariant mode. `kernels`: what each device has, in words. `served`: calls by how they sum.

    `copied`: operands that were copied first. `others`: calls that PyTorch computed, by what they asked for. `shadowed`:
    operators of which another kernel runs.
    """

    kernels: tuple[str, ...]
    allow_other: bool
    served: dict[str, int]
    copied: int
    others: dict[str, int]
    shadowed: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        other = "PyTorch's own" if self.allow_other else "an error"
        return [
            f"batch-invariant: no sum of an f16 or bf16 matrix product depends on M; any other product is {other}",
            *self.kernels,
            *(f"{count} matrix products were summed by {summation}" for summation, count in self.served.items()),
            *([f"{self.copied} operands were copied first"] if self.copied else []),
            *(f"{count} calls were PyTorch's own: {what}" for what, count in self.others.items()),
            *(f"note: aten::{name} was replaced again, so its products are not batch-invariant" for name in self.shadowed),
        ]


class Status(Record):
    """`enabled`: operators of PyTorch that are replaced. `served`: calls by entry. `fallbacks`: calls by cause.

    `algorithms`: calls by the stored algorithm of cuBLASLt that ran them. `batch_invariant`: that mode, while it is on; the
    library is then not asked.

    `languages`: in which the kernels are written that replace them, such as C++.
    `missing`: why this process has no GPU at all; empty where it has one. `failed`: why builds failed, by what was built.
    """

    torch: str
    missing: str
    enabled: tuple[str, ...]
    languages: tuple[str, ...]
    devices: tuple[DeviceStatus, ...]
    served: dict[str, int]
    algorithms: dict[str, int]
    fallbacks: dict[FallbackCause, int]
    building: tuple[str, ...]
    failed: dict[str, str]
    notes: tuple[str, ...]
    batch_invariant: InvariantStatus | None = None

    def __str__(self) -> str:
        if self.batch_invariant is not None:
            return "\n".join((self._enabled(), *self.batch_invariant.lines, *self._notes()))
        return "\n".join((self._enabled(), *map(_device, self.devices), *self._calls(), *self._builds(), *self._notes()))

    def _enabled(self) -> str:
        if self.missing:
            return f"not enabled: {self.missing}; every matrix product is PyTorch's own"
        if not self.enabled:
            return "not enabled: only cudal2.matmul asks the library; call cudal2.enable()"
        can_be_faster = "Python" in self.languages and self.batch_invariant is None
        slow = "; `cudal2-agent library prepare` compiles a faster way" if can_be_faster else ""
        passed = f"calls pass through {' and '.join(self.languages)}{slow}"
        return f"enabled for {' and '.join(self.enabled)} of PyTorch {self.torch}; {passed}"

    def _calls(self) -> list[str]:
        served, stored = sum(self.served.values()), sum(self.algorithms.values())
        asked = served + stored + sum(self.fallbacks.values())
        if not asked:
            return ["no matrix product was asked for yet"]
        lines = [f"{served} of {asked} matrix products were served by {len(self.served)} kernels"]
        if stored:
            lines.append(f"{stored} ran by {len(self.algorithms)} stored algorithms of cuBLASLt")
        causes = sorted(self.fallbacks.items(), key=lambda item: -item[1])
        return lines + [f"{count} fell back: {cause.sentence}" for cause, count in causes]

    def _builds(self) -> list[str]:
        waiting = [f"{len(self.building)} kernels are being built"] if self.building else []
        return waiting + [f"{name} was not built: {why}" for name, why in self.failed.items()]

    def _notes(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]


def read_status(
    service: ProductService, enabled: tuple[str, ...], languages: tuple[str, ...], invariant: InvariantStatus | None = None
) -> Status:
    return Status(
        torch=str(torch.__version__),
        missing=service.platform.missing(),
        enabled=enabled,
        languages=languages,
        devices=tuple(_read_device(service, device) for device in service.platform.devices()),
        served=service.counts.served(),
        algorithms=service.counts.by_algorithm(),
        fallbacks=service.counts.fallbacks(),
        building=service.builds.waiting(),
        failed=service.builds.failed(),
        notes=(*(() if invariant else told_of_shadows(enabled, service.platform.dispatch_key)), *service.notices.texts()),
        batch_invariant=invariant,
    )


def read_invariant(products: InvariantProducts, shadowed: Sequence[str]) -> InvariantStatus:
    counts = products.counts
    return InvariantStatus(
        kernels=tuple(
            f"device {device}, {one.identity.gpu}: {len(one.built.kernels.kernels)} kernels for {one.arch}"
            for device, one in products.devices.items()
        ),
        allow_other=products.allow_other,
        served={summation: tally.total for summation, tally in counts.served.items() if tally.total},
        copied=counts.copied.total,
        others={what: tally.total for what, tally in counts.others.items()},
        shadowed=tuple(shadowed),
    )


def _read_device(service: ProductService, device: int) -> DeviceStatus:
    found = service.devices.find(device)
    if not isinstance(found, DeviceDispatch):
        return DeviceStatus(device=device, cause=found)
    identity, library = found.identity, found.library
    won = [one.evaluation.environment for one in library if identity.measured(one.evaluation.environment) is None and one.wins]
    fit = sum(identity.compiled(environment) is None for environment in won)
    stored = (one for one in library.algorithms() if one.cublas == identity.cublas)
    return DeviceStatus(
        device=device,
        gpu=identity.gpu,
        driver=identity.driver,
        library=str(library.path),
        entries=len(library),
        fit=fit,
        cublas=identity.cublas,
        algorithms=sum(identity.measured(one.environment) is None for one in stored),
        nvrtc=identity.nvrtc,
        other_nvrtc=len(won) - fit,
    )


def _device(status: DeviceStatus) -> str:
    if status.cause is not None:
        return f"device {status.device}: nothing is served: {status.cause.sentence}"
    kind = f"{status.gpu} with driver {status.driver}"
    chosen = f"device {status.device}, {kind}: {status.fit} of {status.entries} entries of {status.library} may be chosen"
    if status.algorithms:
        chosen = f"{chosen}, {status.algorithms} algorithms of cuBLAS {status.cublas}"
    if status.other_nvrtc:
        chosen = f"{chosen}; {status.other_nvrtc} were measured with another NVRTC than {status.nvrtc} and are not used here"
    return chosen
