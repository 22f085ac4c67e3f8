// One grid from launch to end: which clusters are resident, which warp has its turn, and when the run ends.
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "machine/machine.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

constexpr u64 kTurn = 1 << 16;      // operations of a warp per turn
constexpr u32 kRandomTurn = 192;    // maximum under random interleavings
constexpr u32 kRandomResident = 3;  // resident clusters under random interleavings
constexpr u32 kPatience = 40;   // rounds without progress before a deadlock is reported: more than a warp has groups of lanes
constexpr u32 kStale = 64;      // rounds without a change of memory, although warps arrive at barriers
constexpr u32 kSpinTurn = 512;  // minimum of operations of a polling warp while no other warp makes progress
constexpr u32 kSpins = 24;      // rounds without an event in which warps use up their turns, perhaps in waiting loops

// IEEE arithmetic during a run, whatever a library has set in this thread.
class FloatingEnvironment {
 public:
  FloatingEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kStandard); }
  ~FloatingEnvironment() { _mm_setcsr(before_); }
  FloatingEnvironment(const FloatingEnvironment&) = delete;

 private:
  static constexpr unsigned kStandard = 0x1F80;  // exceptions masked, nearest even, nothing flushed
  unsigned before_;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A window of 4 GiB for one space; `slot` selects a range of addresses.
u64 drawn_window(u64 slot) {
  std::random_device source;
  return (slot << 40) + (u64{source() % 128} << 32);
}

}  // namespace

u64 drawn(u64& state) {
  state += 0x9E3779B97F4A7C15ull;
  return mixed(mixed(0, state), state >> 32);
}

const u64 kSharedWindow = drawn_window(0x7F), kParamWindow = drawn_window(0x7E), kLocalWindow = drawn_window(0x7D);

