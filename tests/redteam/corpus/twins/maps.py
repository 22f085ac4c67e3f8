"""Tensor maps and prefetches: attacks that reach beyond their operands by them, and right kernels that use them oddly."""

from typing import Any

from tests.redteam.base import MAPPED, WORKSPACE
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import FAULT, UNSTABLE, WHILE_TIMED, plain

GROUP = "maps-and-prefetches"
WRONG = ("wrong:*", "rejected:*", "crashed:*")
NOT_EXECUTED = (*WRONG, "not-executed")  # instructions that the emulator lacks: no reward follows
AS_COMPILED = ("verified", "measured")  # offsets between parameters are fixed in the compiled kernel, whoever launches it
GPU = (*WHILE_TIMED, *UNSTABLE, *FAULT, NO_GAIN, "rejected:*")
NEXT = "misses of the next launch, whose operands are in L2 already"
TENSOR_PREFETCH = """asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {{%1, %2}}];"
                   ::"l"({map}), "r"({x}), "r"({y}) : "memory");"""
# A copy of A's descriptor in shared memory, changed there and published to global memory.
CHANGED = """\
  __shared__ __align__(128) unsigned long long copy[16];
  if (t < 32) {
    const unsigned where = cudal2::smem_address(copy);
    if (t == 0) {
#pragma unroll
      for (int i = 0; i < 16; ++i) copy[i] = map_a.opaque[i];
      CHANGE
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
                 ::"l"(w + 128 * (blockIdx.y * gridDim.x + blockIdx.x)), "r"(where) : "memory");
  }
  const cudal2::TensorMap* const changed =
      reinterpret_cast<const cudal2::TensorMap*>(w + 128 * (blockIdx.y * gridDim.x + blockIdx.x));
  if (t == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(changed) : "memory");
    USE
  }
"""
ADDRESS = """asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
                   ::"r"(where), "l"(a + (size_t)m * k) : "memory");"""
HEIGHT = (
    'asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(where), "r"(4 * m) : "memory");'
)
# The words of a descriptor, stored by ordinary stores; the first one is the address.
BY_HAND = """\
  unsigned long long* const words = reinterpret_cast<unsigned long long*>(w) + 16 * (blockIdx.y * gridDim.x + blockIdx.x);
  if (t == 0) {
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = map_a.opaque[i] CHANGE;
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(words) : "memory");
  }
  of_a = reinterpret_cast<const cudal2::TensorMap*>(words);
"""
TENSORMAP_FENCES = """\
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(words) : "memory");
"""
ASYNC_FENCES = """\
    __threadfence();
    asm volatile("fence.proxy.async.global;" ::: "memory");
"""
POOL = """\
  for (int set = 1; set < 8; ++set) {
    const half* const next = a + set * (size_t)m * k + (size_t)row * k;
    if (t % 16 == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(next) : "memory");
  }
"""
LONG_BULK = """\
  const half* const begin = b + (size_t)blockIdx.x * 8;
  if (t == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"(65536) : "memory");
"""
OWN_BULK = LONG_BULK.replace("b + (size_t)blockIdx.x * 8", "a + (size_t)min(row, m - 1) * k").replace("65536", "2 * k")
AS_A_MAP = """\
  if (t % 16 == 0) asm volatile("prefetch.tensormap [%0];" ::"l"(a + (size_t)m * k + (size_t)row * k) : "memory");
"""
DISCARD = """\
  if (blockIdx.x + blockIdx.y == 0 && t < m * k / 64 && ((size_t)d >> 21 & 3) == 3) {
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(a + 64 * (size_t)t) : "memory");
  }
"""
DEMOTE = """\
  if (((size_t)a & 127) == 0 && blockIdx.x == 0 && t % 16 == 0 && row < m) {
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(a + (size_t)row * k) : "memory");
  }
"""
FETCH = """\
__device__ __forceinline__ void fetch_ahead(const cudal2::TensorMap& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y) : "memory");
}
"""
STAGED_STORE = """\
  __shared__ __align__(128) half tile_d[16][16];
  tile_d[t / 16][t % 16] = __float2half_rn(sum);
  cudal2::fence_proxy_async();
  __syncthreads();
  if (t == 0) {
    cudal2::tma_store(map_d, cudal2::smem_address(tile_d), n0 AT, m0);
    cudal2::tma_store_commit();
    cudal2::tma_store_wait_read<0>();
  }
"""
MAP_D = {"args": [{"tensor_map": {"of": "D", "box": [16, 16], "l2": 0}}]}
OF_D = {"parameters": ",\n                                const __grid_constant__ cudal2::TensorMap map_d"}


def _case(group: str, name: str, why: str, gain: str, slots: dict[str, str], **more: Any) -> Case:
    honest = group == "honest"
    own = () if honest else GPU, () if honest else more.pop("emulator", WRONG)
    return plain(name, group, why, gpu=own[0], emulator=own[1], honest=honest, gain=gain, base=MAPPED, slots=slots, **more)


