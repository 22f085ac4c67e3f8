// Warp-wide operations. Lane l of block r handles row r of each column of 32-bit words; out: [row][result][lane].
#include "golden.cuh"

#define ROW                                                       \
  const int lane = threadIdx.x, row = blockIdx.x, rows = gridDim.x; \
  const unsigned* words = (const unsigned*)in + row * 32 + lane;  \
  const unsigned a = words[0], b = words[rows * 32], c = words[rows * 64]; \
  unsigned* to = (unsigned*)out + row * 64 + lane;                \
  (void)b, (void)c;

#define SHUFFLE(NAME, FORM)                                                                           \
  GOLDEN(shfl_##NAME) {                                                                               \
    ROW unsigned d, p;                                                                                \
    asm volatile("{.reg .pred p; shfl.sync." FORM ".b32 %0|p, %2, %3, %4, 0xffffffff; selp.b32 %1, 1, 0, p;}" \
                 : "=r"(d), "=r"(p)                                                                   \
                 : "r"(a), "r"(b), "r"(c));                                                           \
    to[0] = d, to[32] = p;                                                                            \
  }

SHUFFLE(up, "up")
SHUFFLE(down, "down")
SHUFFLE(bfly, "bfly")
SHUFFLE(idx, "idx")

// Even and odd lanes apart, each half of the warp with its own member mask; b is a lane of the same parity.
GOLDEN(shfl_halves) {
  ROW unsigned d;
  if (lane & 1) {
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xaaaaaaaa;" : "=r"(d) : "r"(a), "r"((b & 30) | 1));
  } else {
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0x55555555;" : "=r"(d) : "r"(a), "r"(b & 30));
  }
  to[0] = d, to[32] = c;
}

#define VOTE(NAME, BODY)                                                                          \
  GOLDEN(NAME) {                                                                                  \
    ROW unsigned d, p;                                                                            \
    asm volatile("{.reg .pred p, q; .reg .b32 t; setp.lt.u32 p, %2, %3;" BODY "}" : "=r"(d), "=r"(p) : "r"(a), "r"(b)); \
    to[0] = d, to[32] = p;                                                                        \
  }

VOTE(vote_all, "vote.sync.all.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q; "
     "vote.sync.all.pred q, !p, 0xffffffff; selp.b32 %1, 1, 0, q;")
VOTE(vote_any, "vote.sync.any.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q; "
     "vote.sync.any.pred q, !p, 0xffffffff; selp.b32 %1, 1, 0, q;")
VOTE(vote_uni, "vote.sync.uni.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q; "
     "vote.sync.uni.pred q, !p, 0xffffffff; selp.b32 %1, 1, 0, q;")
VOTE(vote_ballot, "vote.sync.ballot.b32 %0, p, 0xffffffff; vote.sync.ballot.b32 %1, !p, 0xffffffff;")

// Lanes 0 to 15 and 16 to 31 vote apart.
GOLDEN(vote_halves) {
  ROW unsigned d;
  if (lane < 16) {
    asm volatile("{.reg .pred p; setp.lt.u32 p, %1, %2; vote.sync.ballot.b32 %0, p, 0xffff;}" : "=r"(d) : "r"(a), "r"(b));
  } else {
    asm volatile("{.reg .pred p; setp.lt.u32 p, %1, %2; vote.sync.ballot.b32 %0, p, 0xffff0000;}" : "=r"(d) : "r"(a), "r"(b));
  }
  to[0] = d, to[32] = c;
}

GOLDEN(match_any) {
  ROW unsigned d, e;
  asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(a));
  asm volatile("match.any.sync.b64 %0, %1, 0xffffffff;" : "=r"(e) : "l"((unsigned long long)b << 32 | a));
  to[0] = d, to[32] = e;
}

GOLDEN(match_all) {
  ROW unsigned d, p;
  asm volatile("{.reg .pred p; match.all.sync.b32 %0|p, %2, 0xffffffff; selp.b32 %1, 1, 0, p;}" : "=r"(d), "=r"(p) : "r"(a));
  to[0] = d, to[32] = p;
}

#define REDUX(NAME, FORM)                                                          \
  GOLDEN(redux_##NAME) {                                                           \
    ROW unsigned d, e;                                                             \
    asm volatile("redux.sync." FORM " %0, %1, 0xffffffff;" : "=r"(d) : "r"(a));     \
    if (lane >= 8) {                                                               \
      asm volatile("redux.sync." FORM " %0, %1, 0xffffff00;" : "=r"(e) : "r"(b));   \
    } else {                                                                       \
      e = 0;                                                                       \
    }                                                                              \
    to[0] = d, to[32] = e;                                                         \
  }

REDUX(add_u32, "add.u32")
REDUX(add_s32, "add.s32")
REDUX(min_u32, "min.u32")
REDUX(min_s32, "min.s32")
REDUX(max_u32, "max.u32")
REDUX(max_s32, "max.s32")
REDUX(and_b32, "and.b32")
REDUX(or_b32, "or.b32")
REDUX(xor_b32, "xor.b32")

// Of a block whose last warp is not full, so launched with 32 * k + 20 threads.
GOLDEN(activemask) {
  unsigned d;
  asm volatile("activemask.b32 %0;" : "=r"(d));
  ((unsigned*)out)[threadIdx.x] = d;
}

GOLDEN(elect) {
  const int lane = threadIdx.x;
  unsigned d, p, e = 0, q = 0;
  asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; selp.b32 %1, 1, 0, p;}" : "=r"(d), "=r"(p));
  if (lane >= 5) {
    asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffe0; selp.b32 %1, 1, 0, p;}" : "=r"(e), "=r"(q));
  }
  unsigned* to = (unsigned*)out + lane;
  to[0] = d, to[32] = p, to[64] = e, to[96] = q;
}

GOLDEN(lane_masks) {
  unsigned d[7];
  asm volatile("mov.u32 %0, %%lanemask_eq;" : "=r"(d[0]));
  asm volatile("mov.u32 %0, %%lanemask_le;" : "=r"(d[1]));
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(d[2]));
  asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(d[3]));
  asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(d[4]));
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(d[5]));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(d[6]));
  for (int i = 0; i < 7; ++i) ((unsigned*)out)[i * blockDim.x + threadIdx.x] = d[i];
}
