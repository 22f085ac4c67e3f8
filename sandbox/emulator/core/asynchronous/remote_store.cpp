// st.async: values stored into the shared memory of another CTA of the cluster, with bytes completed at an mbarrier there.
#include <cstring>
#include <utility>
#include <vector>

#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kTarget = address("target", Field::kA, Field::kP, Field::kImm);
constexpr Operand kMbarrier = address("mbarrier", Field::kC, Field::kQ);
constexpr Operand kValues = list("values", 8);
constexpr Operand kValueBytes = number("value_bytes", Field::kR);  // 4 or 8

// The stores of all lanes of one instruction, which complete together.
struct RemoteStores : Pending {
  using Pending::Pending;
  struct Store {
    u8* target = nullptr;
    MBarrier* barrier = nullptr;
    u8 data[16], taint[16];
  };
  Run* run = nullptr;
  std::vector<Store> stores;
  u32 bytes = 0, instruction = kNoInstruction;

  void complete() override {
    for (const Store& store : stores) {
      std::memcpy(store.target, store.data, bytes);
      if (run->options.taint) [[unlikely]]
        write_taint(*run, *cluster, store.target, bytes, store.taint, 0, kNoInstruction);
      store.barrier->transactions -= bytes;
      store.barrier->delivered_at = instruction;
      settle_phase(*run, *store.barrier);
    }
  }
};

void remote_store(Warp& warp, const Op& op, u32 mask) {
  auto work = std::make_shared<RemoteStores>(warp.cta->cluster);
  work->run = warp.run;
  work->bytes = op.count * kValueBytes(op);
  work->instruction = op.instruction;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    RemoteStores::Store store;
    store.barrier = mbarrier_at(warp, op, lane, shared_address(warp, op, kMbarrier, lane), true);
    if (!store.barrier || work->bytes > sizeof store.data) continue;
    Touch touch;
    touch.async = true;
    touch.epoch = {store.barrier->component, static_cast<u32>(store.barrier->phase) + 1};
    const u32 address = shared_address(warp, op, kTarget, lane);
    store.target = shared_at(warp, op, lane, address, work->bytes, Access::kWrite, nullptr, touch);
    if (!store.target) continue;
    for (u32 i = 0; i < op.count; ++i) {
      const u8* value = warp.registers + warp.run->program.lists[op.list + i] + static_cast<u32>(lane) * kValueBytes(op);
      std::memcpy(store.data + i * kValueBytes(op), value, kValueBytes(op));
      if (warp.run->options.taint) [[unlikely]]
        std::memcpy(store.taint + i * kValueBytes(op), value + warp.run->shadow_offset, kValueBytes(op));
    }
    work->stores.push_back(store);
  }
  if (!work->stores.empty()) warp.run->enqueue(std::move(work));
  ++warp.run->events;
}

}  // namespace

void register_remote_store(Registry& to) {
  to.add("st.async", remote_store, {kTarget, kMbarrier, kValues, kValueBytes},
         [](const OpRecord& op) { return (kValueBytes(op) == 4 || kValueBytes(op) == 8) && op.count <= 4; });
}

}  // namespace emulator
