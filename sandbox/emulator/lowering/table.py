"""The table of operations, as the core lays it out (`core/op.hpp` has the same fields in the same order)."""

from enum import IntEnum, IntFlag

import numpy as np

OPERATION = np.dtype(
    [
        ("handler", "u2"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("guard", "u4"),
        ("d", "u4"),
        ("a", "u4"),
        ("b", "u4"),
        ("c", "u4"),
        ("e", "u4"),
        ("meeting", "u4"),
        ("list", "u4"),
        ("count", "u4"),
        ("p", "u4"),
        ("q", "u4"),
        ("r", "u4"),
        ("s", "u4"),
        ("instruction", "u4"),
        ("imm", "i8"),
    ],
    align=True,
)


class Kind(IntEnum):
    """How the interpreter goes on after an operation."""

    PLAIN = 0
    BRANCH = 1
    BRANCH_INDEXED = 2
    EXIT = 3
    WAITING = 4
    POLL = 5


class Flag(IntFlag):
    """`COLLECTIVE`: lanes execute it together. `TRACKED`: it touches registers that a wgmma uses."""

    NEGATED = 1
    COLLECTIVE = 2
    TRACKED = 4


class Space(IntEnum):
    """State spaces as the core numbers them."""

    GENERIC = 0
    GLOBAL = 1
    SHARED = 2
    PARAM = 3
    LOCAL = 4
    CONST = 5


class Scope(IntEnum):
    """How far a memory order reaches, as the core numbers it."""

    CTA = 0
    CLUSTER = 1
    DEVICE = 2


SCOPES = {"cta": Scope.CTA, "cluster": Scope.CLUSTER, "gpu": Scope.DEVICE, "sys": Scope.DEVICE}

NO_FLAGS = Flag(0)

# Special registers in the core's order.
# fmt: off
SPECIALS = (
    "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y",
    "nctaid.z", "laneid", "warpid", "nwarpid", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z",
    "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank", "cluster_nctarank", "clusterid.x",
    "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z", "dynamic_smem_size",
    "total_smem_size", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "smid", "nsmid",
    "is_explicit_cluster",
)
# fmt: on
