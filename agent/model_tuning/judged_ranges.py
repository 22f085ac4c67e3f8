"""Races the kernels that take M as it comes against PyTorch's own product, on the GPU at hand."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from cudal2.dispatch.decision import GpuIdentity
from cudal2.library.kernel_library import EntryRange
from cudal2.library.prepared_kernels import PreparedKernels, RangedKernel
from cudal2.torch.gpu_platform import CudaPlatform
from cudal2_agent.agent.library.algorithms.suggested_algorithms import environment_of
from cudal2_agent.agent.model_tuning.judged_products import beside_torch
from cudal2_agent.agent.model_tuning.range_search import faster_down_to
from cudal2_agent.agent.model_tuning.tune_records import JudgedRange
from cudal2_agent.contract.errors import Cudal2Error, LibraryError
from cudal2_agent.contract.records.library import LibraryEntry, RangePoint


class _Ranged(NamedTuple):
    entry: LibraryEntry
    kernel: RangedKernel
    platform: CudaPlatform
    sms: int

    def point(self, m: int) -> RangePoint:
        """Raises: Cudal2Error where the driver refuses the kernel; LibraryError where it is wrong."""
        task = self.entry.task.model_copy(update={"m": m})
        found = beside_torch(self.platform.load(0, self.kernel.at(task, self.sms), task), task, self.platform)
        if isinstance(found, str):
            raise LibraryError(f"{task.shape}: {found}")
        return RangePoint(m=m, time_us=found.time_us, torch_us=found.torch_us, speedup=found.speedup)


def judge_ranges(
    asked: Sequence[EntryRange], prepared: PreparedKernels, platform: CudaPlatform, identity: GpuIdentity
) -> Iterator[JudgedRange]:
    """A row for each, in order; one whose kernel fails at any M is a row with its fault."""
    for entry, m_range in asked:
        row = JudgedRange(
            entry=entry.id,
            floor=m_range.smallest,
            chip=identity.gpu,
            environment=environment_of(identity),
            m_range=None,
            measured_at=datetime.now(UTC),
        )
        try:
            kernel = prepared.find_range(entry, m_range, identity.sms)
            if kernel is None:
                raise LibraryError("its kernel is not built")
            points = faster_down_to(entry.task.m - 1, m_range.smallest, _Ranged(entry, kernel, platform, identity.sms).point)
        except Cudal2Error as exc:
            yield row.model_copy(update={"fault": " ".join(str(exc).split())})
            continue
        if not points:
            yield row
            continue
        measured = {"points": points, "smallest": points[-1].m, "environment": row.environment}
        yield row.model_copy(update={"m_range": m_range.model_copy(update=measured)})
