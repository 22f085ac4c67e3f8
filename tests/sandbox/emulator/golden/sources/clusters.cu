// Clusters and distributed shared memory, and instructions that only synchronise: the results show that they do not change
// anything else. Threads of a cluster are numbered through: out is [cta of the grid][thread][word].
#include "golden.cuh"

#define MEET asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#define SPECIAL(INDEX, NAME) asm volatile("mov.u32 %0, %%" NAME ";" : "=r"(d[INDEX]));

__device__ __forceinline__ unsigned cta_of_grid() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}

__device__ __forceinline__ unsigned rank_of_cta() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ unsigned ctas_of_cluster() {
  unsigned count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
}

__device__ __forceinline__ unsigned map_to(unsigned address, unsigned rank) {
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

GOLDEN(specials) {
  unsigned d[24];
  SPECIAL(0, "clusterid.x") SPECIAL(1, "clusterid.y") SPECIAL(2, "clusterid.z")
  SPECIAL(3, "nclusterid.x") SPECIAL(4, "nclusterid.y") SPECIAL(5, "nclusterid.z")
  SPECIAL(6, "cluster_ctaid.x") SPECIAL(7, "cluster_ctaid.y") SPECIAL(8, "cluster_ctaid.z")
  SPECIAL(9, "cluster_nctaid.x") SPECIAL(10, "cluster_nctaid.y") SPECIAL(11, "cluster_nctaid.z")
  SPECIAL(12, "cluster_ctarank") SPECIAL(13, "cluster_nctarank")
  SPECIAL(14, "ctaid.x") SPECIAL(15, "ctaid.y") SPECIAL(16, "ctaid.z")
  SPECIAL(17, "nctaid.x") SPECIAL(18, "nctaid.y") SPECIAL(19, "nctaid.z")
  SPECIAL(20, "tid.x") SPECIAL(21, "ntid.x")
  asm volatile("{.reg .pred p; mov.pred p, %%is_explicit_cluster; selp.b32 %0, 1, 0, p;}" : "=r"(d[22]));
  SPECIAL(23, "ntid.y")
  for (int i = 0; i < 24; ++i) ((unsigned*)out)[(cta_of_grid() * blockDim.x + threadIdx.x) * 24 + i] = d[i];
}

// Every thread reads its slot of the next CTA: by address, as a vector, through a generic address, and asks whose it is.
GOLDEN(remote_loads) {
  __shared__ __align__(16) unsigned slots[32][4];
  const unsigned i = threadIdx.x, rank = rank_of_cta(), next = (rank + 1) % ctas_of_cluster();
  const unsigned* from = (const unsigned*)in + (cta_of_grid() * 32 + i) * 4;
  for (int j = 0; j < 4; ++j) slots[i][j] = from[j];
  MEET unsigned d[8];
  const unsigned remote = map_to(shared_address(slots[i]), next);
  asm volatile("ld.shared::cluster.u32 %0, [%1+4];" : "=r"(d[0]) : "r"(remote) : "memory");
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4])
               : "r"(remote)
               : "memory");
  asm volatile("{.reg .b64 g; mapa.u64 g, %1, %2; ld.u32 %0, [g+8];}" : "=r"(d[5]) : "l"(slots[i]), "r"(next) : "memory");
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(d[6]) : "r"(remote));
  asm volatile("{.reg .b64 g; mapa.u64 g, %1, %2; getctarank.u64 %0, g;}" : "=r"(d[7]) : "l"(slots[i]), "r"(next));
  for (int j = 0; j < 8; ++j) ((unsigned*)out)[(cta_of_grid() * 32 + i) * 8 + j] = d[j];
  MEET
}

// Every thread writes to the next CTA, adds to CTA 0, and then dumps what it was given.
GOLDEN(remote_stores) {
  __shared__ __align__(16) unsigned slots[32][4], sums[32];
  const unsigned i = threadIdx.x, rank = rank_of_cta(), next = (rank + 1) % ctas_of_cluster();
  const unsigned* from = (const unsigned*)in + (cta_of_grid() * 32 + i) * 4;
  sums[i] = 0;
  MEET
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(map_to(shared_address(slots[i]), next)), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
  asm volatile("red.shared::cluster.add.u32 [%0], %1;" ::"r"(map_to(shared_address(sums + i), 0)), "r"(from[0]) : "memory");
  MEET unsigned* to = (unsigned*)out + (cta_of_grid() * 32 + i) * 5;
  for (int j = 0; j < 4; ++j) to[j] = slots[i][j];
  to[4] = sums[i];
}

