"""Special registers that a kernel may read, by their PTX and SASS names. All others are refused.

A kernel must not read the time or count its launches, because it could then behave differently while it is timed.
"""

import re
from itertools import product

_AXES = "xyzw"

# (names in PTX, names in SASS, why a kernel needs them)
ALLOWED = (
    ("tid ntid", "SR_TID", "its place in the CTA, and the CTA's size"),
    ("ctaid nctaid", "SR_CTAID SR_NCTAID", "the CTA's place in the grid, and the grid's size"),
    ("clusterid nclusterid cluster_ctaid cluster_nctaid", "", "places in clusters, and their sizes"),
    ("cluster_ctarank cluster_nctarank is_explicit_cluster", "SR_CgaCtaId SR_CgaSize", "the rank in a cluster, and its size"),
    ("laneid warpid nwarpid", "SR_LANEID SR_VIRTID SR_VIRTCFG", "lane and warp, and how many warps there are"),
    (
        "lanemask_eq lanemask_le lanemask_lt lanemask_ge lanemask_gt",
        "SR_EQMASK SR_LEMASK SR_LTMASK SR_GEMASK SR_GTMASK",
        "masks of lanes by their order",
    ),
    ("smid nsmid", "SR_VIRTUALSMID", "the SM and how many there are: persistent kernels stride by them"),
    ("total_smem_size aggr_smem_size dynamic_smem_size", "SR_SMEMSZ", "sizes of shared memory, which the plan fixes"),
    (
        " ".join(f"reserved_smem_offset_{which}" for which in ("begin", "end", "cap", "0", "1")),
        "SR_SWINHI SR_SWINLO",
        "where shared memory lies",
    ),
    ("", "SRZ", "zero"),
)
# These give the time or count launches. Other refused registers differ from run to run or are unknown.
_TIME = re.compile(r"%?(?:clock|globaltimer|gridid|current_graph_exec|SR_CLOCK|SR_GLOBALTIMER|SR_GRIDID)", re.IGNORECASE)

_PTX = frozenset(
    f"%{name}{axis}" for names, _, _ in ALLOWED for name in names.split() for axis in ("", *(f".{axis}" for axis in _AXES))
)
_SASS = frozenset(f"{name}{axis}" for _, names, _ in ALLOWED for name, axis in product(names.split(), ("", ".X", ".Y", ".Z")))


def refused_rule(name: str) -> str | None:
    """The rule that reading a special register breaks, by its PTX (`%clock`) or SASS name; None where it may be read."""
    if name in _PTX or name in _SASS:
        return None
    return "device-clock" if _TIME.match(name) else "special-register"
