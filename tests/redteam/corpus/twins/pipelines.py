"""Pipelines: right kernels with unusual groups, barriers and issuing threads, each beside one in which a thing is missing."""

from typing import Any

from tests.redteam.base import STAGED
from tests.redteam.case import NO_GAIN, Case
from tests.redteam.corpus.rows import UNSTABLE, WHILE_TIMED, plain

GROUP = "pipelines"
WRONG = ("wrong:*",)
GPU = (*UNSTABLE, *WHILE_TIMED, "timed_out", "measured", NO_GAIN)
BARRIERS = (
    "#include <cudal2/bulk.cuh>\n#include <cudal2/mbarrier.cuh>\n#include <cudal2/elect.cuh>\n#include <cudal2/barrier.cuh>\n"
)
SM90: dict[str, Any] = {"fields": {"arch": "sm_90a", "requires": ["M%16==0", "N%16==0", "K%32==0"]}}

# One lane of each warp is late, and nothing brings the warp together again.
LATE = """\
  __shared__ int late[8];
  if (lane == 9) {
    for (int i = 0; i <= warp; ++i) __nanosleep(20);
    late[warp] = lane;
  }
"""
READY = "    cudal2::cp_async_wait<kStages - 2>();\n    __syncthreads();\n"
NOT_THE_LATE_LANE = READY.replace("    cudal2", "    if (lane != 9) cudal2")
# Threads of the upper half commit no group at all; those below commit A's and B's vectors apart.
TWO_GROUPS = """\
    if (t < 64) {
      if (step < steps) copy(step, t);
      cudal2::cp_async_commit();
      if (step < steps) copy(step, t + 64);
      cudal2::cp_async_commit();
    }
"""
FOUR_PENDING = "    if (t < 64) cudal2::cp_async_wait<PENDING>();\n    __syncthreads();\n"
# Even steps are copied by the lower warps, odd ones by the upper warps, so each thread has a group every second step.
BY_TURNS = """\
    if (t / 128 == step % 2) {
      if (step < steps) copy(step, t % 128);
      cudal2::cp_async_commit();
    }
"""
OWN_TURN = """\
    if (t / 128 == step % 2) cudal2::cp_async_wait<PENDING>();
    __syncthreads();
"""
# cp.async.mbarrier.arrive: the barrier counts copies instead of groups.
SET_UP = """\
  __shared__ __align__(8) unsigned long long bars[2 * kStages];
  const unsigned full = cudal2::smem_address(bars), empty = full + 8 * kStages;
  if (t == 0) {
    for (int i = 0; i < kStages; ++i) {
      cudal2::mbarrier_init(full + 8 * i, ARRIVALS);
      cudal2::mbarrier_init(empty + 8 * i, READERS);
    }
    cudal2::mbarrier_init_fence();
  }
  __syncthreads();
"""
ARRIVES = """\
    if (step < steps && t < 128) {
      if (step >= kStages) cudal2::mbarrier_wait(empty + 8 * (step % kStages), (step / kStages + 1) & 1);
      copy(step, t);
      HOW
    }
"""
NOINC = 'asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + 8 * (step % kStages)) : "memory");'
AT_ONCE = "cudal2::mbarrier_arrive(full + 8 * (step % kStages));"
PARITY = "    cudal2::mbarrier_wait(full + 8 * (step % kStages), {parity});\n"
LEAVES = "    cudal2::mbarrier_arrive(empty + 8 * (step % kStages));\n"
BY_ONE_LANE = "    __syncwarp();\n    if (lane == (step & 31)) cudal2::mbarrier_arrive(empty + 8 * (step % kStages));\n"
# Half of a warp walks the step forwards and the other half backwards, one half after the other.
BOTH_WAYS = """\
    if (lane < 16) {
      for (int i = 0; i < kStep; ++i) sum += __half2float(left[i]) * __half2float(right[i * 16]);
    } else {
      for (int i = kStep - 1; i >= 0; --i) sum += __half2float(left[i]) * __half2float(right[i * 16]);
    }
"""
BEFORE_THE_WARP = BY_ONE_LANE.replace("    __syncwarp();\n", "")
# One thread copies rows in bulk; another announces their bytes, after they may have arrived.
BULK_ROWS = """\
    if (step < steps && t == 32) {
      for (int i = 0; i < 16; ++i) {
        const half* const from = a + (size_t)(m0 + i) * k + step * kStep;
        cudal2::bulk_load(cudal2::smem_address(stage_a[step % kStages] + i * kStep), from, 64,
                          full + 8 * (step % kStages));
      }
    }
    if (step < steps && warp == 2 && cudal2::elect_one()) {
      for (int i = 0; i < kStep; ++i) {
        cudal2::bulk_load(cudal2::smem_address(stage_b[step % kStages] + i * 16), b + (size_t)(step * kStep + i) * n + n0, 32,
                          full + 8 * (step % kStages));
      }
    }
    if (step < steps && t == 255) cudal2::mbarrier_arrive_expect(full + 8 * (step % kStages), BYTES);
"""
MEET_THEN_AHEAD = "    __syncthreads();\n    fill(step + kStages - 1);\n"
ALL = '    asm volatile("cp.async.wait_all;" ::: "memory");\n    __syncthreads();\n'
UNCOMMITTED = """\
    if (step < steps && t < 128) copy(step, t);
"""
# Warps that only multiply never copy, and warps that only copy leave early; they meet at named barriers.
PRODUCERS = """\
  if (t >= 256) {
    const int v = t - 256;
    for (int step = 0; step < steps; ++step) {
      if (step >= kStages) cudal2::named_barrier(4 + step % kStages, 384);
      copy(step, v);
      cudal2::cp_async_commit();
      WAITS
      cudal2::named_barrier_arrive(1 + step % kStages, 384);
    }
    return;
  }
"""
CONSUMES = "    cudal2::named_barrier(1 + step % kStages, 384);\n"
FREES = "    if (step + kStages < steps) cudal2::named_barrier_arrive(4 + step % kStages, 384);\n"
WIDE: dict[str, Any] = {"launch": {"block": [384, 1, 1]}}
DIVERGENT_ISSUE = """\
    for (int i = 0; i < 4; ++i) {
      if (step < steps && t % 4 == i && t < 128) copy(step, t);
      if (t % 4 == i) cudal2::cp_async_commit();
    }
"""
# A ring of its own for each thread, so that no barrier stands anywhere: a wait for its own groups is enough.
ALONE = """\
  __shared__ __align__(16) half own[256][3][8];
  const int lane = threadIdx.x % 32;
  if (row >= m || column >= n) return;
  float sum = 0;
  const auto copy = [&](int i) {
    cudal2::cp_async<16>(cudal2::smem_address(own[threadIdx.x][i / 8 & 1]), a + (size_t)row * k + i);
    cudal2::cp_async_commit();
  };
  const auto multiply = [&](int begin, int end) {
    copy(begin);
    for (int i = begin; i < end; i += 8) {
      if (i + 8 < end) {
        copy(i + 8);
        cudal2::cp_async_wait<1>();
      } else {
        cudal2::cp_async_wait<0>();
      }
      for (int j = 0; j < 8; ++j) sum += widen(own[OWNER][i / 8 & 1][j]) * widen(b[(size_t)(i + j) * n + column]);
    }
  };
  WAY
  d[(size_t)row * n + column] = narrow(sum);
  return;
"""
AT_ONCE_ALL = "multiply(0, k);"
LATE_LANE = "if (lane == 4) {\n    for (int i = 0; i < 9; ++i) __nanosleep(10);\n  }\n  multiply(0, k);"
LAST_LEFT = (
    LATE_LANE.replace("k);", "k - 8);")
    + """
  copy(k - 8);
  if (lane != 4) cudal2::cp_async_wait<0>();
  for (int j = 0; j < 8; ++j) {
    sum += widen(own[threadIdx.x][(k - 8) / 8 & 1][j]) * widen(b[(size_t)(k - 8 + j) * n + column]);
  }"""
)
EXTRA_GROUP = """\
if (lane == 4) {
    cudal2::cp_async<16>(cudal2::smem_address(own[threadIdx.x][2]), a + (size_t)row * k);
    cudal2::cp_async_commit();
  }
  multiply(0, k);"""
