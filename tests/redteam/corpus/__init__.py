"""All candidates of the red team: the rows of every table, and the files."""

from tests.redteam.case import Case
from tests.redteam.corpus import (
    attacks_caching,
    attacks_counting,
    attacks_elsewhere,
    attacks_emulator,
    attacks_ending,
    attacks_files,
    attacks_keeping,
    attacks_knowing,
    attacks_state,
    attacks_telling,
    attacks_values,
    honest_plain,
    honest_tiled,
    lanes_apart,
    maps_and_prefetches,
    told_apart,
)
from tests.redteam.corpus.twins import addresses, launches, maps, pipelines, values, waits
from tests.redteam.files import files

_TABLES = (
    attacks_keeping,
    attacks_counting,
    attacks_knowing,
    attacks_state,
    attacks_files,
    attacks_elsewhere,
    attacks_values,
    honest_plain,
    honest_tiled,
    attacks_emulator,
    attacks_caching,
    attacks_ending,
    addresses,
    launches,
    maps,
    pipelines,
    values,
    waits,
    lanes_apart,
    told_apart,
    maps_and_prefetches,
    attacks_telling,
)


def corpus() -> list[Case]:
    """Every case once. Raises: ValueError for two of one name."""
    found = [*(case for table in _TABLES for case in table.cases()), *files()]
    names = [case.id for case in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the red team has two cases of each of these names: {', '.join(twice)}")
    return found


# Cases whose mechanism another case tests too. They run in the benchmark and under `-m slow`, not in CI.
VARIANTS = frozenset(
    {
        "windows/one-tile-of-a-thousand",
        "keeps-the-result/row-sums-4096",
        "keeps-the-result/row-sums-server",
        "keeps-the-result/workspace-behind-restored-bytes",
        "keeps-the-result/just-past-d",
        "keeps-the-result/1gb-before-d",
        "counts-launches/window-in-workspace-4096",
        "counts-launches/window-behind-restored-bytes",
        "knows-the-data/fp8-like-mantissa",
        "module-state/static-member-of-a-template",
        "module-state/managed",
        "module-state/initialiser-holds-an-address",
        "module-state/performance-counter",
        "module-state/environment-register",
        "reads-files/standard-header-int",
        "reads-files/standard-header-uint128",
        "writes-elsewhere/16mb-before-b",
        "writes-elsewhere/1gb-past-d",
        "writes-elsewhere/ring-of-sets",
        "special-values/infinity-loses-its-sign",
        "special-values/rounds-by-way-of-bf16",
        "emulator-only/right-where-it-is-sampled",
        "emulator-only/several-launches-at-large-sizes",
        "ends-the-run/macro-bomb",
        "ends-the-run/sleeps-for-hours",
        "ends-the-run/megabytes-of-ptx",
        "ends-the-run/workspace-of-8-gib",
        "counts-launches/spot-check-after-40",
        "keeps-the-result/d-with-seal-in-workspace",
        "knows-the-data/eight-bit-mantissa",
        "knows-the-data/less-of-k-for-fractions",
        "module-state/variable-template",
        "module-state/opcode-behind-a-comment",
        "module-state/grid-number",
        "module-state/clock-by-pasting",
        "module-state/allocates",
        "writes-elsewhere/64kb-past-a",
        "writes-elsewhere/the-next-set",
        "writes-elsewhere/2mb-before-a",
        "special-values/overflow-becomes-nan",
        "special-values/nan-of-b-skips",
        "special-values/infinity-of-b-clamped",
        "ends-the-run/deep-braces-in-asm",
        "ends-the-run/long-line",
        "ends-the-run/local-memory-of-half-a-megabyte",
        "honest/cooperative-cluster",
        "honest/tma-persistent",
        "honest/written-wmma_global",
        "honest/shared-between-lanes",
        "honest/prefetches-its-own",
        "honest/plain-one-output",
        "honest/plain-bf16-tn",
        "honest/few-registers",
        "honest/newest-language",
        "honest/turns-with-back-off",
        "honest/reduced-after-a-vote",
        "honest/cooperative-block",
        "honest/more-ctas-than-tiles",
        "honest/rasters-backwards",
        "honest/split-k-in-the-workspace",
        "honest/written-plain_tiled",
        "honest/written-wmma_shared",
        "honest/tma-multicast",
    }
)
