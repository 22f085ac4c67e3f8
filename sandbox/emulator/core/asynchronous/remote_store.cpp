// st.async: values stored into the shared memory of another CTA of the cluster, with bytes completed at an mbarrier there.
#include <cstring>
#include <utility>

#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kTarget = address("target", Field::kA, Field::kP, Field::kImm);
constexpr Operand kMbarrier = address("mbarrier", Field::kC, Field::kQ);
constexpr Operand kValues = list("values", 8);
constexpr Operand kValueBytes = number("value_bytes", Field::kR);  // 4 or 8

struct RemoteStore : Pending {
  using Pending::Pending;
  Run* run = nullptr;
  u8* target = nullptr;
  MBarrier* barrier = nullptr;
  u8 data[16], taint[16];
  u32 bytes = 0;

  void complete() override {
    std::memcpy(target, data, bytes);
    if (run->options.taint) [[unlikely]]
      write_taint(*run, *cluster, target, bytes, taint, 0, kNoInstruction);
    barrier->transactions -= bytes;
    settle_phase(*run, *barrier);
  }
};

void remote_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, shared_address(warp, op, kMbarrier, lane), true);
    if (!barrier) continue;
    auto store = std::make_shared<RemoteStore>(warp.cta->cluster);
    store->bytes = op.count * kValueBytes(op);
    if (store->bytes > sizeof store->data) continue;
    Touch touch;
    touch.async = true;
    touch.epoch = {barrier->component, static_cast<u32>(barrier->phase) + 1};
    const u32 address = shared_address(warp, op, kTarget, lane);
    store->target = shared_at(warp, op, lane, address, store->bytes, Access::kWrite, nullptr, touch);
    if (!store->target) continue;
    for (u32 i = 0; i < op.count; ++i) {
      const u8* value = warp.registers + warp.run->program.lists[op.list + i] + static_cast<u32>(lane) * kValueBytes(op);
      std::memcpy(store->data + i * kValueBytes(op), value, kValueBytes(op));
      if (warp.run->options.taint) [[unlikely]]
        std::memcpy(store->taint + i * kValueBytes(op), value + warp.run->shadow_offset, kValueBytes(op));
    }
    store->run = warp.run;
    store->barrier = barrier;
    warp.run->enqueue(std::move(store));
  }
  ++warp.run->events;
}

}  // namespace

void register_remote_store(Registry& to) {
  to.add("st.async", remote_store, {kTarget, kMbarrier, kValues, kValueBytes},
         [](const OpRecord& op) { return (kValueBytes(op) == 4 || kValueBytes(op) == 8) && op.count <= 4; });
}

}  // namespace emulator
