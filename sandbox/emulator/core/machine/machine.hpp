// The emulated machine: warps in CTAs in clusters, and the run that drives them.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "op.hpp"
#include "order/clock.hpp"
#include "order/report.hpp"
#include "order/shadow.hpp"
#include "taint/taint.hpp"

namespace emulator {

struct Cta;
struct Cluster;
struct Pending;
class Run;

// ---- program ----------------------------------------------------------------------------------------------------------------
// What a slot of a warp's register file is set to when its CTA starts.
struct SpecialSlot {
  u32 slot;
  u32 which;  // Special
};
// clang-format off
enum Special : u32 {
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ, kLaneId, kWarpId,
  kNwarpId, kClusterCtaidX, kClusterCtaidY, kClusterCtaidZ, kClusterNctaidX, kClusterNctaidY, kClusterNctaidZ,
  kClusterCtarank, kClusterNctarank, kClusteridX, kClusteridY, kClusteridZ, kNclusteridX, kNclusteridY, kNclusteridZ,
  kDynamicSmemSize, kTotalSmemSize, kLanemaskEq, kLanemaskLt, kLanemaskLe, kLanemaskGt, kLanemaskGe, kSmid, kNsmid,
  kIsExplicitCluster,
  kSpecials
};
// clang-format on
struct SymbolSlot {
  u32 slot;
  u32 bytes;   // a lane: 4 or 8
  u32 offset;  // in shared memory
  bool generic;
};

struct Program {
  std::vector<Op> ops;
  std::vector<u32> lists;
  std::vector<u8> constants;  // the beginning of every warp's register file
  u32 register_bytes = 0;
  std::vector<SpecialSlot> specials;
  std::vector<SymbolSlot> symbols;
  u32 static_smem_end = 0;  // offset behind static shared memory, where dynamic shared memory begins
  u32 parameter_bytes = 0;
  u32 local_bytes = 0;                                          // a lane
  std::vector<std::vector<u32>> tracked_reads, tracked_writes;  // by op: slots of a wgmma's registers that it touches
};

// ---- memory -----------------------------------------------------------------------------------------------------------------
// Addresses. Shared memory has 32-bit addresses, CTA rank in the upper 8 bits, and starts behind the kilobyte that the system
// keeps; generic addresses of the other spaces lie in windows of their own.
constexpr u32 kSharedBase = 1024;
constexpr u32 kRankShift = 24;
constexpr u32 kOffsetMask = (1u << kRankShift) - 1;
constexpr u64 kWindow = 1ull << 32;
// Where the windows lie is drawn when the process starts, as a driver does: no kernel can tell the emulator by them.
extern const u64 kSharedWindow, kParamWindow, kLocalWindow;

enum Space : u32 { kGeneric, kGlobal, kShared, kParam, kLocal, kConst };

struct Buffer {
  std::string name;
  u64 base = 0, size = 0;
  u8* host = nullptr;
  bool writable = false;
  bool constant = false;  // part of the program: no kernel ahead can have written it
  std::unique_ptr<GlobalShadow> shadow;
  u64 written_bytes = 0;  // that hold something before the first kernel
  std::unique_ptr<GlobalTaint> taint;
};

// A tensor map as the plan describes it; kernels see 128 opaque bytes that begin with a magic number and an index.
constexpr u64 kTensorMapMagic = 0x70616D726F736E74ull;
struct TensorMap {
  u32 rank = 0, element_bytes = 0, swizzle = 0;  // swizzle: 0, 32, 64, 128 bytes
  u32 type = 0;                                  // TensorType
  u64 address = 0;
  u64 sizes[5] = {}, strides[5] = {};  // strides in bytes, [0] is the element's
  u32 box[5] = {}, element_strides[5] = {};
  bool nan_fill = false;
};
enum TensorType : u32 { kTypeU8, kTypeU16, kTypeU32, kTypeI32, kTypeU64, kTypeI64, kTypeF16, kTypeF32, kTypeF64, kTypeBf16 };

// ---- execution --------------------------------------------------------------------------------------------------------------
// A component of a cluster's clocks.
enum class AgentKind : u8 { kDependency, kWarp, kCopies, kProducts, kStores, kBarrier };
struct Agent {
  AgentKind kind;
  u32 cta, warp;  // rank in the cluster, index in the CTA
};
// Component 0 stands for the kernels that this one depends on. Every warp has four components, in the order above; mbarriers
// get theirs when they are initialised.
constexpr u32 kDependencyComponent = 0;

// A copy by cp.async that has been issued; its source was read then.
struct LaneCopy {
  u32 address;  // shared
  u32 bytes;
  u32 lane;
  u8 data[16];
  u32 taint = 0;  // see keep_taint
};
struct CopyGroup {
  u32 lanes = 0;  // that have committed it and not waited for it
  u32 number = 0;
  std::vector<LaneCopy> copies;
};

// A wgmma that one warp has issued; it is executed when the four warps of the warpgroup have.
struct Product {
  const Op* op = nullptr;
  u64 a = 0, b = 0;  // descriptors; a is unused where A lies in registers
  bool accumulate = false;
};

// Bulk copies that read shared memory, kept until the lane that issued them waits for their group.
struct Pending;
struct BulkStore {
  u32 lane;
  const Op* op;  // that issued it
  std::shared_ptr<Pending> work;
};
struct StoreGroup {
  u32 lanes = 0;  // that have committed it
  u32 number = 0;
  bool done = false;
  std::vector<BulkStore> stores;
};

// Reads of memory that a warp repeats while nothing changes: the loops in which it waits for others (progress.cpp).
struct Poll {
  const Op* op = nullptr;
  u64 seen = 0;     // addresses and values
  u64 changes = 0;  // of the run at that time
  u64 state = 0;    // registers and local memory when it gave its turn away, 0: never
};
struct Polls {
  static constexpr u32 kKept = 4;
  Poll kept[kKept];
  u32 oldest = 0;
  bool spins = false;  // gave its last turn away in such a loop
};

struct Warp {
  Run* run = nullptr;
  Cta* cta = nullptr;
  u8* registers = nullptr;
  u32 index = 0;      // in the CTA
  u32 component = 0;  // in the cluster's clocks
  u32 live = 0;       // lanes that have not exited
  u32 blocked = 0;    // lanes that wait at a barrier
  bool converged = true;
  u32 pc = 0;  // of all lanes while converged
  u32 lane_pc[kLanes] = {};
  u32 moment = 1;                            // operations executed, plus one: the value of its own component
  bool waiting = false;                      // set by a kWaiting handler that cannot go on: it is executed again later
  bool yielded = false;                      // set by a handler after which others should have a turn (a failed try_wait)
  u32 vain = 0;                              // turns taken in vain; lets diverged lanes take turns
  Knowledge knows;                           // what some lane of it knows
  u32 met[kAgentsPerWarp] = {0, 0, ~0u, 0};  // by OwnAgent: up to which event its lanes are in order; products are the warp's
  u32 informed = 0;                          // lanes that know more than `common`; 0: all know the same
  Clock common;                              // what the others know of other warps

