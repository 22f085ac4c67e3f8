// The core as Python sees it: programs, memory, runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "machine/machine.hpp"

namespace nb = nanobind;
using namespace emulator;

namespace {

using Bytes = nb::ndarray<u8, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const u8, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr u32 kMostRegisterBytes = 1 << 22;  // of a warp

// Refuses a table whose operations could reach outside the register file, the lists or the table itself.
class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {}

  void check() const {
    const std::vector<Op>& ops = program_.ops;
    if (ops.empty() || ops.back().kind != kExit || ops.back().guard) fail("does not end with an exit");
    if (program_.constants.size() > program_.register_bytes) fail("has more constants than registers");
    if (program_.register_bytes > kMostRegisterBytes) fail("has too many registers");
    if (program_.static_smem_end < kSharedBase) fail("has shared memory below its beginning");
    for (const Op& op : ops) check(op);
    for (const SpecialSlot& special : program_.specials) {
      slot(special.slot, 4);
      if (special.which >= kSpecials) fail("has an unknown special register");
    }
    for (const SymbolSlot& symbol : program_.symbols) {
      if (symbol.bytes != 4 && symbol.bytes != 8) fail("has a symbol of a strange size");
      slot(symbol.slot, symbol.bytes);
    }
    for (const auto* lists : {&program_.tracked_reads, &program_.tracked_writes}) {
      if (lists->size() != ops.size()) fail("has no tracked registers for every operation");
      for (const auto& slots : *lists) {
        for (u32 each : slots) slot(each, 4);
      }
    }
  }

 private:
  void check(const Op& op) const {
    if (op.guard) slot(op.guard, kMask);
    if (op.meeting) slot(op.meeting, 4);
    if (op.kind > kPoll) fail("has an operation of an unknown kind");
    if (op.list > program_.lists.size() || op.count > program_.lists.size() - op.list) fail("has a list out of bounds");
    if (op.kind == kBranch) return target(op.imm);
    if (op.kind == kBranchIndexed) {
      if (!op.count) fail("has an indexed branch without targets");
      slot(op.a, 4);
      for (u32 i = 0; i < op.count; ++i) target(program_.lists[op.list + i]);
      return;
    }
    if (op.kind == kExit) return;
    const Registered* entry = registry().find(op.handler);
    if (!entry) fail("has an operation without a handler");
    const Signature& signature = entry->signature;
    slot(op.d, signature.d);
    slot(op.a, signature.a);
    slot(op.b, signature.b);
    slot(op.c, signature.c);
    slot(op.e, signature.e);
    if (op.count < signature.least) fail("has an operation with too few listed operands");
    if (entry->legal && !entry->legal(op)) fail("has an operation with numbers that its handler does not take");
    for (u32 i = 0; i < op.count; ++i) slot(program_.lists[op.list + i], signature.list);
  }

  void slot(u32 offset, u8 bytes) const {
    const u64 size = bytes == kMask ? 4 : static_cast<u64>(bytes) * kLanes;
    if (offset % 32 || offset + size > program_.register_bytes) fail("has a slot outside the register file");
  }
  void target(i64 pc) const {
    if (pc < 0 || static_cast<u64>(pc) >= program_.ops.size()) fail("branches out of bounds");
  }
  [[noreturn]] static void fail(const char* what) { throw nb::value_error((std::string("the program ") + what).c_str()); }

  const Program& program_;
};

