"""Lanes that part from their warp around cp.async: right kernels, and the same with a lane that does not wait for its own."""

from tests.redteam.case import Case
from tests.redteam.corpus.rows import plain

GROUP = "lanes-apart"
IN_FLIGHT = ("wrong:emulator/async-race", "wrong:emulator/uninitialised-read")
# Each thread has a ring of its own, of pairs along its row of A.
RING = """\
  __shared__ __align__(16) half2 ring[3][256];
  const auto place = [&](int step) { return (unsigned)__cvta_generic_to_shared(&ring[step % 3][threadIdx.x]); };
  const auto fetch = [&](int step) {
    const half* const from = a + (size_t)row * k + 2 * step;
    if (2 * step < k) asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(step)), "l"(from) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (row >= m || column >= n) return;
  float total = 0;
  BEFORE
  fetch(0);
  fetch(1);
  for (int step = 0; 2 * step < k; ++step) {
    INSIDE
    WAIT
    half2 pair;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(*(unsigned*)&pair) : "r"(place(step)) : "memory");
    fetch(step + 2);
    total += widen(pair.x) * widen(b[(size_t)(2 * step) * n + column]);
    total += widen(pair.y) * widen(b[(size_t)(2 * step + 1) * n + column]);
  }
  d[(size_t)row * n + column] = narrow(total);
  return;
"""
WAIT = 'asm volatile("cp.async.wait_group {kept};" ::: "memory");'
FIRST_LANE, NEXT_LANE = "threadIdx.x % 32 == 0", "threadIdx.x % 32 == step % 32"
PAUSE = 'for (int i = 0; i < k / 8; ++i) asm volatile("nanosleep.u32 20;" ::: "memory");'


def _ring(name: str, why: str, *, before: str = "", inside: str = "", wait: str = WAIT.format(kept=1), honest: bool) -> Case:
    return plain(
        name,
        "honest" if honest else GROUP,
        why,
        gpu=(),
        emulator=() if honest else IN_FLIGHT,
        honest=honest,
        slots={"first": RING.replace("BEFORE", before).replace("INSIDE", inside).replace("WAIT", wait)},
        fields={"requires": ["K%2==0"]},
    )


def cases() -> list[Case]:
    """The right ones and their wrong twins, which a GPU finds only by chance."""
    short = f"if ({{who}}) {{{{ {WAIT.format(kept=2)} }}}} else {{{{ {WAIT.format(kept=1)} }}}}"
    return [
        _ring(
            "one-lane-apart", "a lane pauses before a ring of cp.async", before=f"if ({FIRST_LANE}) {{ {PAUSE} }}", honest=True
        ),
        _ring("lanes-apart-in-turn", "another lane pauses at each step", inside=f"if ({NEXT_LANE}) {{ {PAUSE} }}", honest=True),
        _ring(
            "the-lane-apart-waits-too-little",
            "the lane that paused leaves one more group in flight than the others",
            before=f"if ({FIRST_LANE}) {{ {PAUSE} }}",
            wait=short.format(who=FIRST_LANE),
            honest=False,
        ),
        _ring(
            "each-lane-waits-too-little-once",
            "at each step another lane leaves one more group in flight than the others",
            wait=short.format(who=NEXT_LANE),
            honest=False,
        ),
    ]