  std::vector<LaneCopy> open_copies;
  std::deque<CopyGroup> copy_groups;
  u32 copy_number = 0;                                  // of the last committed group
  std::vector<std::shared_ptr<Pending>> copy_arrivals;  // copies that tell an mbarrier when they are done

  std::vector<Product> open_products;
  std::deque<std::vector<Product>> product_groups;
  u32 product_number = 0;                               // of the last committed group
  std::vector<u8> register_dirty;                       // by slot / 32: touched since the last wgmma.fence
  std::vector<u16> products_writing, products_reading;  // by slot / 32: unfinished wgmmas that do
  std::vector<u8> sums_written;                         // by slot / 32: by all lanes, as far as is noted
  bool product_fenced = false;

  std::vector<BulkStore> open_stores;
  std::deque<StoreGroup> store_groups;
  u32 store_number = 0;

  u32 cluster_arrived = 0;  // lanes that have arrived at barrier.cluster and not waited yet
  u64 cluster_phase = 0;    // that they arrived in
  std::vector<u8> local;    // lane after lane
  std::vector<u8> local_taint;
  std::vector<CopyTaint> copy_taints;  // of copies by cp.async
  u32 issued = 0;                      // see count_issued
  u64 local_changes = 0;               // stores that changed its local memory
  Polls polls;