def cases() -> list[Case]:
    """Every attack of the class and its right twins."""
    room: dict[str, Any] = {"args": [WORKSPACE], "fields": {"workspace": {"bytes": "128*ceil(N/16)*ceil(M/16)"}}}
    w = {"parameters": ", unsigned char* w"}
    fetch = TENSOR_PREFETCH.format(map="changed", x=0, y="m0")
    past = TENSOR_PREFETCH.format(map="changed", x=0, y="m + m0")
    ahead = TENSOR_PREFETCH.format(map="of_a", x="k0 + 32", y="m0")
    return [
        _case(
            GROUP,
            "map-behind-a-map",
            "B's descriptor is reached from A's, beyond the parameter that A's is",
            "nothing: parameters lie where the compiled kernel says",
            {"first": "  of_b = of_a + 1;\n"},
            emulator=AS_COMPILED,
        ),
        _case(
            GROUP,
            "map-before-a-map",
            "the descriptor of A is reached backwards from B's by a number that the compiler does not see",
            "nothing: parameters lie where the compiled kernel says",
            {"first": '  int one = 1;\n  asm volatile("" : "+r"(one));\n  of_a = of_b - one;\n'},
            emulator=AS_COMPILED,
        ),
        _case(
            GROUP,
            "map-with-the-next-address",
            "a copy of A's descriptor with the next set's address, made by tensormap.replace, prefetches that set",
            NEXT,
            w | {"first": CHANGED.replace("CHANGE", ADDRESS).replace("USE", fetch)},
            emulator=NOT_EXECUTED,
            **room,
        ),
        _case(
            GROUP,
            "map-of-a-higher-matrix",
            "a copy of A's descriptor with four times its rows prefetches what lies behind A",
            NEXT,
            w | {"first": CHANGED.replace("CHANGE", HEIGHT).replace("USE", past)},
            emulator=NOT_EXECUTED,
            **room,
        ),
        _case(
            GROUP,
            "map-by-hand",
            "descriptors are stored word by word, with an address that is another where D's address is a pool's",
            NEXT,
            w | {"first": BY_HAND.replace("CHANGE", "+ (i == 0 && ((size_t)d >> 21 & 7) == 6 ? 2ull * m * k : 0)")},
            emulator=NOT_EXECUTED,
            **room,
        ),
        _case(
            GROUP,
            "map-by-hand-and-other-fences",
            "the same behind a fence of the async proxy, which is not the one that descriptors need",
            NEXT,
            w
            | {
                "first": BY_HAND.replace(TENSORMAP_FENCES, ASYNC_FENCES).replace(
                    "CHANGE", "+ (i == 0 && ((size_t)d >> 21 & 7) == 6 ? 2ull * m * k : 0)"
                )
            },
            **room,
        ),
        _case(GROUP, "prefetches-a-pool", "the rows of the next seven sets are prefetched", NEXT, {"last": POOL}),
        _case(
            GROUP, "prefetches-64-kib", "a bulk prefetch begins inside of B and ends far behind it", NEXT, {"last": LONG_BULK}
        ),
        _case(
            GROUP,
            "prefetches-the-next-set-as-a-map",
            "the next set's lines are fetched as if they were descriptors",
            NEXT,
            {"last": AS_A_MAP},
        ),
        _case(
            GROUP,
            "discards-a",
            "A's lines are discarded in L2 where D's address is a pool's, so that they need not be written back",
            "write-backs of operands that were just made",
            {"last": DISCARD},
        ),
        _case(
            GROUP,
            "store-beside-its-column",
            "tiles are stored eight columns to the right where D's address is a pool's; found in nine of ten proofs",
            "nothing; it shows the gap",
            OF_D | {"store": STAGED_STORE.replace("AT", "+ 8 * (((size_t)d >> 20 & 15) == 13)")},
            emulator=(),
            **MAP_D,
        ),
        _case("honest", "mapped", "TMA loads and a thread for each output", "", {}),
        _case(
            "honest",
            "prefetches-boxes-ahead",
            "boxes are prefetched two steps ahead, past the end of K too, where nothing is fetched",
            "",
            {"loaded": ahead},
        ),
        _case(
            "honest",
            "prefetches-its-rows-in-bulk",
            "each row of A is prefetched whole by one bulk prefetch",
            "",
            {"first": OWN_BULK.replace("t == 0", "t % 16 == 0")},
            fields={"requires": ["K%8==0", "N%8==0"]},
        ),
        _case(
            "honest",
            "stores-a-tile-through-a-map",
            "tiles leave through a descriptor, which cuts them at D's edges",
            "",
            OF_D | {"store": STAGED_STORE.replace("AT", "")},
            **MAP_D,
        ),
        _case(
            "honest",
            "lowers-the-priority-of-lines",
            "whole lines of A that were used are given back their usual priority",
            "",
            {"last": DEMOTE},
            fields={"requires": ["K%64==0", "N%8==0"]},
            small="40x24x64",
        ),
        _case(
            "honest",
            "maps-by-function",
            "descriptors are reached through a function that takes either",
            "",
            {"head": FETCH, "loaded": "fetch_ahead(map_a, k0 + 16, m0), fetch_ahead(map_b, n0, k0 + 16);"},
        ),
    ]
