// Shadows of memory for the taint of old contents, and how copies and products of a warpgroup carry it.
#include "taint/taint.hpp"

#include <algorithm>

#include "machine/machine.hpp"
#include "matrix/product.hpp"
#include "taint/taint_rows.hpp"

namespace emulator {

// ---- global memory ----------------------------------------------------------------------------------------------------------
GlobalTaint::GlobalTaint(u64 bytes, u64 written_bytes) : written_bytes_(written_bytes), pages_(bytes / kPage + 1) {}

GlobalTaint::Page& GlobalTaint::page(u64 offset) {
  std::unique_ptr<Page>& page = pages_[offset / kPage];
  if (!page) {
    page = std::make_unique<Page>();
    const u64 first = offset / kPage * kPage, known = std::clamp<u64>(written_bytes_, first, first + kPage) - first;
    std::fill(page->old, page->old + known, 0);
    std::fill(page->old + known, std::end(page->old), 0xFF);
  }
  return *page;
}

void GlobalTaint::note_writer(u64 offset, u64 bytes, u32 instruction) {
  const u64 writer = u64{launch} << 32 | (u64{instruction} + 1);
  Page& in = page(offset);
  const u64 end = std::min(offset % kPage + bytes, kPage);
  std::fill(in.writers + offset % kPage, in.writers + end, writer);
}

u8* GlobalTaint::access(u64 offset, u32 bytes, bool writes, u32 instruction) {
  if (writes) note_writer(offset, bytes, instruction);
  return page(offset).old + offset % kPage;
}

void GlobalTaint::read(u64 offset, u64 bytes, u8* old) {
  while (bytes) {
    const u64 step = std::min(bytes, kPage - offset % kPage);
    std::memcpy(old, page(offset).old + offset % kPage, step);
    offset += step, old += step, bytes -= step;
  }
}

void GlobalTaint::write(u64 offset, u64 bytes, const u8* old, u32 instruction) {
  while (bytes) {
    const u64 step = std::min(bytes, kPage - offset % kPage);
    note_writer(offset, step, instruction);
    std::memcpy(page(offset).old + offset % kPage, old, step);
    offset += step, old += step, bytes -= step;
  }
}

std::vector<GlobalTaint::Left> GlobalTaint::left() const {
  constexpr std::size_t kMost = 1 << 16;
  std::vector<Left> all;
  u64 before = 0;  // writer of the byte before
  for (u64 i = 0; i < pages_.size() && all.size() < kMost; ++i) {
    for (u64 at = 0; at < kPage; ++at) {
      const u64 writer = pages_[i] && pages_[i]->old[at] ? pages_[i]->writers[at] : 0;
      if (writer && writer == before) {
        ++all.back().bytes;
      } else if (writer) {
        all.push_back({i * kPage + at, 1, static_cast<u32>(writer >> 32), static_cast<u32>(writer) - 1});
      }
      before = writer;
    }
  }
  return all;
}

// ---- a run ------------------------------------------------------------------------------------------------------------------
u32 shadow_offset(const Program& program) {
  constexpr u32 kAlignment = 64;
  return (program.register_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Registers are old until they are written, but for constants and what the machine sets.
void start_taint(Warp& warp) {
  const Program& program = warp.run->program;
  u8* shadow = warp.registers + warp.run->shadow_offset;
  std::fill(shadow, shadow + program.register_bytes, 0xFF);
  std::fill(shadow, shadow + program.constants.size(), 0);
  for (const SpecialSlot& special : program.specials) std::fill_n(shadow + special.slot, sizeof(u32) * kLanes, 0);
  for (const SymbolSlot& symbol : program.symbols) std::fill_n(shadow + symbol.slot, symbol.bytes * kLanes, 0);
  warp.local_taint.assign(warp.local.size(), 0xFF);
}

// ---- copies -----------------------------------------------------------------------------------------------------------------
void put_taint(Warp& warp, const LaneCopy& copy) {
  u8* to = cta_of(warp, copy.address)->taint.data() + (copy.address & kOffsetMask);
  if (copy.taint) {
    std::memcpy(to, warp.copy_taints[copy.taint - 1].data(), copy.bytes);
  } else {
    std::fill_n(to, copy.bytes, 0);
  }
}

namespace {

struct Shadowed {
  u8* bytes = nullptr;
  GlobalTaint* global = nullptr;
  u64 offset = 0;
};

Shadowed shadow_of(Run& run, Cluster& cluster, const u8* host) {
  const auto at = reinterpret_cast<std::uintptr_t>(host);
  for (Cta& cta : cluster.ctas) {
    const std::uintptr_t away = at - reinterpret_cast<std::uintptr_t>(cta.smem.data());
    if (away < cta.smem.size()) return {cta.taint.data() + away, nullptr, 0};
  }
  for (Buffer& buffer : run.buffers) {
    const std::uintptr_t away = at - reinterpret_cast<std::uintptr_t>(buffer.host);
    if (away < buffer.size) return {nullptr, buffer.taint.get(), away};
  }
  return {};
}

void read(const Shadowed& from, u64 bytes, u8* old) {
  if (from.bytes) {
    std::memcpy(old, from.bytes, bytes);
  } else if (from.global) {
    from.global->read(from.offset, bytes, old);
  } else {
    std::fill_n(old, bytes, 0);
  }
}

// An element is old where either of what is combined is.
void combine(std::vector<u8>& old, const u8* more, u32 element) {
  for (u64 at = 0; at < old.size(); at += element) {
    const u64 end = std::min<u64>(at + element, old.size());
    u8 any = 0;
    for (u64 i = at; i < end; ++i) any |= old[i] | more[i];
    for (u64 i = at; i < end; ++i) old[i] = any ? 0xFF : 0;
  }
}

}  // namespace

void read_taint(Run& run, Cluster& cluster, const u8* host, u64 bytes, u8* old) {
  read(shadow_of(run, cluster, host), bytes, old);
}

void write_taint(Run& run, Cluster& cluster, u8* host, u64 bytes, const u8* old, u32 element, u32 instruction) {
  const Shadowed to = shadow_of(run, cluster, host);
  std::vector<u8> made(bytes);
  if (element) {
    read(to, bytes, made.data());
    combine(made, old, element);
  } else {
    std::copy_n(old, bytes, made.begin());
  }
  if (to.bytes) std::copy(made.begin(), made.end(), to.bytes);
  if (to.global) to.global->write(to.offset, bytes, made.data(), instruction);
}

void move_taint(Run& run, Cluster& cluster, u8* to, const u8* from, u64 bytes, u32 element, u32 instruction) {
  std::vector<u8> old(bytes);
  read_taint(run, cluster, from, bytes, old.data());
  write_taint(run, cluster, to, bytes, old.data(), element, instruction);
}

// ---- wgmma ------------------------------------------------------------------------------------------------------------------
namespace {

// Lines of an operand, rows of A or columns of B, that hold an old element; `groups` of eight.
void read_operand(const Cta& cta, u64 descriptor, bool mn_major, u32 groups, u8* lines) {
  const SharedMatrix operand(descriptor, mn_major);
  for (u32 group = 0; group < groups; ++group) {
    for (u32 half = 0; half < 2; ++half) {
      for (u32 index = 0; index < kBlock; ++index) {
        const u32 offset = operand.line(group, half, index);
        if (offset < kSharedBase || offset >= cta.smem_end || cta.smem_end - offset < kRowBytes) continue;
        const u8* old = cta.taint.data() + offset;
        if (!mn_major) {
          lines[group] |= any_of(old, kRowBytes) << index;
          continue;
        }
        for (u32 line = 0; line < kBlock; ++line) lines[group] |= any_of(old + 2 * line, 2) << line;
      }
    }
  }
}

}  // namespace

void taint_product(Warp& first, const ProductForm& form, const Product& product, const ProductRegisters& registers) {
  constexpr u32 kRowGroups = 8, kMaxColumnGroups = 32;
  const bool floats = form.sum != Sum::kHalf;
  const u32 element = floats ? 4 : 2, step = element, offset = first.run->shadow_offset;
  u8 rows[kRowGroups] = {}, columns[kMaxColumnGroups] = {};
  const auto shadow = [&](u32 warp, u32 slot) { return registers.files[warp] + offset + slot; };
  if (registers.a) {
    for (u32 i = 0; i < 16; ++i) rows[2 * (i / 4) + (i & 1)] |= rows_of(shadow(i / 4, registers.a[i % 4]));
  } else {
    read_operand(*first.cta, product.a, form.a_mn_major, kRowGroups, rows);
  }
  read_operand(*first.cta, product.b, form.b_mn_major, form.columns / kBlock, columns);
  for (u32 group = 0; group < form.columns / kBlock; ++group) {
    for (u32 of_rows = 0; of_rows < kRowGroups; ++of_rows) {
      const u32* slots = registers.sums + group * step + of_rows % 2 * (step / 2);
      SumBlock sums{shadow(of_rows / 2, slots[0]), shadow(of_rows / 2, slots[step / 2 - 1]), element};
      sums.write(rows[of_rows], columns[group], product.accumulate ? sums.read() : OldElements{});
    }
  }
}

}  // namespace emulator