  template <typename T>
  T* lanes(u32 slot) {
    return reinterpret_cast<T*>(__builtin_assume_aligned(registers + slot, 32));
  }
  u32& mask(u32 slot) { return *reinterpret_cast<u32*>(registers + slot); }
  u32 runnable() const { return live & ~blocked; }
  u32 copies() const { return component + kOwnCopies; }
  u32 products() const { return component - index % 4 * kAgentsPerWarp + kOwnProducts; }  // of the warpgroup
  u32 stores() const { return component + kOwnStores; }
  // What it knows at this moment, its own doings included: what synchronisation passes on.
  const Knowledge& now() {
    knows.events.set(component, moment);
    return knows;
  }
  // Lanes hear what a barrier passes on. What it has heard from this very warp, all lanes of it are behind now.
  void learn(const Knowledge& told, u32 lanes) {
    for (u32 agent : {kOwnWarp, kOwnCopies, kOwnStores}) met[agent] = std::max(met[agent], told.events.at(component + agent));
    const bool all = (lanes & live) == live;
    if (all && informed) common.join(told.events);
    if (!all && !informed) common = knows.events;
    if (!all) informed |= lanes;
    if ((informed & live) == live) informed = 0;
    knows.join(told);
  }
  // All lanes of it hear of what is no barrier.
  void hear(const Clock& events) {
    knows.events.join(events);
    if (informed) common.join(events);
  }
  void hear(u32 agent, u32 value) {
    knows.events.raise(agent, value);
    if (informed) common.raise(agent, value);
  }
  // Lanes meet: what one of them knows, they all do.
  void meet(u32 lanes) {
    const Clock& events = now().events;
    for (u32 agent : {kOwnWarp, kOwnCopies, kOwnStores}) met[agent] = events.at(component + agent);
    if (informed & lanes) informed |= lanes;
    if ((informed & live) == live) informed = 0;
  }
};

struct NamedBarrier {
  bool open = false;  // somebody has arrived
  u32 expected = 0;   // threads, as the first to arrive says; 0: all of the CTA
  u32 arrived = 0;
  u32 holding = 0;  // arrived lanes whose predicate held, for bar.red
  Knowledge gathered;
  struct Waiting {
    Warp* warp;
    u32 lanes;
    const Op* op;
  };
  std::vector<Waiting> waiting;
};

struct MBarrier {
  u32 component = 0;
  u32 expected = 0, pending = 0;
  u64 phase = 0;
  i64 transactions = 0;  // bytes announced and not delivered yet
  Epoch initialised;
  Knowledge open, done;              // what arrivals of this phase, and of the phases before, have published
  u32 instruction = kNoInstruction;  // that initialised it
};

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0;
  u32 id[3] = {};
  u64 linear = 0;
  u32 smem_end = 0;                        // offset behind its shared memory
  u32 smid = 0, first_warp = 0;            // the SM that it runs on, and its first warp's place there
  bool waited = false, triggered = false;  // griddepcontrol: some thread waited; one let the next launch start before that
  std::vector<u8> smem, taint;
  SharedShadow shadow;
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  std::map<u32, MBarrier> mbarriers;                            // by offset
  std::vector<std::map<u32, MBarrier>::node_type> invalidated;  // mbarriers that asynchronous work may still complete on
  u32 live_warps = 0;
};

struct Cluster {
  Run* run = nullptr;
  u32 index = 0;  // linear, in the grid
  u32 id[3] = {};
  std::vector<Cta> ctas;
  std::vector<u8> register_files;
  std::vector<Agent> agents;  // by component
  u64 barrier_phase = 0;
  u32 barrier_arrived = 0;  // lanes
  Knowledge barrier_open, barrier_done;
  u32 live_warps = 0;
};

// Work that an asynchronous engine has been given and not done yet.
struct Pending {
  explicit Pending(Cluster* cluster) : cluster(cluster) {}
  virtual ~Pending() = default;
  virtual void complete() = 0;
  Cluster* cluster;
  bool done = false;
};

// A place in memory that warps synchronise by: to those of one CTA, of one cluster, or to all.
struct Publication {
  Scope scope;
  bool shared;
  u64 group;  // which CTA or cluster
  u64 address;
  auto operator<=>(const Publication&) const = default;
};

enum class Schedule : u32 { kEager, kLatest, kRandom };

struct Launch {
  u32 grid[3], block[3], cluster[3];
  u32 dynamic_smem = 0;
  std::vector<u8> parameters;
  u32 sms = 132, warp_slots = 64;  // of the chip, and of one of its SMs
  // Launches that may still run, before griddepcontrol.wait and after it: kRunningOthers, and a bit for each of the plan's by
  // its number. `number`: this one's, from 1 on.
  u32 running = 0, running_after = 0, number = 1;
};
constexpr u32 kRunningOthers = 1;  // kernels ahead of the whole plan

