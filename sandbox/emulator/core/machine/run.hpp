// A run of one grid: how it is launched, under which options, and its state.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "machine/address_space.hpp"
#include "machine/cta.hpp"
#include "machine/program.hpp"
#include "order/report.hpp"

namespace emulator {

// A memory location by which warps synchronise, for the threads of one CTA, of one cluster, or of the device.
struct Publication {
  Scope scope;
  bool shared;
  u64 group;  // which CTA or cluster
  u64 address;
  auto operator<=>(const Publication&) const = default;
};

enum class Interleaving : u32 { kEager, kLatest, kRandom };

struct Launch {
  u32 grid[3], block[3], cluster[3];
  u32 dynamic_smem = 0;
  std::vector<u8> parameters;
  u32 sms = 132, warp_slots = 64;  // of the chip, and of one of its SMs
  // Launches that may still run before griddepcontrol.wait and after it: kRunningOthers, and a bit per launch of the plan by
  // its number. `number`: that of this launch, from 1 on.
  u32 running = 0, running_after = 0, number = 1;
};
constexpr u32 kRunningOthers = 1;  // kernels that precede the plan

struct Options {
  Interleaving interleaving = Interleaving::kLatest;
  u64 seed = 0;
  bool races = true;
  bool taint = false;         // with races: old contents are followed to their uses
  u8 poison = 0xFF;           // shared and local memory, and registers, before they are written
  u64 most_instructions = 0;  // of all warps together; 0: no limit
  double deadline_s = 0;      // wall-clock; 0: none
};

class Trace;

// One grid, from launch to end.
class Run {
 public:
  Run(const Program& program, const Launch& launch, const Options& options, std::vector<Buffer>& buffers,
      const std::vector<TensorMap>& maps, std::vector<u64> ctas, std::set<SuspectRead> poisoned);

  void execute();
  u64 random();
  // Queues asynchronous work; the eager interleaving executes it at once.
  void enqueue(std::shared_ptr<Pending> work);
  // Ends the run after the operation that is being executed.
  Finding* stop(const char* kind, const std::string& message);
  // Ends the run when its time is over; for work that takes long besides executing operations.
  void look_at_clock();

  const Program& program;
  const Launch& launch;
  const Options& options;
  std::vector<Buffer>& buffers;
  const std::vector<TensorMap>& maps;
  std::set<u32> map_parameters;  // offsets of the parameters that are tensor maps
  Trace* trace = nullptr;        // records the run, which then leaves out products
  Report report;
  std::set<SuspectRead> suspects;  // reads that later writes collided with
  std::set<SuspectRead> poisoned;  // reads that return poison
  u64 instructions = 0;
  u64 events = 0;          // anything that may unblock another warp
  u64 barrier_events = 0;  // those of them that change no memory: arrivals at barriers of a CTA
  u64 changes() const { return events - barrier_events; }
  bool hurried() const { return hurry_ == events; }
  u32 idle() const { return idle_; }
  // Whether it matters what happens before what: accesses are checked for it, or preceding kernels may still run.
  bool ordered() const { return options.races || launch.running; }
  bool progressed = false;            // a polling warp has changed its registers meanwhile
  bool waited = false, held = false;  // griddepcontrol: a CTA has waited; one has waited before it triggered the next launch
  u64 ctas_run = 0;
  bool stopped = false;  // deadlock, endless, too many faults
  u64 left = 0;          // operations of the turn that is being taken
  std::map<Publication, std::shared_ptr<const ForeignClocks>> published;
  u8 poison_bytes[128];      // the result of a read that is refused; longer than any instruction reads
  bool shadowing = false;    // a handler is executed on shadows: an address leads to the shadow of its memory
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
  // Adds the warps that have not ended to a finding, which gets the location of the first.
  void add_waiting(Finding& finding) const;
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
  std::size_t sweep_at_ = 1 << 12;  // size of pending_ at which completed work is removed
  bool whole_ = false;              // all CTAs of the grid are run
  double deadline_ = 0;             // on the steady clock
  u32 looks_ = 0;
  u64 state_;          // of the random generator
  u64 hurry_ = ~0ull;  // number of events at which polling warps no longer yield
  u32 idle_ = 0;       // rounds without an event in which no warp used up its turn
  u64 placing_ = 0;    // state of the generator of SM placements
  u32 placed_ = 0, stride_ = 1, last_sm_ = 0;
};

// The launches that may still run concurrently with a warp's present.
inline u32 running(const Warp& warp) {
  const Launch& launch = warp.run->launch;
  if (!launch.running) return 0;
  return warp.view.events.at(kDependencyComponent) ? launch.running_after : launch.running;
}

}  // namespace emulator