// st.async: 28 bytes a thread to the next CTA, whose barrier waits for all of them.
GOLDEN(async_stores) {
  __shared__ __align__(16) unsigned slots[32][8];
  __shared__ __align__(8) unsigned long long storage;
  const unsigned i = threadIdx.x, next = (rank_of_cta() + 1) % ctas_of_cluster(), barrier = shared_address(&storage);
  const unsigned* from = (const unsigned*)in + (cta_of_grid() * 32 + i) * 8;
  if (i == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(28 * 32) : "memory");
  }
  MEET const unsigned to = map_to(shared_address(slots[i]), next), done = map_to(barrier, next);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(to), "r"(done),
               "r"(from[0])
               : "memory");
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0+8], %2, [%1];" ::"r"(to), "r"(done),
               "l"((unsigned long long)from[3] << 32 | from[2])
               : "memory");
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0+16], {%2, %3, %4, %5}, [%1];" ::"r"(to),
               "r"(done), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
               : "memory");
  slots[i][1] = 0;
  asm volatile("{.reg .pred p;\nagain%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again%=;}" ::"r"(barrier)
               : "memory");
  for (int j = 0; j < 8; ++j) ((unsigned*)out)[(cta_of_grid() * 32 + i) * 8 + j] = slots[i][j];
  MEET
}

// The barrier of CTA 0 counts one arrival of every thread of the cluster, and bytes that a peer announces and delivers.
GOLDEN(remote_arrivals) {
  __shared__ __align__(8) unsigned long long storage;
  __shared__ unsigned slots[64];
  const unsigned i = threadIdx.x, rank = rank_of_cta(), ctas = ctas_of_cluster(), barrier = shared_address(&storage);
  if (i == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(32 * ctas) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  MEET const unsigned first = map_to(barrier, 0);
  const unsigned value = ((const unsigned*)in)[cta_of_grid() * 32 + i];
  const unsigned neighbour = map_to(shared_address(slots + i), (rank + 1) % ctas);
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(neighbour), "r"(value) : "memory");
  if (i == 0 && rank == 1) {
    asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], 4;" ::"r"(first) : "memory");
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];"
                 ::"r"(map_to(shared_address(slots + 32), 0)), "r"(first), "r"(value) : "memory");
  } else if (i & 1) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], 1;" ::"r"(first) : "memory");
  } else {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(first) : "memory");
  }
  unsigned seen = 0, sent = 0;
  if (rank == 0) {
    asm volatile("{.reg .pred p;\n"
                 "again%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra again%=;}"
                 ::"r"(barrier) : "memory");
    seen = slots[i], sent = slots[32];
  }
  unsigned* to = (unsigned*)out + (cta_of_grid() * 32 + i) * 2;
  to[0] = seen, to[1] = sent;
  MEET
}

// Every form of the cluster barrier, ten times, with a value that goes round.
GOLDEN(cluster_barriers) {
  __shared__ unsigned slots[2][64];
  const unsigned i = threadIdx.x, rank = rank_of_cta(), next = (rank + 1) % ctas_of_cluster();
  unsigned value = ((const unsigned*)in)[cta_of_grid() * 64 + i];
  for (int step = 0; step < 10; ++step) {
    slots[step & 1][i] = value;
    if (step % 3 == 0) {
      asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
    } else if (step % 3 == 1) {
      MEET
    } else {
      asm volatile("fence.acq_rel.cluster;" ::: "memory");
      asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    }
    unsigned other;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(other)
                 : "r"(map_to(shared_address(&slots[step & 1][(i + 1) & 63]), next)) : "memory");
    value = value * 3 + other;
  }
  MEET ((unsigned*)out)[cta_of_grid() * 64 + i] = value;
}