struct Options {
  Schedule schedule = Schedule::kLatest;
  u64 seed = 0;
  bool races = true;
  bool taint = false;         // with races: old contents are followed to where they arrive
  u8 poison = 0xFF;           // shared and local memory, and registers, before they are written
  u64 most_instructions = 0;  // of all warps together; 0: no limit
  double deadline_s = 0;      // wall-clock; 0: none
};

// One grid, from launch to end.
class Run {
 public:
  Run(const Program& program, const Launch& launch, const Options& options, std::vector<Buffer>& buffers,
      const std::vector<TensorMap>& maps, std::vector<u64> ctas, std::set<SuspectRead> poisoned);

  void execute();
  u64 random();
  // Queues work of an engine; done at once under the eager schedule.
  void enqueue(std::shared_ptr<Pending> work);
  // Ends the run behind the operation that is being executed.
  Finding* stop(const char* kind, const std::string& message);
  // Ends it where its time is over: for what takes long beside executing operations.
  void look_at_clock();

  const Program& program;
  const Launch& launch;
  const Options& options;
  std::vector<Buffer>& buffers;
  const std::vector<TensorMap>& maps;
  Report report;
  std::set<SuspectRead> suspects;  // reads that later writes collided with
  std::set<SuspectRead> poisoned;  // reads to be given poison
  u64 instructions = 0;
  u64 events = 0;    // anything that may let somebody else go on
  u64 meetings = 0;  // those of them that are no change of memory: arrivals at barriers of a CTA
  u64 changes() const { return events - meetings; }
  bool hurried() const { return hurry_ == events; }
  u32 idle() const { return idle_; }
  bool restless = false;              // a warp that polls has changed its registers meanwhile
  bool waited = false, held = false;  // griddepcontrol: a CTA has waited; one has before it let the next launch start
  u64 ctas_run = 0;
  bool stopped = false;  // no use going on: deadlock, endless, too many faults
  u64 left = 0;          // operations of the turn that is being taken
  std::map<Publication, std::shared_ptr<const ForeignClocks>> published;
  u8 poison_bytes[128];      // what a read gives that must not be made: more of it than an instruction reads
  bool shadowing = false;    // a handler is executed on shadows: addresses lead to the shadow of what is there
  u32 shadow_offset = 0;     // of a register's shadow behind it
  u8 clean_bytes[128] = {};  // shadow of what is never old

 private:
  bool admit();
  bool complete_one();
  bool take_turns();
  bool unblock();
  void retire();
  void finish(Cluster& cluster);
  void stop_in_the_middle(const char* kind, const std::string& message);
  void report_deadlock();
  void tell_whereabouts(Finding& finding) const;
  void report_missing_transactions();
  u64 cluster_bytes() const;
  void late();
  void start(Cluster& cluster, u32 index);
  void start(Warp& warp, Cta& cta, u32 index);
  void place(Cta& cta, u32 warps);
  bool take_turn(Warp& warp, bool shuffle);

  std::vector<u32> waiting_;  // indices of clusters still to run, the next one last
  std::vector<std::unique_ptr<Cluster>> resident_;
  std::vector<std::unique_ptr<Cluster>> spare_;  // storage of clusters that have ended
  std::vector<std::shared_ptr<Pending>> pending_;
  std::size_t sweep_at_ = 1 << 12;  // pending_ is rid of what is done when it has grown to this
  bool whole_ = false;              // all CTAs of the grid are run
  double deadline_ = 0;             // on the steady clock
  u32 looks_ = 0;
  u64 state_;          // of the random generator
  u64 hurry_ = ~0ull;  // events at which polling warps no longer give their turns away
  u32 idle_ = 0;       // rounds without an event in which nobody used up a turn
  u64 placing_ = 0;    // state of the generator of places
  u32 placed_ = 0, stride_ = 1, last_sm_ = 0;
};

// The launches that may still run beside what a warp does now.
inline u32 running(const Warp& warp) {
  const Launch& launch = warp.run->launch;
  if (!launch.running) return 0;
  return warp.knows.events.at(kDependencyComponent) ? launch.running_after : launch.running;
}

// progress.cpp: a read that may be repeated until another agent changes what it reads; sets warp.yielded where it is.
// `seen`: a hash of what was read.
void note_poll(Warp& warp, const Op& op, u64 seen);
inline u64 mixed(u64 state, u64 value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  return state ^ state >> 29;
}