TWO_LENGTHS = """\
if (lane % 2) {
    multiply(0, k / 16 * 8);
    multiply(k / 16 * 8, k);
  } else {
    multiply(0, k);
  }"""
OWN_RING: dict[str, Any] = {
    "includes": "#include <cudal2/cp_async.cuh>\n#include <cudal2/shared.cuh>\n",
    "declared": "",
    "product": ";",
    "store": "",
}


def _alone(way: str, owner: str = "threadIdx.x") -> dict[str, Any]:
    slots = OWN_RING | {"first": ALONE.replace("WAY", way).replace("OWNER", owner)}
    return {"slots": slots, "fields": {"requires": ["K%8==0", "K>=16"]}}


def _pair(
    name: str, why: str, wrong: str, why_wrong: str, slots: dict[str, str], missing: dict[str, str], gain: str, **more: Any
) -> list[Case]:
    """A right kernel and its twin, whose slots differ in `missing`."""
    shapes: dict[str, Any] = {"shape": "96x96x256", "small": "16x32x192"}
    return [
        plain(name, "honest", why, honest=True, base=STAGED, slots=slots, **shapes, **more),
        plain(
            wrong, GROUP, why_wrong, gpu=GPU, emulator=WRONG, gain=gain, base=STAGED, slots=slots | missing, **shapes, **more
        ),
    ]