Run::Run(const Program& program, const Launch& launch, const Options& options, std::vector<Buffer>& buffers,
         const std::vector<TensorMap>& maps, std::vector<u64> ctas, std::set<SuspectRead> poisoned)
    : program(program),
      launch(launch),
      options(options),
      buffers(buffers),
      maps(maps),
      poisoned(std::move(poisoned)),
      state_(options.seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {
  std::memset(poison_bytes, options.poison, sizeof poison_bytes);
  shadow_offset = emulator::shadow_offset(program);
  for (u32 at = 0; at + 2 * sizeof(u64) <= launch.parameters.size(); at += sizeof(u64)) {
    u64 word;
    std::memcpy(&word, launch.parameters.data() + at, sizeof word);
    if (word == kTensorMapMagic) map_parameters.insert(at);
  }
  const auto& grid = launch.grid;
  const auto& cluster = launch.cluster;
  const u64 width = grid[0] / cluster[0], height = grid[1] / cluster[1], depth = grid[2] / cluster[2];
  std::set<u64> wanted;
  for (u64 cta : ctas) {
    const u64 x = cta % grid[0] / cluster[0], y = cta / grid[0] % grid[1] / cluster[1],
              z = cta / grid[0] / grid[1] / cluster[2];
    wanted.insert((z * height + y) * width + x);
  }
  whole_ = ctas.empty();
  if (whole_) {
    const u64 count = width * height * depth;
    waiting_.reserve(count > kMaxCtas ? 0 : count);
    for (u64 index = count > kMaxCtas ? 0 : count; index > 0; --index) waiting_.push_back(static_cast<u32>(index - 1));
  } else {
    waiting_.assign(wanted.rbegin(), wanted.rend());
  }
  if (options.interleaving == Interleaving::kRandom) {
    for (std::size_t i = waiting_.size(); i > 1; --i) std::swap(waiting_[i - 1], waiting_[random() % i]);
  }
  placing_ = mixed(options.seed, static_cast<u64>(options.interleaving));
  placed_ = static_cast<u32>(drawn(placing_) % launch.sms);
  do stride_ = 1 + static_cast<u32>(drawn(placing_) % launch.sms);
  while (std::gcd(stride_, launch.sms) != 1);
}

u64 Run::random() {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return state_ * 0x2545F4914F6CDD1Dull >> 16;
}

void Run::enqueue(std::shared_ptr<Pending> work) {
  if (stopped) return;
  look_at_clock();
  if (options.interleaving != Interleaving::kEager) {
    pending_.push_back(std::move(work));
    if (pending_.size() >= sweep_at_) {
      std::erase_if(pending_, [](const auto& each) { return each->done; });
      sweep_at_ = std::max<std::size_t>(sweep_at_, 2 * pending_.size());
      if (pending_.size() >= kMaxPending) stop(detector::kUnsupported, "more than 65536 asynchronous operations in flight");
    }
    return;
  }
  work->done = true;
  work->complete();
}

Finding* Run::stop(const char* kind, const std::string& message) {
  stopped = true;
  instructions -= std::exchange(left, 0);  // counted as executed by its turn
  Finding* finding = report.open(kind, kNoInstruction, kNoInstruction, false);
  if (finding) finding->message = message;
  return finding;
}

void Run::stop_in_the_middle(const char* kind, const std::string& message) {
  if (Finding* finding = stop(kind, message)) add_waiting(*finding);
}

void Run::late() { stop_in_the_middle(detector::kDeadline, "the run did not end within its time"); }

void Run::look_at_clock() {
  constexpr u32 kLooks = 64;
  if (++looks_ % kLooks == 0 && now_s() > deadline_) late();
}

void count_issued(Warp& warp) {
  if (++warp.issued < kMaxIssued) return;
  std::size_t open = copies_in_flight(warp) + warp.open_products.size() + warp.open_stores.size();
  for (const auto& group : warp.product_groups) open += 1 + group.size();
  for (const StoreGroup& group : warp.store_groups) open += 1 + group.stores.size();
  warp.issued = open > kMaxIssued / 2 ? 0 : static_cast<u32>(open);
  if (open > kMaxIssued / 2)
    warp.run->stop(detector::kUnsupported, "a warp with more asynchronous work in flight than the emulator keeps");
}

// Memory of a cluster when it starts. Shadows grow with accesses.
u64 Run::cluster_bytes() const {
  const u64 threads = u64{launch.block[0]} * launch.block[1] * launch.block[2], warps = (threads + kLanes - 1) / kLanes;
  const u64 of_registers = u64{program.register_bytes} + u64{program.local_bytes} * kLanes;
  const u64 of_warp = of_registers * (options.taint ? 2 : 1) + program.register_bytes;
  const u64 of_cta = warps * of_warp + 8ull * (program.static_smem_end + launch.dynamic_smem);
  return of_cta * launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
}

void Run::execute() {
  const FloatingEnvironment standard;
  if (cluster_bytes() > kMaxClusterBytes) stop(detector::kUnsupported, "a cluster that takes more than 1 GiB");
  if (whole_ && waiting_.empty()) stop(detector::kUnsupported, "a grid of more than 2^24 CTAs");
  deadline_ = options.deadline_s > 0 ? now_s() + options.deadline_s : HUGE_VAL;
  // Rounds without an event; rounds since a warp last used up its turn or changed its registers; rounds without a change of
  // memory.
  u32 vain = 0, still = 0, stale = 0;
  while (!stopped) {
    if (options.interleaving == Interleaving::kRandom && resident_.size() < kRandomResident && random() % 4 == 0) admit();
    if (resident_.empty() && !admit()) break;
    const u64 before = events, changed = changes();
    progressed = false;
    const bool used_up = take_turns();
    retire();
    vain = events != before ? 0 : vain + 1;
    stale = changes() != changed ? 0 : stale + 1;
    idle_ = vain && !used_up ? idle_ + 1 : 0;
    still = idle_ && !progressed ? still + 1 : 0;
    if ((idle_ > 1 || vain > kSpins || stale > kStale) && unblock()) vain = stale = still = idle_ = 0;
    if (still > kPatience && trace && trace->release(*this)) vain = stale = still = idle_ = 0;
    if (still > kPatience && waiting_.empty()) report_deadlock();
    if (still > kPatience && !waiting_.empty())
      stop(detector::kUnsupported, "more CTAs wait for others than the emulator runs concurrently");
    if (idle_ > 2 * kPatience) hurry_ = events;
    if (!stopped && options.most_instructions && instructions > options.most_instructions) {
      stop_in_the_middle(detector::kEndless,
                         "the kernel did not end within " + std::to_string(options.most_instructions) + " operations of warps");
    }
  }
  pending_.clear();
}

// One turn of every warp; true if one used it up.
bool Run::take_turns() {
  bool used_up = false;
  const bool shuffle = options.interleaving == Interleaving::kRandom;
  if (shuffle && !pending_.empty() && random() % 2) complete_one();
  for (std::size_t i = 0; i < resident_.size() && !stopped; ++i) {
    for (Cta& cta : resident_[i]->ctas) {
      const std::size_t count = cta.warps.size(), first = shuffle ? random() % count : 0;
      for (std::size_t k = 0; k < count && !stopped; ++k) {
        Warp& warp = cta.warps[(first + k) % count];
        if (!warp.runnable()) continue;
        used_up = take_turn(warp, shuffle) || used_up;
        if (now_s() > deadline_) late();
      }
    }
  }
  return used_up;
}

// True if the warp used up its turn.
bool Run::take_turn(Warp& warp, bool shuffle) {
  u64 most = shuffle ? 4 + random() % kRandomTurn : kTurn;
  if (idle_ && warp.polls.spins) most = std::max<u64>(most, kSpinTurn);  // enough for an iteration
  const u64 executed = advance(warp, most);
  warp.polls.spins = warp.yielded;
  instructions += executed;
  return executed == most && !warp.yielded;
}

// Executes work that was deferred: an asynchronous operation, or the start of another cluster.
bool Run::unblock() { return complete_one() || admit(); }

bool Run::complete_one() {
  std::erase_if(pending_, [](const auto& work) { return work->done; });
  if (pending_.empty()) return false;
  const std::size_t at = options.interleaving == Interleaving::kRandom ? random() % pending_.size() : 0;
  const std::shared_ptr<Pending> work = pending_[at];
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(at));
  work->done = true;
  work->complete();
  ++events;
  return true;
}