// ---- limits -----------------------------------------------------------------------------------------------------------------
// Past them a kernel is unsupported: without them a short loop could take all memory there is.
constexpr u64 kMostCtas = 1 << 24;              // of a grid that is run whole
constexpr u64 kMostClusterBytes = 1ull << 30;   // what a cluster takes when it starts
constexpr u64 kMostResidentBytes = 1ull << 31;  // the same of all under way
constexpr std::size_t kMostAgents = 1 << 13;    // of a cluster: its warps' and every mbarrier that was ever initialised
constexpr std::size_t kMostPending = 1 << 16;   // asynchronous operations under way together
constexpr u32 kMostIssued = 1 << 18;            // copies, products, stores and groups of them that a warp has not waited for
constexpr std::size_t kMostSuspects = 1 << 20;
constexpr std::size_t kMostPublished = 1 << 20;

// A warp has issued asynchronous work that it must wait for; ends the run where that is too much.
void count_issued(Warp& warp);

// interpreter.cpp: executes a warp until it ends, waits, or has had its turn of `most` operations; returns how many it
// executed.
u64 advance(Warp& warp, u64 most);

// ---- reporting --------------------------------------------------------------------------------------------------------------
// Notes a fault of this warp at this operation; `lanes` are those concerned.
void report(Warp& warp, const Op& op, u32 lanes, const char* kind, u64 address, const std::string& message,
            u32 other = kNoInstruction, bool suspect = false);

// ---- memory access (memory.cpp) ---------------------------------------------------------------------------------------------
// All return host memory of `bytes` bytes for one lane, or null after a report. Accesses are checked for bounds, alignment,
// permission and, where the run looks for races, ordering; `poison` is set where the value read must be replaced by poison.
struct Touch {
  bool strong = false;    // atomic, volatile, relaxed or stronger
  bool async = false;     // through the async proxy
  bool together = false;  // by all lanes of the warp, not by the one that gives the address
  Epoch epoch{};          // of the asynchronous agent that does it; the warp itself where its value is 0
};
u8* shared_at(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
u8* global_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
// By space; generic addresses find their window.
u8* memory_at(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes, Access access, bool* poison,
              const Touch& touch = {});
// Notes that an atomic is about to read what nobody has written; places that are not there are left to the access itself.
void note_combined(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes);
// A range of shared memory of any size, without alignment rules; null where it is out of bounds.
u8* shared_range(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch);
// The warp acquires what others have published, whether they waited for the kernels ahead included.
void hear_wait(Warp& warp, const ForeignClocks& heard);
// The CTA that a shared address belongs to; null where the cluster has none of that rank.
Cta* cta_of(Warp& warp, u32 address);
// The buffer that holds an address, null where none does.
Buffer* buffer_at(Run& run, u64 address);

// What an access to memory that others may wait on passes on, besides its value. The address is a global one, or a shared
// one (space kShared), or generic.
enum Semantics : u32 { kWeak, kRelaxed, kAcquire, kRelease, kAcquireRelease };
struct MemoryOrder {
  Semantics semantics;
  Scope scope;
  bool acquires() const { return semantics == kAcquire || semantics == kAcquireRelease; }
  bool releases() const { return semantics == kRelease || semantics == kAcquireRelease; }
};
void synchronise(Warp& warp, Space space, u64 address, MemoryOrder order, bool writes);

inline u64 lane_address(Warp& warp, u32 slot, u32 slot_bytes, int lane) {
  return slot_bytes == 4 ? warp.lanes<u32>(slot)[lane] : warp.lanes<u64>(slot)[lane];
}
// Whether `mask` is the whole warp's live lanes; reports "divergent" where it is not.
bool require_whole_warp(Warp& warp, const Op& op, u32 mask);

// ---- mbarriers (barrier.cpp), for what completes on them --------------------------------------------------------------------
// The mbarrier at a shared address; null after a report. `async`: it is signalled through the async proxy.
MBarrier* mbarrier_at(Warp& warp, const Op& op, int lane, u32 address, bool async);
// Bytes have arrived, or lanes; completes the phase where nothing is outstanding.
void settle_phase(Run& run, MBarrier& barrier);

// ---- the warp's end ---------------------------------------------------------------------------------------------------------
void finish_copies(Warp& warp);              // copy.cpp
void finish_stores(Warp& warp);              // bulk.cpp
void finish_products(Warp& warp);            // wgmma.cpp: reports what was never waited for
void leave_barriers(Warp& warp, u32 lanes);  // barrier.cpp: lanes that exit no longer keep others waiting
// wgmma.cpp: an operation touches registers that a wgmma uses.
void note_tracked(Warp& warp, const Op& op, u32 index);

}  // namespace emulator
