"""Seeded faults of all families in layout `nt`: boxes and copies of A, its transposed descriptor, its transposed fragments."""

from cudal2_agent.policies.schedule.families.latency.schedule import LatencySchedule
from cudal2_agent.policies.schedule.families.mma_sync.schedule import MmaSyncSchedule
from cudal2_agent.policies.schedule.families.resident.schedule import ResidentSchedule
from cudal2_agent.policies.schedule.families.wgmma_tma.schedule import WgmmaTmaSchedule
from tests.sandbox.emulator.corpus.fault import Fault, Patch, gemm

# One consumer warpgroup, 64 x 64 tiles, and a tail of K that no 16 divides.
PLAIN = WgmmaTmaSchedule(consumers=1, atoms=1, block_n=64, block_k=64, stages=2)
TASK = gemm(128, 128, 100, layout="nt")
# Two groups of A in a CTA, a CTA for each, and K in blocks of 128: groups are 16 KiB apart.
TALL = PLAIN.model_copy(update={"atoms": 2, "block_k": 128})
# Multicast slices A by groups, and where a CTA has only one by K.
BY_GROUPS = TALL.model_copy(update={"cluster_n": 2})
BY_K = PLAIN.model_copy(update={"cluster_n": 2})
SYNC = MmaSyncSchedule(block_m=64, block_n=32, block_k=32, warps_m=2, warps_n=1, stages=2, epilogue="direct")
RAGGED = gemm(90, 44, 75, layout="nt")
COPIED = LatencySchedule(block_m=128, block_n=32, block_k=32, groups=2, warps_m=4, warps_n=1, programmatic=False)
BOXED = COPIED.model_copy(update={"loads": "tma"})
AGAIN = COPIED.model_copy(update={"groups": 1, "passes": 2})
SHORT = gemm(136, 40, 60, layout="nt")
HELD = ResidentSchedule(consumers=2, block_n=64, slots=6, cluster=1, programmatic=False)
LARGE = gemm(136, 136, 72, layout="nt")

_DESCRIPTOR = "a = wgmma_descriptor<128>(smem + tile_rows() * BLOCK_K * 2, BLOCK_K * 128, 1024)"
_WGMMA = "wgmma_shared<Element, Register, BLOCK_N, kRowMajorB, 1>::run"
_STEP = "(atom * BLOCK_K + step * 16) * 128"
_PLACE = "stage + ((first + group) * BLOCK_K + k_row) * 128"
_BOX = "row + (first + group) * 64, k + k_row, mask"
_SYNC_TILE = "place.row + 16 * i + place.lane / 8 % 2 * 8"
_SYNC_COPY = "load_tile<BLOCK_K, BLOCK_M, kVectorA, kGuardA>(smem, a, k, m0, K, M)"

