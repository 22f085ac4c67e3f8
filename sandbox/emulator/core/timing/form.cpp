#include "timing/form.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace emulator {

Operand named(const Registered& entry, const char* name) {
  for (const Operand& operand : entry.operands) {
    if (std::string(operand.name) == name) return operand;
  }
  return {};
}

namespace {

bool starts(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

u32 bits_after(const std::string& name, const char* prefix) {
  return static_cast<u32>(std::stoul(name.substr(std::string(prefix).size()))) / 8;
}

// Multiply-adds of a shape as it is named, such as mma.m16n8k16, as many of f16 as take the same time on sm_80 and sm_90: a
// tensor core reads operands of up to 32 bits at one rate by bytes, and f64 at a sixteenth of the rate of f16.
u32 products_of(const std::string& name) {
  u32 product = 1, number = 0;
  for (const char each : name.substr(4, name.find('.', 4) - 4)) {
    if (each >= '0' && each <= '9') {
      number = 10 * number + static_cast<u32>(each - '0');
    } else {
      product *= std::max(number, 1u);
      number = 0;
    }
  }
  product *= std::max(number, 1u);
  const auto has = [&](const char* type) { return name.find(type) != std::string::npos; };
  return has(".f64.") ? 16 * product : has(".tf32.") ? 2 * product : has(".b8.") ? product / 2 : product;
}

Handled handled(const Registered& entry) {
  static const std::unordered_map<std::string, Form> kForms = {
      {"mbarrier.arrive", kArrival},
      {"mbarrier.expect", kArrival},
      {"cp.async.arrive", kCopyArrival},
      {"mbarrier.test.parity", kTest},
      {"mbarrier.test.state", kTest},
      {"cp.async.bulk.tensor.load", kTensorLoad},
      {"cp.async.bulk.load", kRangeLoad},
      {"cp.async.bulk.shared", kSharedCopy},
      {"cp.async.bulk.tensor.store", kTensorStore},
      {"cp.async.bulk.store", kRangeStore},
      {"cp.async.bulk.commit", kStoreCommit},
      {"cp.async.bulk.wait", kStoreWait},
      {"wgmma", kWgmma},
      {"wgmma.commit", kWgmmaCommit},
      {"wgmma.wait", kWgmmaWait},
      {"cp.async", kAsyncCopy},
      {"cp.async.commit", kCopyCommit},
      {"cp.async.wait", kCopyWait},
      {"bar.sync", kSync},
      {"bar.arrive", kBarArrive},
      {"barrier.cluster.arrive", kClusterArrive},
      {"barrier.cluster.wait", kClusterWait},
      {"fence", kAnyFence},
      {"fence.proxy.async", kAnyFence},
      {"griddepcontrol.wait", kWaitPreceding},
      {"griddepcontrol.launch_dependents", kTriggerNext},
      {"st.async", kRemote},
  };
  Handled made;
  const std::string& name = entry.name;
  if (const auto at = kForms.find(name); at != kForms.end()) made.form = at->second;
  if (starts(name, "mma.m")) made.form = kMma, made.bytes = products_of(name);
  if (starts(name, "ldmatrix.")) made.form = kLoadMatrix;
  if (starts(name, "stmatrix.")) made.form = kStoreMatrix;
  made.wide = name.ends_with("a64") || name.ends_with("u64");
  if (starts(name, "ld.")) made.form = kLoadOf, made.bytes = bits_after(name, "ld.u");
  if (starts(name, "st.b")) made.form = kStoreOf, made.bytes = bits_after(name, "st.b");
  if (starts(name, "atom.")) made.form = kAtomicOf;
  const char* second = made.form == kTensorLoad || made.form == kRangeLoad || made.form == kSharedCopy ? "ctas" : "generic";
  made.operands = {named(entry, "mbarrier"), named(entry, second), named(entry, "bytes"), named(entry, "threads")};
  return made;
}

}  // namespace

const std::vector<Handled>& all_handled() {
  static const std::vector<Handled> all = [] {
    std::vector<Handled> made;
    for (const Registered& entry : registry().all()) made.push_back(handled(entry));
    return made;
  }();
  return all;
}

}  // namespace emulator