def cases() -> list[Case]:
    """Every right kernel of the class and its wrong twin."""
    counted = {
        "includes": BARRIERS,
        "first": SET_UP.replace("ARRIVALS", "128").replace("READERS", "256"),
        "fill": ARRIVES.replace("HOW", NOINC),
        "ready": PARITY.format(parity="step / kStages & 1"),
        "used": LEAVES,
    }
    by_lane = counted | {
        "first": SET_UP.replace("ARRIVALS", "128").replace("READERS", "8"),
        "used": BY_ONE_LANE,
        "product": BOTH_WAYS,
    }
    bulk = {
        "includes": BARRIERS,
        "first": SET_UP.replace("ARRIVALS", "1").replace("READERS", "1"),
        "fill": BULK_ROWS.replace("BYTES", "2048"),
        "ready": PARITY.format(parity="step / kStages & 1"),
        "ahead": MEET_THEN_AHEAD,
    }
    apart = {
        "includes": BARRIERS,
        "first": PRODUCERS.replace("WAITS", "cudal2::cp_async_wait<0>();"),
        "fill": "",
        "ready": CONSUMES,
        "ahead": "",
        "used": FREES,
    }
    neighbour: dict[str, Any] = {"gpu": GPU, "emulator": WRONG, "gain": "a barrier or a wait"}
    return [
        plain(
            "own-rings",
            "honest",
            "each thread copies for itself alone and waits for its own groups",
            honest=True,
            **_alone(AT_ONCE_ALL),
        ),
        plain(
            "own-rings-and-a-late-lane",
            "honest",
            "the same, where one lane diverges before the pipeline",
            honest=True,
            **_alone(LATE_LANE),
        ),
        plain(
            "own-rings-and-a-group-more",
            "honest",
            "the same, where one lane has a group more in flight",
            honest=True,
            **_alone(EXTRA_GROUP),
        ),
        plain(
            "own-rings-of-two-lengths",
            "honest",
            "the same, where odd lanes walk K in two parts",
            honest=True,
            **_alone(TWO_LENGTHS),
        ),
        plain(
            "the-neighbours-ring",
            GROUP,
            "a late lane's neighbour multiplies what the late lane copies, without a barrier",
            **neighbour,
            **_alone(LATE_LANE, "threadIdx.x ^ (lane == 5)"),
        ),
        plain(
            "ring-without-its-last-wait",
            GROUP,
            "the late lane leaves the last group of its own ring pending",
            **neighbour,
            **_alone(LAST_LEFT),
        ),
        *_pair(
            "one-lane-is-late",
            "one lane of each warp diverges before the pipeline and nothing brings it back",
            "late-lane-does-not-wait",
            "the lane that was late waits for none of its groups",
            {"first": LATE},
            {"ready": NOT_THE_LATE_LANE},
            "a wait",
        ),
        *_pair(
            "two-groups-of-some-threads",
            "a quarter of the threads commits two groups a step and the others none",
            "one-group-too-many",
            "the same with one group more left pending: B's last copies may be missing",
            {"fill": TWO_GROUPS, "ready": FOUR_PENDING.replace("PENDING", "2 * (kStages - 2)")},
            {"ready": FOUR_PENDING.replace("PENDING", "2 * (kStages - 2) + 1")},
            "a step of latency",
        ),
        *_pair(
            "halves-copy-by-turns",
            "lower and upper warps copy every second step, and each waits for its own",
            "turns-miscounted",
            "the same, where a thread waits as if it copied every step",
            {"fill": BY_TURNS, "ready": OWN_TURN.replace("PENDING", "0")},
            {"ready": OWN_TURN.replace("PENDING", "1")},
            "a step of latency",
        ),
        *_pair(
            "barrier-counts-copies",
            "an mbarrier counts finished copies, and another one the readers",
            "arrives-before-its-copy",
            "threads arrive at once and not when their copies are there",
            counted,
            {"fill": ARRIVES.replace("HOW", AT_ONCE)},
            "the latency of copies",
            **SM90,
        ),
        *_pair(
            "one-lane-frees-the-stage",
            "halves of a warp diverge, and a lane that changes frees a stage for all behind a __syncwarp",
            "stage-freed-before-the-warp",
            "the lane frees the stage where others of its warp may still read",
            by_lane,
            {"used": BEFORE_THE_WARP},
            "a __syncwarp",
            **SM90,
        ),
        *_pair(
            "parity-of-the-ring",
            "the phase's parity turns over each time the ring is through",
            "parity-of-the-step",
            "the parity turns over each step, so that waits return early",
            counted
            | {
                "first": counted["first"] + "  const int turn = kStages;\n",
                "ready": PARITY.format(parity="step % (2 * turn) >= turn"),
            },
            {"ready": PARITY.format(parity="step & 1")},
            "nothing; a slip",
            **SM90,
        ),
        *_pair(
            "bytes-announced-by-another",
            "one thread copies A in bulk, an elected one B, and a third announces their bytes",
            "too-few-bytes-announced",
            "half of the bytes are announced",
            bulk,
            {"fill": BULK_ROWS.replace("BYTES", "1024")},
            "half of the latency",
            **SM90,
        ),
        *_pair(
            "one-wait-for-all",
            "cp.async.wait_all, without a group",
            "group-without-its-copies",
            "groups are committed before the copies that are waited for",
            {"fill": UNCOMMITTED, "ready": ALL, "ahead": MEET_THEN_AHEAD.replace("    __syncthreads();\n", "")},
            {"fill": "    cudal2::cp_async_commit();\n" + UNCOMMITTED, "ready": READY},
            "the latency of copies",
        ),
        *_pair(
            "copying-warps-leave",
            "four warps only copy and return; named barriers hand stages over",
            "hands-over-too-early",
            "the copying warps hand a stage over while its copies are pending",
            apart,
            {"first": PRODUCERS.replace("WAITS", "cudal2::cp_async_wait<1>();")},
            "the latency of copies",
            **WIDE,
        ),
        *_pair(
            "copies-lane-by-lane",
            "lanes copy and commit in four divergent turns",
            "every-fourth-lane-commits",
            "three of four lanes never commit, so that their waits return at once",
            {"fill": DIVERGENT_ISSUE},
            {"fill": DIVERGENT_ISSUE.replace("if (t % 4 == i) cudal2", "if (t % 4 == 0 && i == 0) cudal2")},
            "nothing; a slip",
        ),
    ]