Program make_program(ConstBytes table, Numbers lists, ConstBytes constants, u32 register_bytes,
                     const std::vector<std::pair<u32, u32>>& specials,
                     const std::vector<std::tuple<u32, u32, u32, bool>>& symbols, u32 static_smem_end, u32 local_bytes,
                     std::vector<std::vector<u32>> tracked_reads, std::vector<std::vector<u32>> tracked_writes) {
  Program program;
  const std::size_t count = table.size() / sizeof(OpRecord);
  program.ops.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    OpRecord record;
    std::memcpy(&record, table.data() + i * sizeof record, sizeof record);
    static_cast<OpRecord&>(program.ops[i]) = record;
    const Registered* entry = registry().find(record.handler);
    program.ops[i].run = entry ? entry->run : nullptr;
  }
  program.lists.assign(lists.data(), lists.data() + lists.size());
  program.constants.assign(constants.data(), constants.data() + constants.size());
  program.register_bytes = register_bytes;
  for (const auto& [slot, which] : specials) program.specials.push_back({slot, which});
  for (const auto& [slot, bytes, offset, generic] : symbols) program.symbols.push_back({slot, bytes, offset, generic});
  program.static_smem_end = static_smem_end;
  program.local_bytes = local_bytes;
  program.tracked_reads = std::move(tracked_reads);
  program.tracked_writes = std::move(tracked_writes);
  if (local_bytes > 1 << 20 || static_smem_end > 1 << 20) throw nb::value_error("the program asks for too much memory");
  Checker(program).check();
  return program;
}

// The buffers and tensor maps that a kernel is launched with; keeps the arrays alive.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;

  void add_buffer(const std::string& name, u64 base, nb::object array, bool writable, bool constant, u64 written_bytes) {
    const auto bytes = nb::cast<Bytes>(array);
    Buffer buffer;
    buffer.name = name;
    buffer.base = base;
    buffer.size = bytes.size();
    buffer.host = bytes.data();
    buffer.writable = writable;
    buffer.constant = constant;
    buffer.written_bytes = written_bytes;
    if (writable) buffer.shadow = std::make_unique<GlobalShadow>(buffer.size, written_bytes);
    buffers.push_back(std::move(buffer));
    arrays_.push_back(std::move(array));
  }

  void add_map(u64 address, u32 type, u32 element_bytes, u32 swizzle, const std::vector<u64>& sizes,
               const std::vector<u64>& strides, const std::vector<u32>& box, bool nan_fill) {
    if (sizes.empty() || sizes.size() > 5 || strides.size() != sizes.size() || box.size() != sizes.size() || !element_bytes) {
      throw nb::value_error("a tensor map has 1 to 5 dimensions, each with a size, a stride and a box");
    }
    TensorMap map;
    map.rank = static_cast<u32>(sizes.size());
    map.type = type;
    map.element_bytes = element_bytes;
    map.swizzle = swizzle;
    map.address = address;
    map.nan_fill = nan_fill;
    u64 bytes = element_bytes;
    for (u32 i = 0; i < map.rank; ++i) {
      map.sizes[i] = sizes[i];
      map.strides[i] = strides[i];
      map.box[i] = box[i];
      bytes *= box[i];
      if (!box[i] || box[i] > 256 || bytes > 1 << 20) throw nb::value_error("a tensor map's box is empty or too large");
    }
    maps.push_back(map);
  }

  // Before each kernel that follows another on the same memory.
  void settle() {
    for (Buffer& buffer : buffers) {
      if (buffer.shadow) buffer.shadow->settle();
    }
  }

  // Ranges of bytes of the named buffer that the launch of that number wrote last; 0: that were read unwritten.
  std::vector<std::pair<u64, u64>> ranges(const std::string& name, u32 launch) const {
    for (const Buffer& buffer : buffers) {
      if (buffer.name == name && buffer.shadow) return buffer.shadow->ranges(launch);
    }
    return {};
  }

  // Forgets what has been written: the first `written_bytes` of the named buffer hold something.
  void renew(const std::string& name, u64 written_bytes) {
    for (Buffer& buffer : buffers) {
      if (buffer.name != name || !buffer.shadow) continue;
      buffer.shadow = std::make_unique<GlobalShadow>(buffer.size, written_bytes);
      buffer.written_bytes = written_bytes;
      buffer.taint.reset();
    }
  }

  // Before a launch that follows old contents.
  void follow() {
    for (Buffer& buffer : buffers) {
      if (!buffer.writable) continue;
      if (buffer.taint) {
        ++buffer.taint->launch;
      } else {
        buffer.taint = std::make_unique<GlobalTaint>(buffer.size, buffer.written_bytes);
      }
    }
  }

  // What kernels left in a buffer that depends on old contents: (offset, bytes, launch, instruction).
  std::vector<std::tuple<u64, u64, u32, u32>> tainted(const std::string& name) const {
    std::vector<std::tuple<u64, u64, u32, u32>> found;
    for (const Buffer& buffer : buffers) {
      if (buffer.name != name || !buffer.taint) continue;
      for (const auto& left : buffer.taint->left()) found.emplace_back(left.offset, left.bytes, left.launch, left.instruction);
    }
    return found;
  }

  std::vector<Buffer> buffers;
  std::vector<TensorMap> maps;

 private:
  std::vector<nb::object> arrays_;
};

