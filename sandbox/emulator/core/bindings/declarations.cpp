// What the lowering uses of the core: enums, the record of an operation, and the handlers with their operands.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <tuple>
#include <type_traits>

#include "arithmetic/permutation.hpp"
#include "arithmetic/rounding.hpp"
#include "asynchronous/reduction.hpp"
#include "bindings/bindings.hpp"
#include "machine/machine.hpp"
#include "matrix/product.hpp"

namespace emulator {

namespace {

// ---- enums ------------------------------------------------------------------------------------------------------------------
void bind_control(nb::module_& module) {
  nb::enum_<Kind>(module, "Kind", nb::is_arithmetic(), "How the interpreter goes on after an operation.")
      .value("PLAIN", kPlain)
      .value("BRANCH", kBranch)
      .value("BRANCH_INDEXED", kBranchIndexed)
      .value("EXIT", kExit)
      .value("WAITING", kWaiting)
      .value("POLL", kPoll);
  nb::enum_<Flags>(module, "Flag", nb::is_arithmetic(), nb::is_flag(),
                   "COLLECTIVE: lanes execute it together. TRACKED: it touches registers that a wgmma uses.")
      .value("NEGATED", kNegated)
      .value("COLLECTIVE", kCollective)
      .value("TRACKED", kTracked);
  nb::enum_<Interleaving>(
      module, "Interleaving", nb::is_arithmetic(),
      "When asynchronous work completes and which warp has its turn: as early as allowed, as late as allowed, "
      "or drawn from a seed.")
      .value("EAGER", Interleaving::kEager)
      .value("LATEST", Interleaving::kLatest)
      .value("RANDOM", Interleaving::kRandom);
}

void bind_memory_model(nb::module_& module) {
  nb::enum_<Space>(module, "Space", nb::is_arithmetic(), "State spaces.")
      .value("GENERIC", kGeneric)
      .value("GLOBAL", kGlobal)
      .value("SHARED", kShared)
      .value("PARAM", kParam)
      .value("LOCAL", kLocal)
      .value("CONST", kConst);
  nb::enum_<Semantics>(module, "Semantics", nb::is_arithmetic(), "Memory order of an access.")
      .value("WEAK", kWeak)
      .value("RELAXED", kRelaxed)
      .value("ACQUIRE", kAcquire)
      .value("RELEASE", kRelease)
      .value("ACQ_REL", kAcquireRelease);
  nb::enum_<Scope>(module, "Scope", nb::is_arithmetic(), "The threads among which a memory order holds.")
      .value("CTA", kCtaScope)
      .value("CLUSTER", kClusterScope)
      .value("DEVICE", kDeviceScope);
  nb::enum_<BarrierReduction>(module, "BarrierReduction", nb::is_arithmetic(), "Reductions of bar.red.")
      .value("NONE", kNoReduction)
      .value("AND", kReduceAnd)
      .value("OR", kReduceOr)
      .value("POPC", kReducePopc);
}

void bind_elements(nb::module_& module) {
  nb::enum_<TensorType>(module, "TensorType", nb::is_arithmetic(), "Element types of tensor maps and bulk reductions.")
      .value("U8", kTypeU8)
      .value("U16", kTypeU16)
      .value("U32", kTypeU32)
      .value("S32", kTypeI32)
      .value("U64", kTypeU64)
      .value("S64", kTypeI64)
      .value("F16", kTypeF16)
      .value("F32", kTypeF32)
      .value("F64", kTypeF64)
      .value("BF16", kTypeBf16);
  nb::enum_<Reduction>(module, "Reduction", nb::is_arithmetic(), "Reductions of bulk copies. STORE: a plain copy.")
      .value("STORE", kStore)
      .value("ADD", kAdd)
      .value("MIN", kMin)
      .value("MAX", kMax)
      .value("INC", kInc)
      .value("DEC", kDec)
      .value("AND", kAnd)
      .value("OR", kOr)
      .value("XOR", kXor);
  nb::enum_<Fragment>(module, "Fragment", nb::is_arithmetic(), "Layouts of the blocks of wmma fragments.")
      .value("A", kLeft)
      .value("B", kRight)
      .value("SQUARE", kSquare)
      .value("TALL", kTall)
      .value("FLAT", kFlat);
  nb::enum_<WgmmaForm>(module, "WgmmaForm", nb::is_arithmetic(), nb::is_flag(), "What a wgmma multiplies.")
      .value("BF16", kBfloatOperands)
      .value("F16_SUMS", kHalfSums)
      .value("NEGATIVE_A", kNegativeA)
      .value("NEGATIVE_B", kNegativeB)
      .value("COLUMNS_OF_A", kColumnsOfA)
      .value("ROWS_OF_B", kRowsOfB)
      .value("REGISTERS_OF_A", kRegistersOfA)
      .value("TF32", kTf32Operands)
      .value("BYTES", kByteOperands);
  nb::enum_<ByteForm>(module, "ByteForm", nb::is_arithmetic(), nb::is_flag(), "How 8-bit integers are multiplied.")
      .value("SIGNED_A", kSignedA)
      .value("SIGNED_B", kSignedB)
      .value("SATURATED", kSaturated);
}

void bind_arithmetic(nb::module_& module) {
  nb::enum_<Rounding>(module, "Rounding", nb::is_arithmetic(), "Rounding modes. AWAY: ties away from zero, only of cvt.")
      .value("NEAREST", kNearest)
      .value("DOWN", kDown)
      .value("UP", kUp)
      .value("ZERO", kZero)
      .value("AWAY", kAway);
  nb::enum_<Modifier>(module, "Modifier", nb::is_arithmetic(), nb::is_flag(),
                      "What happens to a result besides rounding: .ftz, .sat, .relu, .satfinite.")
      .value("FTZ", kFlush)
      .value("SAT", kSaturate)
      .value("RELU", kRelu)
      .value("SATFINITE", kSatFinite);
  nb::enum_<Permutation>(module, "Permutation", nb::is_arithmetic(), "Modes of prmt.")
      .value("F4E", kF4e)
      .value("B4E", kB4e)
      .value("RC8", kRc8)
      .value("ECL", kEcl)
      .value("ECR", kEcr)
      .value("RC16", kRc16);
}

// ---- handlers ---------------------------------------------------------------------------------------------------------------
const char* name_of(Field field) {
  constexpr const char* kNames[] = {"", "d", "a", "b", "c", "e", "list", "p", "q", "r", "s", "imm"};
  return kNames[static_cast<u32>(field)];
}

void bind_handlers(nb::module_& module) {
  nb::enum_<Role>(module, "Role", "What an operand is: a register, a memory operand, a part of the list, a constant.")
      .value("SLOT", Role::kSlot)
      .value("ADDRESS", Role::kAddress)
      .value("LIST", Role::kList)
      .value("NUMBER", Role::kNumber);
  nb::class_<Operand>(module, "Operand")
      .def_ro("name", &Operand::name)
      .def_ro("role", &Operand::role)
      .def_prop_ro("field", [](const Operand& operand) { return name_of(operand.field); })
      .def_ro("bytes", &Operand::bytes)
      .def_ro("optional", &Operand::optional)
      .def_prop_ro("width", [](const Operand& operand) { return name_of(operand.width); })
      .def_prop_ro("offset", [](const Operand& operand) { return name_of(operand.offset); })
      .def_ro("minimum", &Operand::minimum)
      .def_ro("maximum", &Operand::maximum)
      .def_ro("shift", &Operand::shift)
      .def_ro("type", &Operand::type);
  nb::class_<Registered>(module, "Handler").def_ro("name", &Registered::name).def_ro("operands", &Registered::operands);
  module.def("handlers", [] { return registry().all(); });
}

// ---- the record of an operation ---------------------------------------------------------------------------------------------
// Name, numpy's name of the type, and offset of each field.
std::vector<std::tuple<std::string, std::string, std::size_t>> fields() {
  std::vector<std::tuple<std::string, std::string, std::size_t>> all;
  const auto add = [&](const char* name, auto value, std::size_t offset) {
    using T = decltype(value);
    all.emplace_back(name, (std::is_signed_v<T> ? "i" : "u") + std::to_string(sizeof(T)), offset);
  };
#define EMULATOR_FIELD(name) add(#name, decltype(OpRecord::name){}, offsetof(OpRecord, name))
  EMULATOR_FIELD(handler);
  EMULATOR_FIELD(kind);
  EMULATOR_FIELD(flags);
  EMULATOR_FIELD(guard);
  EMULATOR_FIELD(d);
  EMULATOR_FIELD(a);
  EMULATOR_FIELD(b);
  EMULATOR_FIELD(c);
  EMULATOR_FIELD(e);
  EMULATOR_FIELD(members);
  EMULATOR_FIELD(list);
  EMULATOR_FIELD(count);
  EMULATOR_FIELD(p);
  EMULATOR_FIELD(q);
  EMULATOR_FIELD(r);
  EMULATOR_FIELD(s);
  EMULATOR_FIELD(instruction);
  EMULATOR_FIELD(imm);
#undef EMULATOR_FIELD
  return all;
}

}  // namespace

void bind_declarations(nb::module_& module) {
  bind_control(module);
  bind_memory_model(module);
  bind_elements(module);
  bind_arithmetic(module);
  bind_handlers(module);
  module.attr("operation_fields") = fields();
  module.attr("operation_bytes") = sizeof(OpRecord);
  module.attr("predicate_bytes") = kMask;
  module.attr("special_registers") = std::vector<std::string>(std::begin(kSpecialNames), std::end(kSpecialNames));
  module.attr("detectors") = std::vector<std::string>(std::begin(detector::kAll), std::end(detector::kAll));
  module.attr("unsupported") = detector::kUnsupported;
  module.attr("deadline") = detector::kDeadline;
  module.attr("lanes") = kLanes;
  module.attr("shared_base") = kSharedBase;
  module.attr("rank_shift") = kRankShift;
  module.attr("tensor_map_magic") = kTensorMapMagic;
  module.attr("param_window") = kParamWindow;
  module.attr("local_window") = kLocalWindow;
  module.attr("running_others") = kRunningOthers;
  module.attr("max_suspects") = Report::kMaxFindings;
}

}  // namespace emulator