bool Run::admit() {
  if (waiting_.empty() || (resident_.size() + 1) * cluster_bytes() > kMaxResidentBytes) return false;
  if (spare_.empty()) spare_.push_back(std::make_unique<Cluster>());
  resident_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  const u32 index = waiting_.back();
  waiting_.pop_back();
  start(*resident_.back(), index);
  ++events;
  return true;
}

void Run::retire() {
  for (std::size_t i = 0; i < resident_.size();) {
    if (resident_[i]->live_warps) {
      ++i;
      continue;
    }
    finish(*resident_[i]);
    spare_.push_back(std::move(resident_[i]));
    resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Reports what is still in flight when a cluster ends.
void Run::finish(Cluster& cluster) {
  ctas_run += cluster.ctas.size();
  for (const Cta& cta : cluster.ctas) held = held || (cta.waited && !cta.triggered);
  for (const auto& work : pending_) {
    if (work->cluster != &cluster || work->done) continue;
    work->done = true;
    if (Finding* finding = report.open(detector::kAsyncRace, kNoInstruction, kNoInstruction, false)) {
      finding->message = "the CTA ended while a bulk copy into its shared memory was in flight";
      std::copy(std::begin(cluster.ctas[0].id), std::end(cluster.ctas[0].id), finding->cta);
    }
  }
  for (Cta& cta : cluster.ctas) {
    for (const auto& [offset, barrier] : cta.mbarriers) {
      if (barrier.transactions == 0) continue;
      if (Finding* finding = report.open(detector::kTransactionMismatch, barrier.instruction, kNoInstruction, false)) {
        finding->message =
            "the kernel ended with " + std::to_string(barrier.transactions) + " expected bytes outstanding at the mbarrier";
        std::copy(std::begin(cta.id), std::end(cta.id), finding->cta);
        finding->address = offset;
      }
    }
  }
}

}  // namespace emulator
