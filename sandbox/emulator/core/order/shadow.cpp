#include "order/shadow.hpp"

namespace emulator {

namespace {

// The last event of a stream of the access's own warp that is ordered before all its lanes; null for other agents. Nearly all
// warps have one stream, whose component is kOwnCopies.
const u32* ordered_of_stream(u32 component, const Toucher& by) {
  for (const CopyStream& stream : *by.streams) {
    if (stream.component == component) return &stream.ordered;
  }
  return nullptr;
}

bool is_ordered(Epoch event, const u32* ordered, bool own, const Toucher& by) {
  return (own && event.value <= by.copied) || (by.view->events.covers(event) && (own || event.value <= *ordered));
}

// Whether an event of the same cluster happened before the access. `own`: the event is of the lane that makes the access.
inline bool before(Epoch event, bool own, const Toucher& by) {
  const u32 agent = event.component - by.self;
  if (agent == kOwnCopies || (agent >= kAgentsPerWarp && by.streams->size() > 1)) [[unlikely]] {
    if (const u32* ordered = ordered_of_stream(event.component, by)) return is_ordered(event, ordered, own, by);
  }
  if (agent >= kAgentsPerWarp || agent == kOwnProducts) return by.events->covers(event);
  if (agent != kOwnWarp && !by.view->events.covers(event)) return false;
  return own || event.value <= by.ordered[agent] || (agent == kOwnWarp && event.value == by.moment);
}

bool owns_write(u8 lane, const Toucher& by) { return lane == kAnybody || lane == by.lane; }
bool owns_read(u8 lane, const Toucher& by) { return lane == by.lane; }

// The lane to record for an access after `last`.
u8 lane_of_write(Epoch last, u8 last_lane, const Toucher& by) {
  const bool again = last.component == by.epoch.component && last.value == by.epoch.value;
  return again && last_lane != by.lane ? kAnybody : by.lane;
}
u8 lane_of_read(Epoch last, u8 last_lane, const Toucher& by) {
  const u32 agent = last.component - by.self;
  bool behind = agent < kAgentsPerWarp && agent != kOwnCopies && last.value <= by.ordered[agent];
  if (agent == kOwnCopies || (agent >= kAgentsPerWarp && by.streams->size() > 1)) [[unlikely]] {
    const u32* ordered = ordered_of_stream(last.component, by);
    behind = ordered && last.value <= *ordered;
  }
  return behind || last_lane == by.lane ? by.lane : kSeveral;
}

}  // namespace

// ---- shared memory ----------------------------------------------------------------------------------------------------------
void SharedShadow::reset(u32 bytes) {
  cells_.clear();
  cells_.resize((bytes + 15) / 16);
  parts_.clear();
}

Conflict SharedShadow::touch(u32 offset, u32 size, Access access, const Toucher& by) {
  Conflict worst;
  const u32 end = offset + size;
  for (u32 at = offset / 16 * 16; at < end; at += 16) {
    Cell& cell = cells_[at / 16];
    if (offset <= at && at + 16 <= end && !cell.split) {
      worst.worsen(access == Access::kRead ? read(cell, by) : write(cell, by));
    } else {
      worst.worsen(touch_within(cell, 4, std::max(offset, at) - at, std::min(end, at + 16) - at, access, by));
    }
  }
  return worst;
}

bool SharedShadow::written(u32 offset, u32 size) const {
  const u32 end = offset + size;
  for (u32 at = offset / 16 * 16; at < end; at += 16) {
    if (!written_within(cells_[at / 16], 4, std::max(offset, at) - at, std::min(end, at + 16) - at)) return false;
  }
  return true;
}

bool SharedShadow::written_within(const Cell& cell, u32 unit, u32 begin, u32 end) const {
  if (!cell.split) return cell.written;
  const Parts& parts = *parts_[cell.split - 1];
  for (u32 part = begin / unit; part * unit < end; ++part) {
    const u32 from = std::max(begin, part * unit) - part * unit, to = std::min(end, (part + 1) * unit) - part * unit;
    if (unit > 1 ? !written_within(parts.parts[part], unit / 4, from, to) : !parts.parts[part].written) return false;
  }
  return true;
}

void SharedShadow::mark_barrier(u32 offset, bool barrier) {
  Cell& cell = cells_[offset / 16];
  Parts& words = split(cell);
  for (u32 word = offset % 16 / 4; word < offset % 16 / 4 + 2; ++word) words.parts[word].barrier = barrier;
}

// A part of a cell that is `4 * unit` bytes wide: its parts are `unit` bytes wide.
Conflict SharedShadow::touch_within(Cell& cell, u32 unit, u32 begin, u32 end, Access access, const Toucher& by) {
  Conflict worst;
  Parts& parts = split(cell);
  for (u32 part = begin / unit; part * unit < end; ++part) {
    Cell& inner = parts.parts[part];
    const u32 from = std::max(begin, part * unit) - part * unit, to = std::min(end, (part + 1) * unit) - part * unit;
    if (unit > 1 && (to - from < unit || inner.split)) {
      worst.worsen(touch_within(inner, unit / 4, from, to, access, by));
    } else {
      worst.worsen(access == Access::kRead ? read(inner, by) : write(inner, by));
    }
  }
  return worst;
}

SharedShadow::Parts& SharedShadow::split(Cell& cell) {
  if (!cell.split) {
    auto parts = std::make_unique<Parts>();
    for (Cell& part : parts->parts) {
      part.write = cell.write;
      part.write_instruction = cell.write_instruction;
      part.written = cell.written;
      part.write_async = cell.write_async;
      part.write_strong = cell.write_strong;
      part.write_lane = cell.write_lane;
      part.barrier = cell.barrier;
      part.readers = cell.readers;
      std::copy(std::begin(cell.reads), std::end(cell.reads), part.reads);
      if (cell.more) part.more = std::make_unique<std::vector<Reader>>(*cell.more);
    }
    parts_.push_back(std::move(parts));
    cell.split = static_cast<u32>(parts_.size());
  }
  return *parts_[cell.split - 1];
}

Conflict SharedShadow::read(Cell& cell, const Toucher& by) {
  note_reader(cell, by);
  if (cell.barrier) return {ConflictKind::kBarrier, cell.write, cell.write_instruction};
  if (!cell.written) return {ConflictKind::kUnwritten, {}, kNoInstruction};
  if (!(cell.write_strong && by.strong) && !before(cell.write, owns_write(cell.write_lane, by), by)) {
    return {ConflictKind::kReadBehindWrite, cell.write, cell.write_instruction};
  }
  if (by.async && !cell.write_async && !by.view->proxied.covers(cell.write)) {
    return {ConflictKind::kUnfenced, cell.write, cell.write_instruction};
  }
  return {};
}

Conflict SharedShadow::write(Cell& cell, const Toucher& by) {
  Conflict worst;
  if (cell.barrier) worst = {ConflictKind::kBarrier, cell.write, cell.write_instruction};
  if (cell.written && !(cell.write_strong && by.strong) && !before(cell.write, owns_write(cell.write_lane, by), by)) {
    worst.worsen({ConflictKind::kWriteBehindWrite, cell.write, cell.write_instruction});
  }
  const auto meet = [&](const Reader& reader) {
    if (!(reader.strong && by.strong) && !before(reader.epoch, owns_read(reader.lane, by), by)) {
      worst.worsen({ConflictKind::kWriteBehindRead, reader.epoch, reader.instruction});
    }
  };
  for (u32 i = 0; i < cell.readers; ++i) meet(cell.reads[i]);
  if (cell.more) {
    for (const Reader& reader : *cell.more) meet(reader);
    cell.more.reset();
  }
  cell.readers = 0;
  cell.write_lane = cell.written ? lane_of_write(cell.write, cell.write_lane, by) : by.lane;
  cell.write = by.epoch;
  cell.write_instruction = by.instruction;
  cell.written = true;
  cell.write_async = by.async;
  cell.write_strong = by.strong;
  return worst;
}

// Readers that happened before this one are dropped: an access that is ordered after this one is ordered after them.
void SharedShadow::note_reader(Cell& cell, const Toucher& by) {
  Reader reader{by.epoch, by.instruction, by.strong, by.lane};
  for (u32 i = 0; i < cell.readers; ++i) {
    if (cell.reads[i].epoch.component == by.epoch.component) {
      reader.lane = lane_of_read(cell.reads[i].epoch, cell.reads[i].lane, by);
      cell.reads[i] = reader;
      return;
    }
  }
  if (cell.readers == kReaders) {
    u32 kept = 0;
    for (u32 i = 0; i < kReaders; ++i) {
      if (!before(cell.reads[i].epoch, false, by)) cell.reads[kept++] = cell.reads[i];
    }
    cell.readers = static_cast<u8>(kept);
  }
  if (cell.readers < kReaders) {
    cell.reads[cell.readers++] = reader;
    return;
  }
  if (!cell.more) cell.more = std::make_unique<std::vector<Reader>>();
  for (Reader& other : *cell.more) {
    if (other.epoch.component != by.epoch.component) continue;
    reader.lane = lane_of_read(other.epoch, other.lane, by);
    other = reader;
    return;
  }
  cell.more->push_back(reader);
}

// ---- global memory ----------------------------------------------------------------------------------------------------------
GlobalShadow::GlobalShadow(u64 bytes, u64 written_bytes, u32 piece_bytes)
    : written_bytes_(written_bytes), piece_bytes_(piece_bytes), pages_((bytes / piece_bytes + kPage) / kPage) {}

Conflict GlobalShadow::touch(u64 offset, u32 size, Access access, const Toucher& by, u32 cluster) {
  Conflict worst;
  Toucher each = by;
  if (size < piece_bytes_) each.lane = kAnybody;  // the other half of the piece may be another lane's
  for (u64 index = offset / piece_bytes_; piece_bytes_ * index < offset + size; ++index) {
    worst.worsen(touch_piece(piece(index), access, each, cluster));
  }
  return worst;
}

bool GlobalShadow::written(u64 offset, u32 size) {
  for (u64 index = offset / piece_bytes_; piece_bytes_ * index < offset + size; ++index) {
    if (!piece(index).written) return false;
  }
  return true;
}

GlobalShadow::Piece& GlobalShadow::piece(u64 index) {
  std::unique_ptr<Page>& page = pages_[index / kPage];
  if (!page) {
    page = std::make_unique<Page>();
    const u64 first = index / kPage * kPage;
    for (u64 i = 0; i < kPage && piece_bytes_ * (first + i) < written_bytes_; ++i) page->pieces[i].written = true;
  }
  return page->pieces[index % kPage];
}

// Whether a launch that may still run accessed the piece, so that the two are unordered.
bool GlobalShadow::unfinished(const Piece& piece, Access access, const Toucher& by, u32* launch) {
  const bool written = piece.write_launch && by.running >> piece.write_launch & 1 && !(piece.write_strong && by.strong);
  const bool read =
      access == Access::kWrite && piece.read_launch && by.running >> piece.read_launch & 1 && !(piece.read_strong && by.strong);
  *launch = written ? piece.write_launch : piece.read_launch;
  return written || read;
}

Conflict GlobalShadow::touch_piece(Piece& piece, Access access, const Toucher& by, u32 cluster) {
  const auto ordered = [&](Epoch event, u32 of, bool strong, bool own) {
    if (!event.value || (strong && by.strong)) return true;
    if (of == cluster) return before(event, own, by);
    if (!by.view->foreign) return false;
    const auto known = by.view->foreign->find(of);
    return known != by.view->foreign->end() && known->second.covers(event);
  };
  Conflict conflict;
  u32 launch = 0;
  const bool collides = by.running && unfinished(piece, access, by, &launch);
  const bool write_ordered = ordered(piece.write, piece.write_cluster, piece.write_strong, owns_write(piece.write_lane, by));
  if (access == Access::kRead) {
    if (!piece.written) {
      conflict = {ConflictKind::kUnwritten, {}, kNoInstruction};
      piece.missed = true;
    }
    if (!write_ordered) conflict = {ConflictKind::kReadBehindWrite, piece.write, piece.write_instruction, piece.write_cluster};
    if (collides) conflict = {ConflictKind::kUnfinished, {}, kNoInstruction, launch};
    const bool again = piece.read.value && piece.read_cluster == cluster && piece.read.component == by.epoch.component;
    piece.read_lane = again ? lane_of_read(piece.read, piece.read_lane, by) : by.lane;
    piece.read = by.epoch;
    piece.read_cluster = cluster;
    piece.read_instruction = by.instruction;
    piece.read_strong = by.strong;
    // The older launch where it may still run.
    if (!piece.read_launch || !(by.running >> piece.read_launch & 1)) piece.read_launch = by.launch;
    return conflict;
  }
  if (!ordered(piece.read, piece.read_cluster, piece.read_strong, owns_read(piece.read_lane, by))) {
    conflict = {ConflictKind::kWriteBehindRead, piece.read, piece.read_instruction, piece.read_cluster};
  }
  if (!write_ordered) conflict = {ConflictKind::kWriteBehindWrite, piece.write, piece.write_instruction, piece.write_cluster};
  if (collides) conflict = {ConflictKind::kUnfinished, {}, kNoInstruction, launch};
  piece.write_lane =
      piece.write.value && piece.write_cluster == cluster ? lane_of_write(piece.write, piece.write_lane, by) : by.lane;
  piece.write = by.epoch;
  piece.write_cluster = cluster;
  piece.write_instruction = by.instruction;
  piece.write_strong = by.strong;
  piece.written = true;
  piece.read = {};
  piece.write_launch = by.launch;
  piece.read_launch = 0;
  return conflict;
}

void GlobalShadow::settle() {
  for (auto& page : pages_) {
    if (!page) continue;
    for (Piece& piece : page->pieces) piece.write = piece.read = {};
  }
}

std::vector<std::pair<u64, u64>> GlobalShadow::ranges(u32 launch) const {
  std::vector<std::pair<u64, u64>> found;
  for (std::size_t page = 0; page < pages_.size(); ++page) {
    if (!pages_[page]) continue;
    for (u64 i = 0; i < kPage; ++i) {
      const Piece& piece = pages_[page]->pieces[i];
      if (launch ? piece.write_launch != launch : !piece.missed) continue;
      const u64 at = piece_bytes_ * (page * kPage + i);
      if (!found.empty() && found.back().second == at) {
        found.back().second = at + piece_bytes_;
      } else {
        found.emplace_back(at, at + piece_bytes_);
      }
    }
  }
  return found;
}

}  // namespace emulator