struct Outcome {
  std::vector<Finding> findings;
  std::vector<SuspectRead> suspects;
  u64 instructions = 0, ctas = 0;
  bool stopped = false, waited = false, held = false;
};

using Triple = std::array<u32, 3>;

Outcome run(const Program& program, Memory& memory, const Triple& grid, const Triple& block, const Triple& cluster,
            u32 dynamic_smem, nb::bytes parameters, bool dependent, u32 schedule, u64 seed, bool races, u32 poison,
            u64 most_instructions, double deadline_s, std::vector<u64> ctas,
            const std::vector<std::tuple<u32, u32, u32>>& poisoned, u32 running, u32 running_after, u32 number, u32 sms,
            u32 warp_slots, bool taint) {
  Launch launch;
  u64 threads = 1, size = 1, total = 1;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = grid[i];
    launch.block[i] = block[i];
    launch.cluster[i] = cluster[i];
    const u32 most_ctas = i ? 0xFFFF : 0x7FFFFFFF;
    if (block[i] > 1024 || cluster[i] > 16 || grid[i] > most_ctas) throw nb::value_error("the launch is out of bounds");
    if (!cluster[i] || grid[i] % cluster[i]) throw nb::value_error("the grid is not a multiple of the cluster");
    threads *= block[i];
    size *= cluster[i];
    total *= grid[i];
  }
  if (!threads || threads > 1024 || !size || size > 16 || !total || total >= 1ull << 31) {
    throw nb::value_error("the launch is out of bounds");
  }
  if (dynamic_smem > 1 << 20) throw nb::value_error("the launch asks for too much shared memory");
  for (u64 cta : ctas) {
    if (cta >= total) throw nb::value_error("a selected CTA lies outside the grid");
  }
  launch.dynamic_smem = dynamic_smem;
  if (!sms || !warp_slots || !number || number >= 32) throw nb::value_error("the launch is out of bounds");
  launch.running = running | (dependent ? kRunningOthers : 0);
  launch.running_after = running_after;
  launch.number = number;
  launch.sms = sms;
  launch.warp_slots = warp_slots;
  const auto* bytes = static_cast<const u8*>(parameters.data());
  launch.parameters.assign(bytes, bytes + parameters.size());
  Options options;
  options.schedule = static_cast<Schedule>(std::min<u32>(schedule, 2));
  options.seed = seed;
  options.races = races;
  options.taint = races && taint;
  options.poison = static_cast<u8>(poison);
  options.most_instructions = most_instructions;
  options.deadline_s = deadline_s;
  std::set<SuspectRead> reads;
  for (const auto& [cta, warp, moment] : poisoned) reads.insert({cta, warp, moment});
  Outcome outcome;
  nb::gil_scoped_release unlocked;
  std::optional<Program> watched;
  if (options.taint) {
    watched = with_taint(program);
    memory.follow();
  }
  Run made(watched ? *watched : program, launch, options, memory.buffers, memory.maps, std::move(ctas), std::move(reads));
  made.execute();
  outcome.findings = made.report.findings();
  outcome.suspects.assign(made.suspects.begin(), made.suspects.end());
  outcome.instructions = made.instructions;
  outcome.ctas = made.ctas_run;
  outcome.stopped = made.stopped;
  outcome.waited = made.waited;
  outcome.held = made.held;
  return outcome;
}

}  // namespace

