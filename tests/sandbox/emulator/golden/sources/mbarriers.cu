// mbarrier scripts of one thread, and of a block. A script writes what each query answered, one word after the other;
// the state itself is opaque and is not recorded.
#include "golden.cuh"

typedef unsigned long long Token;

struct Script {
  unsigned barrier;
  unsigned* to;

  __device__ void init(unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
  }
  __device__ void invalidate() { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }
  __device__ Token arrive() {
    Token token;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory");
    return token;
  }
  __device__ Token arrive(unsigned count) {
    Token token;
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(token) : "r"(barrier), "r"(count) : "memory");
    return token;
  }
  __device__ Token arrive_no_complete(unsigned count) {
    Token token;
    asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(token) : "r"(barrier), "r"(count) : "memory");
    return token;
  }
  __device__ Token arrive_drop() {
    Token token;
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(barrier) : "memory");
    return token;
  }
  __device__ Token arrive_drop(unsigned count) {
    Token token;
    asm volatile("mbarrier.arrive_drop.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(token) : "r"(barrier), "r"(count) : "memory");
    return token;
  }
  __device__ Token arrive_expect(unsigned bytes) {
    Token token;
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(token) : "r"(barrier), "r"(bytes) : "memory");
    return token;
  }
  __device__ void expect(unsigned bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
  __device__ void complete(unsigned bytes) {
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  }
  __device__ void test(Token token) {
    asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                 : "=r"(*to) : "r"(barrier), "l"(token) : "memory");
    ++to;
  }
  __device__ void try_wait(Token token) {
    asm volatile("{.reg .pred p; mbarrier.try_wait.acquire.cta.shared::cta.b64 p, [%1], %2, 100; selp.b32 %0, 1, 0, p;}"
                 : "=r"(*to) : "r"(barrier), "l"(token) : "memory");
    ++to;
  }
  __device__ void test_parities() {
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p;}"
                 : "=r"(to[0]) : "r"(barrier) : "memory");
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 1, 100; selp.b32 %0, 1, 0, p;}"
                 : "=r"(to[1]) : "r"(barrier) : "memory");
    to += 2;
  }
  __device__ void pending(Token token) {
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(*to) : "l"(token));
    ++to;
  }
};

#define SCRIPT(NAME)                                                \
  __device__ void NAME##_steps(Script& s);                          \
  GOLDEN(NAME) {                                                    \
    __shared__ __align__(8) unsigned long long storage;             \
    Script s{shared_address(&storage), (unsigned*)out};             \
    NAME##_steps(s);                                                \
  }                                                                 \
  __device__ __forceinline__ void NAME##_steps(Script& s)

// Three arrivals a phase; the token of an old phase answers true, that of the open one false.
SCRIPT(arrivals) {
  s.init(3);
  s.test_parities();
  const Token first = s.arrive();
  s.pending(first);
  s.test(first);
  s.test_parities();
  const Token second = s.arrive(2);
  s.pending(second);
  s.test(first), s.test(second);
  s.try_wait(second);
  s.test_parities();
  const Token third = s.arrive_no_complete(2);
  s.pending(third);
  s.test(third);
  const Token fourth = s.arrive();
  s.pending(fourth);
  s.test(third), s.test(fourth);
  s.test_parities();
}

// The phase ends once both the arrivals and the bytes are there, whichever come last.
SCRIPT(transactions) {
  s.init(1);
  const Token first = s.arrive_expect(64);
  s.test(first), s.test_parities();
  s.complete(32);
  s.test(first);
  s.complete(32);
  s.test(first), s.test_parities();
  s.expect(16);
  const Token second = s.arrive();
  s.test(second);
  s.expect(16);
  s.complete(16);
  s.test(second);
  s.complete(16);
  s.test(second), s.test_parities();
  s.expect(128);
  s.complete(128);
  s.test_parities();
  const Token third = s.arrive();
  s.test(third), s.test_parities();
}

// Bytes that arrive before they are announced: the count goes below zero and comes back.
SCRIPT(early_bytes) {
  s.init(2);
  s.complete(48);
  s.test_parities();
  const Token first = s.arrive();
  s.test(first);
  const Token second = s.arrive_expect(48);
  s.test(first), s.test(second), s.test_parities();
}

// A dropped arrival is missing from this phase and from all that follow.
SCRIPT(drops) {
  s.init(4);
  const Token first = s.arrive_drop();
  s.pending(first);
  const Token second = s.arrive_drop(2);
  s.pending(second);
  s.test(second);
  const Token third = s.arrive();
  s.pending(third);
  s.test(third), s.test_parities();
  const Token fourth = s.arrive();
  s.pending(fourth);
  s.test(fourth), s.test_parities();
}

// The largest counts, and memory that was invalidated and initialised again.
SCRIPT(limits) {
  s.init((1u << 20) - 1);
  const Token first = s.arrive((1u << 20) - 2);
  s.pending(first);
  s.test_parities();
  const Token second = s.arrive_expect((1u << 20) - 1);
  s.test(second);
  s.complete((1u << 20) - 1);
  s.test(second), s.test_parities();
  s.invalidate();
  s.init(1);
  s.test_parities();
  const Token third = s.arrive();
  s.pending(third);
  s.test(third), s.test_parities();
}

// 128 threads meet 20 times; between meetings thread i reads what its neighbour wrote.
GOLDEN(meetings) {
  __shared__ __align__(8) unsigned long long storage;
  __shared__ unsigned slots[2][128];
  const unsigned barrier = shared_address(&storage), i = threadIdx.x;
  if (i == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(barrier) : "memory");
  __syncthreads();
  unsigned value = ((const unsigned*)in)[i];
  for (int phase = 0; phase < 20; ++phase) {
    slots[phase & 1][i] = value;
    asm volatile("{.reg .b64 t; .reg .pred p; mbarrier.arrive.shared::cta.b64 t, [%0];\n"
                 "again%=: mbarrier.try_wait.shared::cta.b64 p, [%0], t; @!p bra again%=;}" ::"r"(barrier) : "memory");
    value = value * 5 + slots[phase & 1][(i + 1) & 127];
  }
  ((unsigned*)out)[i] = value;
}

// A producer warp and three consumer warps hand a slot over by parity.
GOLDEN(hand_over) {
  __shared__ __align__(8) unsigned long long storage[2];
  __shared__ unsigned slot[32];
  const unsigned full = shared_address(storage), empty = full + 8, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(full) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 96;" ::"r"(empty) : "memory");
  }
  __syncthreads();
  unsigned sum = 0;
  for (unsigned step = 0; step < 10; ++step) {
    const unsigned waited = warp == 0 ? empty : full, parity = warp == 0 ? (step & 1) ^ 1 : step & 1;
    asm volatile("{.reg .pred p;\nagain%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again%=;}"
                 ::"r"(waited), "r"(parity) : "memory");
    if (warp == 0) {
      slot[lane] = ((const unsigned*)in)[step * 32 + lane];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(full) : "memory");
    } else {
      sum = sum * 3 + slot[(lane + warp) & 31];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty) : "memory");
    }
  }
  ((unsigned*)out)[threadIdx.x] = sum;
}