COLUMN_MAJOR_A_FAULTS = (
    Fault(
        name="a-not-transposed",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_WGMMA, _WGMMA.replace(", 1>", ", 0>")),),
        detectors=("wrong-result",),
        why="the instruction takes rows along M for rows along K",
    ),
    Fault(
        name="wrong-descriptor-stride-of-column-major-a",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_DESCRIPTOR, _DESCRIPTOR.replace("1024", "512")),),
        detectors=("wrong-result",),
        why="groups of 8 K indices are 1024 bytes apart; half of that multiplies other K indices",
    ),
    Fault(
        name="wrong-descriptor-swizzle-of-column-major-a",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_DESCRIPTOR, _DESCRIPTOR.replace("<128>", "<64>")),),
        detectors=("wrong-result",),
        why="rows of 64 elements along M are read as two column groups of 32",
    ),
    Fault(
        name="steps-along-m",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_STEP, "atom * BLOCK_K * 128 + step * 32"),),
        detectors=("wrong-result",),
        why="a step of 16 along K lies 16 rows further, and not 32 bytes as in a row-major A",
    ),
    Fault(
        name="groups-of-a-too-close",
        schedule=TALL,
        task=TASK,
        patches=(Patch(_STEP, "(atom * 64 + step * 16) * 128"),),
        detectors=("wrong-result",),
        why="the second group of 64 rows begins behind all of BLOCK_K, not behind 64 of it",
    ),
    Fault(
        name="box-of-a-at-the-wrong-place",
        schedule=PLAIN,
        task=TASK,
        patches=(Patch(_BOX, "k + k_row, row + (first + group) * 64, mask"),),
        detectors=("wrong-result",),
        why="the coordinates of a box are those of a row-major A: K first, then M",
    ),
    Fault(
        name="box-of-a-with-rows-of-m",
        schedule=TALL,
        task=TASK,
        patches=(Patch('"of": "A", "box": [64, 128]', '"of": "A", "box": [64, 64]'),),
        detectors=("transaction-mismatch", "deadlock"),
        why="a box has as many rows as K has in a block; with 64 of 128 half of the announced bytes are never sent",
    ),
    Fault(
        name="slices-of-a-overlap",
        schedule=BY_K,
        task=TASK,
        patches=(Patch(_PLACE, "stage + (first + group) * BLOCK_K * 128"),),
        detectors=("async-race", "uninitialised-read"),
        why="both CTAs send their half of K to the first half of the stage",
    ),
    Fault(
        name="groups-of-a-overlap",
        schedule=BY_GROUPS,
        task=TASK,
        patches=(Patch(_PLACE, "stage + (group * BLOCK_K + k_row) * 128"),),
        detectors=("async-race", "uninitialised-read"),
        why="both CTAs send their group of 64 rows to the first place of the stage",
    ),
    Fault(
        name="a-not-transposed",
        schedule=SYNC,
        task=RAGGED,
        patches=(Patch("ldmatrix_x4_trans(smem_a", "ldmatrix_x4(smem_a"),),
        detectors=("wrong-result",),
        why="the fragments of A hold M where K belongs within each 8x8 tile",
    ),
    Fault(
        name="tiles-of-a-exchanged",
        schedule=SYNC,
        task=RAGGED,
        patches=(
            Patch(_SYNC_TILE, _SYNC_TILE.replace("lane / 8 % 2", "lane / 16")),
            Patch("k + place.lane / 16 * 8 + place.lane % 8, row", "k + place.lane / 8 % 2 * 8 + place.lane % 8, row"),
        ),
        detectors=("wrong-result",),
        why="the second tile of a fragment lies 8 rows of A below the first; in that of a row-major B it lies 8 along K",
    ),
    Fault(
        name="a-copied-as-row-major",
        schedule=SYNC,
        task=RAGGED,
        patches=(Patch(_SYNC_COPY, _SYNC_COPY.replace("K, M)", "M, K)")),),
        detectors=("misaligned", "global-out-of-bounds"),
        why="rows are taken to have K elements, so that pairs of elements begin at odd places",
    ),
    Fault(
        name="tail-of-k-not-guarded",
        schedule=SYNC,
        task=RAGGED,
        patches=(Patch(_SYNC_COPY, _SYNC_COPY.replace("kGuardA", "false")),),
        detectors=("global-out-of-bounds",),
        why="rows of A behind the last K are copied from behind its end",
    ),
    Fault(
        name="a-not-transposed",
        schedule=COPIED,
        task=SHORT,
        patches=(Patch("ldmatrix_x4_trans(tile + at.a[i]", "ldmatrix_x4(tile + at.a[i]"),),
        detectors=("wrong-result",),
        why="the fragments of A hold M where K belongs within each 8x8 tile",
    ),
    Fault(
        name="panels-of-a-too-far-apart",
        schedule=BOXED,
        task=SHORT,
        patches=(Patch("row / kPanelA * (BLOCK_K * kPanelA * 2)", "row / kPanelA * (BLOCK_M * kPanelA * 2)"),),
        detectors=("shared-out-of-bounds", "uninitialised-read"),
        why="a panel along M has as many rows as K has in a group",
    ),
    Fault(
        name="later-passes-advance-along-m",
        schedule=AGAIN,
        task=SHORT,
        patches=(Patch("later_a.advance(kPassK, 0);", "later_a.advance(0, kPassK);"),),
        detectors=("wrong-result",),
        why="the second pass multiplies the rows of A that lie kPassK further on, with the first part of K",
    ),
    Fault(
        name="a-not-transposed",
        schedule=HELD,
        task=LARGE,
        patches=(Patch("ldmatrix_x4_trans(row", "ldmatrix_x4(row"),),
        detectors=("wrong-result",),
        why="the fragments of A hold M where K belongs within each 8x8 tile",
    ),
    Fault(
        name="pieces-of-a-along-k",
        schedule=HELD,
        task=LARGE,
        patches=(Patch("full, row + (first + piece) * 64, block * 64);", "full, block * 64, row + (first + piece) * 64);"),),
        detectors=("wrong-result",),
        why="the coordinates of a piece are those of a row-major A: K first, then M",
    ),
)