NB_MODULE(_core, module) {
  module.def("handlers", [] { return registry().names(); });
  module.attr("operation_bytes") = sizeof(OpRecord);
  module.attr("shared_base") = kSharedBase;
  module.attr("tensor_map_magic") = kTensorMapMagic;
  module.attr("param_window") = kParamWindow;
  module.attr("local_window") = kLocalWindow;
  nb::class_<Program>(module, "Program")
      .def_static("make", &make_program, nb::arg("table"), nb::arg("lists"), nb::arg("constants"), nb::arg("register_bytes"),
                  nb::arg("specials"), nb::arg("symbols"), nb::arg("static_smem_end"), nb::arg("local_bytes"),
                  nb::arg("tracked_reads"), nb::arg("tracked_writes"));
  nb::class_<Memory>(module, "Memory")
      .def(nb::init<>())
      .def("add_buffer", &Memory::add_buffer, nb::arg("name"), nb::arg("base"), nb::arg("array"), nb::arg("writable"),
           nb::arg("constant") = false, nb::arg("written_bytes") = 0)
      .def("add_map", &Memory::add_map, nb::arg("address"), nb::arg("type"), nb::arg("element_bytes"), nb::arg("swizzle"),
           nb::arg("sizes"), nb::arg("strides"), nb::arg("box"), nb::arg("nan_fill") = false)
      .def("settle", &Memory::settle)
      .def("ranges", &Memory::ranges, nb::arg("name"), nb::arg("launch"))
      .def("tainted", &Memory::tainted, nb::arg("name"))
      .def("renew", &Memory::renew, nb::arg("name"), nb::arg("written_bytes"));
  nb::class_<Finding>(module, "Finding")
      .def_ro("kind", &Finding::kind)
      .def_ro("message", &Finding::message)
      .def_prop_ro(
          "instruction",
          [](const Finding& found) { return found.instruction == kNoInstruction ? -1 : static_cast<i64>(found.instruction); })
      .def_prop_ro("other",
                   [](const Finding& found) { return found.other == kNoInstruction ? -1 : static_cast<i64>(found.other); })
      .def_prop_ro("cta", [](const Finding& found) { return std::tuple(found.cta[0], found.cta[1], found.cta[2]); })
      .def_ro("warp", &Finding::warp)
      .def_ro("lanes", &Finding::lanes)
      .def_ro("address", &Finding::address)
      .def_ro("suspect", &Finding::suspect)
      .def_ro("count", &Finding::count);
  nb::class_<Outcome>(module, "Outcome")
      .def_ro("findings", &Outcome::findings)
      .def_prop_ro("suspects",
                   [](const Outcome& outcome) {
                     std::vector<std::tuple<u32, u32, u32>> reads;
                     for (const SuspectRead& read : outcome.suspects) reads.emplace_back(read.cta, read.warp, read.moment);
                     return reads;
                   })
      .def_ro("instructions", &Outcome::instructions)
      .def_ro("ctas", &Outcome::ctas)
      .def_ro("stopped", &Outcome::stopped)
      .def_ro("waited", &Outcome::waited)
      .def_ro("held", &Outcome::held);
  module.def("run", &run, nb::arg("program"), nb::arg("memory"), nb::arg("grid"), nb::arg("block"), nb::arg("cluster"),
             nb::arg("dynamic_smem"), nb::arg("parameters"), nb::arg("dependent"), nb::arg("schedule"), nb::arg("seed"),
             nb::arg("races"), nb::arg("poison"), nb::arg("most_instructions"), nb::arg("deadline_s"), nb::arg("ctas"),
             nb::arg("poisoned"), nb::arg("running") = 0, nb::arg("running_after") = 0, nb::arg("number") = 1,
             nb::arg("sms") = 132, nb::arg("warp_slots") = 64, nb::arg("taint") = false);
}
