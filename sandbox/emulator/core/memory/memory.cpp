// Memory as kernels address it: windows, bounds, permissions, and the record of accesses.
#include <cstdio>

#include "machine/machine.hpp"

namespace emulator {

namespace {

std::string hex(u64 value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

bool is_poisoned(Warp& warp) {
  return !warp.run->poisoned.empty() && warp.run->poisoned.count({static_cast<u32>(warp.cta->linear), warp.index, warp.moment});
}

Toucher toucher(Warp& warp, const Op& op, int lane, const Touch& touch) {
  const Epoch epoch = touch.epoch.value ? touch.epoch : Epoch{warp.component, warp.moment};
  const bool behind = warp.ahead && (touch.together || !(warp.ahead >> lane & 1));
  Toucher made;
  made.epoch = epoch;
  made.self = warp.component;
  made.moment = warp.moment;
  made.lane = touch.together ? kTogether : static_cast<u8>(lane);
  made.ordered = warp.ordered;
  made.events = behind ? &warp.common : &warp.view.events;
  made.view = &warp.view;
  made.streams = &warp.copy_streams;
  made.copied = touch.together ? 0 : warp.copied[lane];
  made.instruction = op.instruction;
  made.async = touch.async;
  made.strong = touch.strong;
  return made;
}

u8* out_of_shared(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access) {
  const i64 offset = static_cast<i64>(address & kOffsetMask) - kSharedBase;
  report(warp, op, 1u << lane, detector::kSharedOutOfBounds, address,
         std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of " +
             std::to_string(warp.cta->smem_end - kSharedBase) + " bytes of shared memory");
  return nullptr;
}

u8* misaligned(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access) {
  report(warp, op, 1u << lane, detector::kMisaligned, address,
         std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at " + hex(address));
  return nullptr;
}

u8* local_at(Warp& warp, const Op& op, int lane, u64 offset, u32 bytes, Access access) {
  const u64 size = warp.run->program.local_bytes;
  if (offset > size || bytes > size - offset) {
    report(warp, op, 1u << lane, detector::kLocalOutOfBounds, offset,
           std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of " +
               std::to_string(size) + " bytes of local memory");
    return nullptr;
  }
  if (offset % bytes) return misaligned(warp, op, lane, offset, bytes, access);
  return (warp.run->shadowing ? warp.local_taint : warp.local).data() + lane * size + offset;
}

u8* param_at(Warp& warp, const Op& op, int lane, u64 offset, u32 bytes, Access access) {
  const auto& parameters = warp.run->launch.parameters;
  if (access == Access::kWrite || offset > parameters.size() || bytes > parameters.size() - offset) {
    report(warp, op, 1u << lane, detector::kParamOutOfBounds, offset,
           std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of " +
               std::to_string(parameters.size()) + " bytes of parameters");
    return nullptr;
  }
  if (warp.run->shadowing) return warp.run->clean_bytes;
  const auto& maps = warp.run->map_parameters;
  const auto map = maps.lower_bound(static_cast<u32>(offset < kTensorMapBytes ? 0 : offset - kTensorMapBytes + 1));
  if (map != maps.end() && *map < offset + bytes) {
    report(warp, op, 1u << lane, detector::kTensorMap, offset, "read of the bytes of a tensor map, which are opaque");
    return nullptr;
  }
  return const_cast<u8*>(parameters.data()) + offset;
}

}  // namespace

void report(Warp& warp, const Op& op, u32 lanes, const char* kind, u64 address, const std::string& message, u32 other,
            bool suspect) {
  warp.run->look_at_clock();
  Finding* finding = warp.run->report.open(kind, op.instruction, other, suspect);
  if (!finding) return;
  finding->message = message;
  std::copy(std::begin(warp.cta->id), std::end(warp.cta->id), finding->cta);
  finding->warp = warp.index;
  finding->lanes = lanes;
  finding->address = address;
}

void report_out_of_global(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, const char* what) {
  std::string message = std::string(what) + " of " + std::to_string(bytes) + " bytes";
  const Buffer* nearest = nullptr;
  u64 distance = ~0ull;
  for (const Buffer& buffer : warp.run->buffers) {
    const u64 end = buffer.base + buffer.size;
    const u64 away = address < buffer.base ? buffer.base - address : address - std::min(address, end);
    if (away < distance) {
      distance = away;
      nearest = &buffer;
    }
  }
  if (nearest && address < nearest->base) {
    message += ", " + std::to_string(distance) + " bytes before " + nearest->name;
  } else if (nearest && address + bytes > nearest->base + nearest->size) {
    message += ", from byte " + std::to_string(address - nearest->base) + " of " + nearest->name + ", which has " +
               std::to_string(nearest->size);
  }
  report(warp, op, 1u << lane, detector::kGlobalOutOfBounds, address, message);
}

Cta* cta_of(Warp& warp, u32 address) {
  const u32 rank = address >> kRankShift;
  if (rank == warp.cta->rank) return warp.cta;
  std::vector<Cta>& ctas = warp.cta->cluster->ctas;
  return rank < ctas.size() ? &ctas[rank] : nullptr;
}

Buffer* buffer_at(Run& run, u64 address) {
  for (Buffer& buffer : run.buffers) {
    if (address - buffer.base < buffer.size) return &buffer;
  }
  return nullptr;
}

u8* shared_range(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch) {
  Cta* cta = cta_of(warp, address);
  const u32 offset = address & kOffsetMask;
  if (!cta || offset < kSharedBase || offset > cta->smem_end || bytes > cta->smem_end - offset) {
    return out_of_shared(warp, op, lane, address, bytes, access);
  }
  if (cta != warp.cta && !cta->live_warps) {
    report(warp, op, 1u << lane, detector::kClusterExit, address,
           std::string(verb(access)) + " of shared memory of CTA rank " + std::to_string(cta->rank) + ", which has ended");
    return nullptr;
  }
  if (warp.run->shadowing) [[unlikely]]
    return cta->taint.data() + offset;
  if (warp.run->options.races) {
    const Toucher by = toucher(warp, op, lane, touch);
    if (cta != warp.cta) cta->remote.note({by.epoch, {}, access, op.instruction, static_cast<u32>(lane), address});
    const Conflict conflict = cta->shadow.touch(offset, bytes, access, by);
    if (conflict.kind != ConflictKind::kNone &&
        report_conflict(warp, op, lane, address, bytes, access, conflict, touch, warp.cta->cluster, detector::kSharedRace) &&
        poison) {
      *poison = true;
    }
    if (access == Access::kRead && poison && is_poisoned(warp)) *poison = true;
  }
  return cta->smem.data() + offset;
}

u8* shared_at(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch) {
  if (address & (bytes - 1)) return misaligned(warp, op, lane, address, bytes, access);
  return shared_range(warp, op, lane, address, bytes, access, poison, touch);
}

u8* global_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison, const Touch& touch) {
  Run& run = *warp.run;
  Buffer* buffer = buffer_at(run, address);
  const u64 offset = buffer ? address - buffer->base : 0;
  if (!buffer || bytes > buffer->size - offset) {
    report_out_of_global(warp, op, lane, address, bytes, verb(access));
    return nullptr;
  }
  // Instructions of the async proxy check their own alignment rules.
  if (!touch.async && std::has_single_bit(bytes) && address & (bytes - 1))
    return misaligned(warp, op, lane, address, bytes, access);
  if (access == Access::kWrite && !buffer->writable) {
    report(warp, op, 1u << lane, detector::kInputWritten, address, "write to " + buffer->name + ", which is read only");
    return nullptr;
  }
  if (run.shadowing) [[unlikely]] {
    return buffer->taint ? buffer->taint->access(offset, bytes, access == Access::kWrite, op.instruction) : run.clean_bytes;
  }
  if (running(warp) & kRunningOthers && !buffer->constant) {
    const bool waited = warp.view.events.at(kDependencyComponent);
    report(warp, op, 1u << lane, detector::kDependency, address,
           std::string(verb(access)) + " of " + buffer->name +
               (waited ? ", while a kernel that precedes the plan may still run: " : " ") + unordered_because(warp) +
               (waited ? "" : ", while the preceding kernel may still run"));
  }
  if (run.options.races && buffer->shadow) {
    const Cluster& cluster = *warp.cta->cluster;
    Toucher by = toucher(warp, op, lane, touch);
    by.running = running(warp);
    by.launch = static_cast<u8>(run.launch.number);
    const Conflict conflict = buffer->shadow->touch(offset, bytes, access, by, cluster.index);
    if (conflict.kind != ConflictKind::kNone) {
      const Cluster* other = conflict.cluster == cluster.index ? &cluster : nullptr;
      if (report_conflict(warp, op, lane, address, bytes, access, conflict, touch, other, detector::kGlobalRace) && poison)
        *poison = true;
    }
    if (access == Access::kRead && poison && is_poisoned(warp)) *poison = true;
  }
  return buffer->host + offset;
}

u8* memory_at(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes, Access access, bool* poison,
              const Touch& touch) {
  switch (space) {
    case kShared:
      return shared_at(warp, op, lane, static_cast<u32>(address), bytes, access, poison, touch);
    case kParam:
      return param_at(warp, op, lane, address, bytes, access);
    case kLocal:
      return local_at(warp, op, lane, address, bytes, access);
    case kGeneric:
      if (address - kSharedWindow < kWindow) {
        return shared_at(warp, op, lane, static_cast<u32>(address - kSharedWindow), bytes, access, poison, touch);
      }
      if (address - kLocalWindow < kWindow) return local_at(warp, op, lane, address - kLocalWindow, bytes, access);
      if (address - kParamWindow < kWindow) return param_at(warp, op, lane, address - kParamWindow, bytes, access);
      [[fallthrough]];
    default:
      return global_at(warp, op, lane, address, bytes, access, poison, touch);
  }
}

void note_combined(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes) {
  if (!warp.run->options.races) return;
  bool written = true;
  if (space == kShared || (space == kGeneric && address - kSharedWindow < kWindow)) {
    const u32 place = static_cast<u32>(space == kShared ? address : address - kSharedWindow), offset = place & kOffsetMask;
    Cta* cta = cta_of(warp, place);
    if (!cta || offset < kSharedBase || offset > cta->smem_end || bytes > cta->smem_end - offset) return;
    written = cta->shadow.written(offset, bytes);
  } else {
    Buffer* buffer = buffer_at(*warp.run, address);
    if (!buffer || !buffer->shadow || bytes > buffer->size - (address - buffer->base)) return;
    written = buffer->shadow->written(address - buffer->base, bytes);
  }
  if (written) return;
  report(warp, op, 1u << lane, detector::kUninitialisedRead, address,
         "read and write of " + std::to_string(bytes) + " bytes of uninitialised memory", kNoInstruction, true);
}

bool require_whole_warp(Warp& warp, const Op& op, u32 mask) {
  if (mask == warp.live) return true;
  report(warp, op, mask, detector::kDivergent, 0, "executed by a part of the warp's lanes");
  return false;
}

}  // namespace emulator