// Barriers of a block: all threads, named ones with counts, arrive apart from sync, and reductions over predicates.
GOLDEN(block_barriers) {
  __shared__ unsigned slots[256];
  const unsigned i = threadIdx.x, value = ((const unsigned*)in)[i];
  unsigned d[8];
  slots[i] = value;
  asm volatile("bar.sync 0;" ::: "memory");
  d[0] = slots[255 - i];
  asm volatile("barrier.sync.aligned 0, 256;" ::: "memory");
  if (i < 128) {
    slots[i] = value * 3;
    asm volatile("bar.sync 1, 128;" ::: "memory");
    d[1] = slots[127 - i];
    asm volatile("bar.arrive 2, 256;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 256;" ::: "memory");
    d[1] = slots[i - 128];
  }
  asm volatile("barrier.sync 3;" ::: "memory");
  const unsigned odd = value & 1, low = value != 0xFFFFFFFF;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; bar.red.popc.u32 %0, 0, p;}" : "=r"(d[2]) : "r"(odd) : "memory");
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, 0, p; selp.b32 %0, 1, 0, q;}"
               : "=r"(d[3]) : "r"(low) : "memory");
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 0, !p; selp.b32 %0, 1, 0, q;}"
               : "=r"(d[4]) : "r"(low) : "memory");
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.aligned.u32 %0, 4, 256, p;}" : "=r"(d[5]) : "r"(odd)
               : "memory");
  slots[i] = value + 1;
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
  d[6] = slots[i ^ 1];
  d[7] = __syncthreads_count(odd);
  for (int j = 0; j < 8; ++j) ((unsigned*)out)[i * 8 + j] = d[j];
}

// Fences, waits for other kernels, register counts, prefetches: none changes a result.
GOLDEN(no_effect) {
  __shared__ unsigned slots[128];
  const unsigned i = threadIdx.x;
  unsigned value = ((const unsigned*)in)[i];
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("nanosleep.u32 20;");
  asm volatile("prefetch.global.L2 [%0];" ::"l"(in));
  asm volatile("prefetchu.L1 [%0];" ::"l"(in));
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64;" ::"l"(in) : "memory");
  asm volatile("membar.cta;\nmembar.gl;\nmembar.sys;" ::: "memory");
  slots[i] = value;
  asm volatile("fence.acq_rel.cta;\nfence.acq_rel.gpu;\nfence.sc.gpu;\nfence.sc.sys;\nfence.sc.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;\nfence.proxy.async.global;\nfence.proxy.alias;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;\nfence.proxy.async.shared::cluster;" ::: "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\ncp.async.wait_all;" ::: "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
  asm volatile("wgmma.fence.sync.aligned;\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  __syncthreads();
  ((unsigned*)out)[i] = value + slots[(i + 5) & 127];
}

// A warpgroup gives up registers, and two take more.
extern "C" __global__ void __launch_bounds__(384, 1)
register_counts(const byte* in, byte* out, const __grid_constant__ Numbers n) {
  const unsigned i = threadIdx.x;
  unsigned value = ((const unsigned*)in)[i];
  if (i < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    value *= 3;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    value *= 5;
  }
  ((unsigned*)out)[i] = value;
}

// Address spaces: cvta both ways, isspacep, and sizes that the launch gave.
GOLDEN(addresses) {
  __shared__ unsigned slots[32];
  extern __shared__ unsigned dynamic[];
  const unsigned i = threadIdx.x;
  unsigned local[2] = {i, i + 1};
  unsigned d[10];
  slots[i] = i * 7;
  asm volatile("{.reg .pred p; isspacep.shared p, %1; selp.b32 %0, 1, 0, p;}" : "=r"(d[0]) : "l"(slots));
  asm volatile("{.reg .pred p; isspacep.global p, %1; selp.b32 %0, 1, 0, p;}" : "=r"(d[1]) : "l"(slots));
  asm volatile("{.reg .pred p; isspacep.global p, %1; selp.b32 %0, 1, 0, p;}" : "=r"(d[2]) : "l"(out));
  asm volatile("{.reg .pred p; isspacep.local p, %1; selp.b32 %0, 1, 0, p;}" : "=r"(d[3]) : "l"(local));
  asm volatile("{.reg .b64 s; cvta.to.shared.u64 s, %1; ld.shared.u32 %0, [s];}" : "=r"(d[4]) : "l"(slots + i) : "memory");
  asm volatile("{.reg .b64 s, g; cvta.to.shared.u64 s, %1; cvta.shared.u64 g, s; ld.u32 %0, [g];}" : "=r"(d[5]) : "l"(slots + i)
               : "memory");
  asm volatile("{.reg .b64 g; cvta.to.global.u64 g, %1; ld.global.u32 %0, [g+4];}" : "=r"(d[6]) : "l"(in) : "memory");
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(d[7]));
  asm volatile("{.reg .pred p; isspacep.shared::cluster p, %1; selp.b32 %0, 1, 0, p;}" : "=r"(d[8]) : "l"(dynamic));
  asm volatile("ld.local.u32 %0, [%1];" : "=r"(d[9]) : "l"(__cvta_generic_to_local(local + 1)) : "memory");
  for (int j = 0; j < 10; ++j) ((unsigned*)out)[i * 10 + j] = d[j];
}
