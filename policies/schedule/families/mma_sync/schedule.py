"""The axes of the `mma_sync` family."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cudal2_agent.policies.schedule.families.kernel_family import Schedule

Reduction = Literal["none", "workspace", "cluster"]
Epilogue = Literal["direct", "staged"]
Count = Annotated[int, Field(ge=1, le=2**20)]


class MmaSyncSchedule(Schedule):
    """A CTA computes a block_m × block_n tile with warps_m × warps_n × warps_k warps, in steps of block_k along K.

    `warps_k`: warps that share an output tile and divide every K block. `stages`: shared-memory buffers; with one, the K
    range of a CTA is a single block. `split_k`: CTAs that share an output tile; `reduction`: where their partial sums are
    added. `group_m`: rows of tiles visited together, so that resident CTAs share operands in L2. `epilogue`: whether D is
    staged in shared memory for wide stores. `constant_shape`: M, N, K are compile-time constants. `min_ctas`: minimum CTAs
    per SM, which limits registers.

    `spread_sum`: every CTA that splits a tile adds a share of it; else the one that arrives last adds it alone. Both add in
    the order of the splits. The CTAs wait for each other, so all of the grid run together.
    """

    family: Literal["mma_sync"] = "mma_sync"
    block_m: Count
    block_n: Count
    block_k: Count
    warps_m: Count
    warps_n: Count
    warps_k: Count = 1
    stages: Count
    split_k: Count = 1
    reduction: Reduction = "none"
    group_m: Count = 1
    epilogue: Epilogue = "staged"
    min_ctas: Count = 1
    constant_shape: bool = False
    programmatic: bool = False
    spread_sum: bool = False

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if reason := self.contradiction():
            raise ValueError(reason)
        return self

    def contradiction(self) -> str | None:
        """Why the axes contradict each other for every task, or None."""
        if self.block_m % (16 * self.warps_m) or self.block_n % (16 * self.warps_n):
            return "a warp's tile must be a multiple of 16 x 16"
        if self.block_k % (16 * self.warps_k):
            return "block_k must give every warp along K a multiple of 16"
        if self.block_k & (self.block_k - 1):
            return "block_k must be a power of two"
        if (self.split_k == 1) != (self.reduction == "none"):
            return "a split needs a reduction, and only a split does"
        if self.reduction == "cluster" and self.epilogue != "direct":
            return "the cluster reduction stores D itself; its epilogue is direct"
        if self.spread_sum and (self.reduction != "workspace" or self.epilogue != "direct"):
            return "spread_sum needs a reduction in the workspace, and a direct epilogue"
        return None
