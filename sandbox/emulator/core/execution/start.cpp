// The start of a cluster: its CTAs' memory and SMs, its warps and their registers.
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr u32 kSmemUnit = 128;  // of shared memory's allocation

// Special registers, which keep their values.
void set_special_registers(Warp& warp) {
  const Run& run = *warp.run;
  const Launch& launch = run.launch;
  const Cta& cta = *warp.cta;
  const Cluster& cluster = *cta.cluster;
  const auto& block = launch.block;
  const auto& grid = launch.grid;
  const auto& shape = launch.cluster;
  const u32 in_cluster[3] = {cta.rank % shape[0], cta.rank / shape[0] % shape[1], cta.rank / shape[0] / shape[1]};
  for (const SpecialSlot& special : run.program.specials) {
    u32* lanes = warp.lanes<u32>(special.slot);
    for (u32 lane = 0; lane < kLanes; ++lane) {
      const u32 thread = warp.index * kLanes + lane, which = special.which;
      // clang-format off
      const u32 values[kSpecials] = {
          thread % block[0], thread / block[0] % block[1], thread / block[0] / block[1],
          block[0], block[1], block[2],
          cta.id[0], cta.id[1], cta.id[2],
          grid[0], grid[1], grid[2],
          lane, cta.first_warp + warp.index, launch.warp_slots,
          in_cluster[0], in_cluster[1], in_cluster[2],
          shape[0], shape[1], shape[2],
          cta.rank, shape[0] * shape[1] * shape[2],
          cluster.id[0], cluster.id[1], cluster.id[2],
          grid[0] / shape[0], grid[1] / shape[1], grid[2] / shape[2],
          launch.dynamic_smem, (cta.smem_end - kSharedBase + kSmemUnit - 1) / kSmemUnit * kSmemUnit,
          1u << lane, (1u << lane) - 1, (2u << lane) - 1, ~((2u << lane) - 1), ~((1u << lane) - 1),
          cta.smid, launch.sms, shape[0] * shape[1] * shape[2] > 1};
      // clang-format on
      lanes[lane] = values[which];
    }
  }
}

// Slots that hold addresses in shared memory.
void set_symbols(Warp& warp) {
  for (const SymbolSlot& symbol : warp.run->program.symbols) {
    const u64 address = static_cast<u64>(warp.cta->rank) << kRankShift | symbol.offset;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (symbol.bytes == 4) {
        warp.lanes<u32>(symbol.slot)[lane] = static_cast<u32>(address);
      } else {
        warp.lanes<u64>(symbol.slot)[lane] = symbol.generic ? kSharedWindow + address : address;
      }
    }
  }
}

}  // namespace

void Run::start(Cluster& cluster, u32 index) {
  const auto& grid = launch.grid;
  const auto& shape = launch.cluster;
  const u32 width = grid[0] / shape[0], height = grid[1] / shape[1];
  const u32 size = shape[0] * shape[1] * shape[2];
  const u32 threads = launch.block[0] * launch.block[1] * launch.block[2];
  const u32 warps = (threads + kLanes - 1) / kLanes;
  cluster.run = this;
  cluster.index = index;
  cluster.id[0] = index % width;
  cluster.id[1] = index / width % height;
  cluster.id[2] = index / width / height;
  cluster.agents.assign(1, {AgentKind::kDependency, 0, 0});
  cluster.barrier_phase = cluster.barrier_arrived = 0;
  cluster.barrier_open.clear();
  cluster.barrier_done.clear();
  cluster.live_warps = size * warps;
  const std::size_t file = u64{shadow_offset} * (options.taint ? 2 : 1);
  cluster.register_files.assign(file * size * warps + kAlignment, options.poison);
  const auto address = reinterpret_cast<std::uintptr_t>(cluster.register_files.data());
  u8* registers = cluster.register_files.data() + (kAlignment - address % kAlignment) % kAlignment;
  cluster.ctas.resize(size);
  for (u32 rank = 0; rank < size; ++rank) {
    Cta& cta = cluster.ctas[rank];
    cta.cluster = &cluster;
    cta.rank = rank;
    cta.id[0] = cluster.id[0] * shape[0] + rank % shape[0];
    cta.id[1] = cluster.id[1] * shape[1] + rank / shape[0] % shape[1];
    cta.id[2] = cluster.id[2] * shape[2] + rank / shape[0] / shape[1];
    cta.linear = (static_cast<u64>(cta.id[2]) * grid[1] + cta.id[1]) * grid[0] + cta.id[0];
    cta.smem_end = program.static_smem_end + launch.dynamic_smem;
    cta.smem.assign(cta.smem_end + 16, options.poison);
    if (options.races) cta.shadow.reset(cta.smem_end + 16);
    if (options.taint) cta.taint.assign(cta.smem_end + 16, 0xFF);
    for (NamedBarrier& barrier : cta.barriers) barrier = NamedBarrier();
    cta.mbarriers.clear();
    cta.found = nullptr;
    cta.invalidated.clear();
    cta.remote.clear();
    cta.live_warps = warps;
    cta.waited = cta.triggered = false;
    place(cta, warps);
    cta.warps.clear();
    cta.warps.resize(warps);
    for (u32 i = 0; i < warps; ++i) {
      cta.warps[i].registers = registers;
      registers += file;
      start(cta.warps[i], cta, i);
    }
  }
}

// The SM and the warps' slots there. CTAs take the SMs in turn. Under random interleavings some share an SM with the CTA
// before, and their first slot is random.
void Run::place(Cta& cta, u32 warps) {
  const bool random = options.interleaving == Interleaving::kRandom;
  const u64 draw = drawn(placing_);
  if (!random || draw % 4) {
    last_sm_ = placed_;
    placed_ = static_cast<u32>((u64{placed_} + stride_) % launch.sms);
  }
  cta.smid = last_sm_;
  const u32 room = launch.warp_slots > warps ? launch.warp_slots - warps : 0;
  cta.first_warp = random ? static_cast<u32>(draw >> 8) % (room / 4 + 1) * 4 : 0;
}

void Run::start(Warp& warp, Cta& cta, u32 index) {
  Cluster& cluster = *cta.cluster;
  const auto& block = launch.block;
  const u32 threads = block[0] * block[1] * block[2];
  warp.run = this;
  warp.cta = &cta;
  warp.index = index;
  warp.component = static_cast<u32>(cluster.agents.size());
  for (AgentKind kind : {AgentKind::kWarp, AgentKind::kCopies, AgentKind::kProducts, AgentKind::kStores}) {
    cluster.agents.push_back({kind, cta.rank, index});
  }
  const u32 left = threads - index * kLanes;
  warp.live = left >= kLanes ? kAllLanes : (1u << left) - 1;
  warp.register_dirty.assign(program.register_bytes / 32 + 1, 0);
  warp.sums_written.assign(program.register_bytes / 32 + 1, 0);
  warp.products_writing.assign(program.register_bytes / 32 + 1, 0);
  warp.products_reading.assign(program.register_bytes / 32 + 1, 0);
  warp.local.assign(static_cast<std::size_t>(program.local_bytes) * kLanes, options.poison);
  std::copy(program.constants.begin(), program.constants.end(), warp.registers);
  if (!launch.running) warp.view.events.set(kDependencyComponent, 1);
  set_special_registers(warp);
  set_symbols(warp);
  if (options.taint) start_taint(warp);
}

}  // namespace emulator
