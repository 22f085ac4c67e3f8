// Kernels of aten::mm and aten::addmm, and of their forms with `out`, that ask a library first, without Python in the path of a
// matrix product that was seen before.
//
// A signature (sizes, strides, types and devices of both operands) leads to a route: the launch of a kernel, or PyTorch's own.
// Python decides routes, by the rules of cudal2/torch/route_decision.py, when a signature is first seen; here they are kept
// and counted. cudal2/torch/compiled_build.py compiles this file for the PyTorch at hand: with CUDAL2_CUDA for the key CUDA,
// without it for the key CPU, which tests use. cudal2/torch/compiled_kernels.py calls it. No header of CUDA and none of Python
// is needed.
//
// What is handed out (counters, routes, services) is never freed, because a call may be under way in another thread.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
#ifdef CUDAL2_CUDA
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <ATen/ops/empty_cuda_dispatch.h>
#include <ATen/ops/mm_cuda_dispatch.h>
#else
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#endif

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#define CUDAL2_EXPORT extern "C" __attribute__((visibility("default")))

#ifdef CUDAL2_CUDA
// Of torch/csrc/inductor/aoti_torch/c/shim.h, whose other declarations are not needed. Returns 0 for a success.
extern "C" std::int32_t aoti_torch_get_current_cuda_stream(std::int32_t device, void** stream);
#endif

namespace {

#ifdef CUDAL2_CUDA
namespace own = at::cuda;
constexpr auto kKey = c10::DispatchKey::CUDA;
constexpr auto kDeviceType = c10::DeviceType::CUDA;
bool current_stream(std::int32_t device, void** stream) { return aoti_torch_get_current_cuda_stream(device, stream) == 0; }
#else
namespace own = at::cpu;
constexpr auto kKey = c10::DispatchKey::CPU;
constexpr auto kDeviceType = c10::DeviceType::CPU;
bool current_stream(std::int32_t, void** stream) {
  *stream = nullptr;
  return true;
}
#endif

// The reason of a refused launch is zero-terminated and cut to this.
constexpr std::size_t kMessageBytes = 512;
constexpr std::int64_t kElsewhere = -2;  // the device of an operand that is not of kDeviceType
enum Operator : int { kMm, kAddmm, kOperators };

// Enqueues D = A B on a stream, with a bias unless that is 0. `launched` becomes 1 once it is enqueued. Else it stays 0 and
// `message`, which is zero before, holds the reason. Results of Python functions are never returned: where such a function
// raises, ctypes returns anything.
using Launch = void (*)(void* kernel, std::uint64_t a, std::uint64_t b, std::uint64_t d, std::uint64_t bias, void* stream,
                        int* launched, char* message, std::size_t message_bytes);

// Calls of one kind.
struct Tally {
  std::atomic<std::uint64_t> calls{0};

  void add() { calls.fetch_add(1, std::memory_order_relaxed); }
};

// What a signature leads to. `launch`: null for PyTorch's own kernel, which `left` counts. A withdrawn route has none either.
struct Route {
  std::atomic<Launch> launch;
  void* const kernel;
  const std::int64_t rows, columns;
  Tally *const served, *const left;
};

// One operand as Python reads it. `element`: 1 for f16, 2 for bf16, 0 for another type. Sizes are set for matrices, and for a
// bias of one dimension, as its columns.
struct Operand {
  std::int64_t dimensions, rows, columns, row_stride, column_stride, element, device;
};

// Finds the route of a signature; it stays null where that failed. `bias`: null for none. `keep`: whether the next call may use
// it too.
using Open = void (*)(const Operand* a, const Operand* b, const Operand* bias, Route** route, int* keep);
// Says that a launch failed. The route is withdrawn already.
using Failed = void (*)(Route* route, const char* message);

// Interrupts the main thread of Python, without its lock.
using Interrupt = void (*)();

// A ProductService of Python. `misaligned`: the bits of an address that must be zero. The counters: of causes found here.
struct Service {
  const Open open;
  const Failed failed;
  const Interrupt interrupt;
  const std::uint64_t misaligned;
  Tally *const deterministic, *const unaligned, *const launch_failed, *const bias, *const output;
};

using Key = std::array<std::uint64_t, 13>;

// Routes by signature, in a fixed number of places. Readers take no lock and see no half of a place: its version is odd while
// it is written, and another one afterwards. A signature that was displaced is asked for again.
class RouteCache {
 public:
  Route* find(const Key& key) const {
    const std::size_t first = place_of(key);
    for (std::size_t way = 0; way < kWays; ++way) {
      const Place& place = places_[(first + way) % kPlaces];
      const std::uint32_t version = place.version.load(std::memory_order_acquire);
      if (version % 2 || !holds(place, key)) continue;
      Route* const route = place.route.load(std::memory_order_acquire);
      if (place.version.load(std::memory_order_relaxed) == version) return route;
    }
    return nullptr;
  }

  // Where another thread writes, the route is not kept this time: a call never waits, nor does a child forked meanwhile.
  void keep(const Key& key, Route* route) {
    const std::unique_lock lock(writing_, std::try_to_lock);
    if (!lock) return;
    Place& place = place_for(key);
    const std::uint32_t version = place.version.load(std::memory_order_relaxed);
    place.version.store(version + 1, std::memory_order_relaxed);
    for (std::size_t word = 0; word < key.size(); ++word) place.key[word].store(key[word], std::memory_order_release);
    place.route.store(route, std::memory_order_release);
    place.version.store(version + 2, std::memory_order_release);
  }

 private:
  static constexpr std::size_t kPlaces = 1 << 14, kWays = 4;

  struct alignas(32) Place {
    std::atomic<std::uint32_t> version;
    std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Key>> key;
    std::atomic<Route*> route;
  };

  static std::size_t place_of(const Key& key) {
    std::uint64_t hash = 0;
    for (const std::uint64_t word : key) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return hash % kPlaces;
  }

  static bool holds(const Place& place, const Key& key) {
    for (std::size_t word = 0; word < key.size(); ++word) {
      if (place.key[word].load(std::memory_order_acquire) != key[word]) return false;
    }
    return true;
  }

  // The key's own place, else a free one, else the next one in turn.
  Place& place_for(const Key& key) {
    const std::size_t first = place_of(key);
    Place* chosen = nullptr;
    for (std::size_t way = 0; way < kWays; ++way) {
      Place& place = places_[(first + way) % kPlaces];
      if (holds(place, key)) return place;
      if (!chosen && !place.route.load(std::memory_order_relaxed)) chosen = &place;
    }
    return chosen ? *chosen : places_[(first + turn_++ % kWays) % kPlaces];
  }

  std::mutex writing_;
  std::size_t turn_ = 0;
  std::array<Place, kPlaces> places_;
};

RouteCache routes;
std::atomic<Service*> serving[kOperators];
std::atomic<bool> finished;
torch::Library* registered[kOperators];  // not freed at exit, when other threads may still multiply

thread_local bool interrupted = false;  // the user's interrupt came while Python was asked

// Passes an interrupt on once Python has returned: it cannot raise through C++. Returns whether there was one.
bool pass_interrupt(const Service& service) {
  const bool pending = std::exchange(interrupted, false);
  if (pending) service.interrupt();
  return pending;
}

Operand operand_of(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  Operand operand = {};
  operand.dimensions = tensor.dim();
  operand.element = type == at::kHalf ? 1 : type == at::kBFloat16 ? 2 : 0;
  operand.device = tensor.device().type() == kDeviceType ? tensor.device().index() : kElsewhere;
  if (operand.dimensions == 2) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    operand.rows = sizes[0], operand.columns = sizes[1];
    operand.row_stride = strides[0], operand.column_stride = strides[1];
  } else if (operand.dimensions == 1) {
    operand.columns = tensor.size(0), operand.column_stride = tensor.stride(0);
  }
  return operand;
}

// `bias`: all zeros for none.
Key key_of(const Service& service, const Operand& a, const Operand& b, const Operand& bias) {
  const auto word = [](std::int64_t number) { return static_cast<std::uint64_t>(number); };
  const auto small = [](std::int64_t number) { return static_cast<std::uint64_t>(number) & 0xffff; };
  return {reinterpret_cast<std::uintptr_t>(&service),
          small(a.element) << 48 | small(b.element) << 32 | small(a.device) << 16 | small(b.device),
          word(a.rows),
          word(a.columns),
          word(a.row_stride),
          word(a.column_stride),
          word(b.rows),
          word(b.columns),
          word(b.row_stride),
          word(b.column_stride),
          small(bias.dimensions) << 32 | small(bias.element) << 16 | small(bias.device),
          word(bias.columns),
          word(bias.column_stride)};
}

// The route of a product. Python is asked for one that is not kept, and for operands that are not matrices, which are errors.
Route* route_of(const Service& service, const at::Tensor& a, const at::Tensor& b, const at::Tensor* bias) {
  const Operand left = operand_of(a), right = operand_of(b), added = bias ? operand_of(*bias) : Operand{};
  const bool matrices = left.dimensions == 2 && right.dimensions == 2;
  const Key key = key_of(service, left, right, added);
  if (matrices) {
    if (Route* const known = routes.find(key)) return known;
  }
  if (finished.load(std::memory_order_acquire)) return nullptr;
  Route* opened = nullptr;
  int keep = 0;
  service.open(&left, &right, bias ? &added : nullptr, &opened, &keep);
  pass_interrupt(service);
  if (opened && keep && matrices) routes.keep(key, opened);
  return opened;
}

bool left_to_torch(Tally& cause) {
  cause.add();
  return false;
}

// A launch that fails is not tried again.
bool enqueued(const Service& service, Route& route, Launch launch, const at::Tensor& a, const at::Tensor& b,
              const at::Tensor* bias, at::Tensor& out) {
  const auto left = reinterpret_cast<std::uintptr_t>(a.const_data_ptr());
  const auto right = reinterpret_cast<std::uintptr_t>(b.const_data_ptr());
  const auto result = reinterpret_cast<std::uintptr_t>(out.mutable_data_ptr());
  const auto added = bias ? reinterpret_cast<std::uintptr_t>(bias->const_data_ptr()) : 0;
  if ((left | right | result | added) & service.misaligned || (bias && !added)) return left_to_torch(*service.unaligned);
  void* stream = nullptr;
  if (!current_stream(a.device().index(), &stream)) return left_to_torch(*service.launch_failed);
  int launched = 0;
  char message[kMessageBytes];
  std::memset(message, 0, sizeof message);
  launch(route.kernel, left, right, result, added, stream, &launched, message, sizeof message);
  if (launched) {
    route.served->add();
    return true;
  }
  if (pass_interrupt(service)) return left_to_torch(*service.launch_failed);
  const bool first = route.launch.exchange(nullptr, std::memory_order_acq_rel) != nullptr;
  if (first && !finished.load(std::memory_order_acquire)) service.failed(&route, message);
  return left_to_torch(*service.launch_failed);
}

// Whether a kernel can write a matrix of the caller's, which is none that it reads.
bool fits(const at::Tensor& out, const Route& route, const at::Tensor& a, const at::Tensor& b) {
  const bool sized = out.dim() == 2 && out.size(0) == route.rows && out.size(1) == route.columns;
  const bool alike = sized && out.scalar_type() == a.scalar_type() && out.device() == a.device() && out.is_contiguous();
  return alike && out.const_data_ptr() != a.const_data_ptr() && out.const_data_ptr() != b.const_data_ptr();
}

// The product by a kernel of the library; an undefined tensor where PyTorch's own kernel has to compute it. `bias`: null for
// none. `into`: a matrix of the caller's that is written and returned; null for a new one. It is untouched where PyTorch's own
// kernel has to compute the product.
at::Tensor product(const Service& service, const at::Tensor& a, const at::Tensor& b, const at::Tensor* bias = nullptr,
                   const at::Tensor* into = nullptr) {
  Route* const route = route_of(service, a, b, bias);
  if (!route) return {};
  const Launch launch = route->launch.load(std::memory_order_acquire);
  if (!launch) {
    route->left->add();
    return {};
  }
  if (into && !fits(*into, *route, a, b)) {
    service.output->add();
    return {};
  }
  if (at::globalContext().deterministicAlgorithms()) {  // an entry does not say in which order it adds
    service.deterministic->add();
    return {};
  }
  at::Tensor out = into ? *into : own::empty({route->rows, route->columns}, a.options());
  return enqueued(service, *route, launch, a, b, bias, out) ? out : at::Tensor();
}

at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2) {
  if (const Service* const service = serving[kMm].load(std::memory_order_acquire)) {
    at::Tensor out = product(*service, self, mat2);
    if (out.defined()) return out;
  }
  return own::mm(self, mat2);
}

at::Tensor& mm_out(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  if (const Service* const service = serving[kMm].load(std::memory_order_acquire)) {
    if (product(*service, self, mat2, nullptr, &out).defined()) return out;
  }
  return own::mm_outf(self, mat2, out);
}

// Whether the library may serve an addmm. What is scaled, or is no row of elements, is PyTorch's own, and is counted.
bool plain(const Service& service, const at::Tensor& bias, const at::Scalar& beta, const at::Scalar& alpha) {
  return (beta.equal(1) && alpha.equal(1) && bias.dim() == 1) || left_to_torch(*service.bias);
}

at::Tensor addmm(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (const Service* const service = serving[kAddmm].load(std::memory_order_acquire)) {
    if (plain(*service, self, beta, alpha)) {
      at::Tensor out = product(*service, mat1, mat2, &self);
      if (out.defined()) return out;
    }
  }
  return own::addmm(self, mat1, mat2, beta, alpha);
}

at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2, const at::Scalar& beta,
                      const at::Scalar& alpha, at::Tensor& out) {
  if (const Service* const service = serving[kAddmm].load(std::memory_order_acquire)) {
    if (plain(*service, self, beta, alpha) && product(*service, mat1, mat2, &self, &out).defined()) return out;
  }
  return own::addmm_outf(self, mat1, mat2, beta, alpha, out);
}

// PyTorch warns of a kernel that replaces another one, which is what is wanted here.
class Quiet : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void register_kernel(Operator which) {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", std::make_optional(kKey), __FILE__, __LINE__);
  if (which == kMm) {
    library->impl("mm", TORCH_FN(mm));
    library->impl("mm.out", TORCH_FN(mm_out));
  } else {
    library->impl("addmm", TORCH_FN(addmm));
    library->impl("addmm.out", TORCH_FN(addmm_out));
  }
  registered[which] = library.release();
}

}  // namespace

CUDAL2_EXPORT Tally* cudal2_tally() { return new Tally; }

CUDAL2_EXPORT Route* cudal2_route(Launch launch, void* kernel, std::int64_t rows, std::int64_t columns, Tally* served,
                                  Tally* left) {
  return new Route{launch, kernel, rows, columns, served, left};
}

CUDAL2_EXPORT void cudal2_withdraw(Route* route) { route->launch.store(nullptr, std::memory_order_release); }

CUDAL2_EXPORT Service* cudal2_service(Open open, Failed failed, Interrupt interrupt, std::uint64_t misaligned,
                                      Tally* deterministic, Tally* unaligned, Tally* launch_failed, Tally* bias,
                                      Tally* output) {
  return new Service{open, failed, interrupt, misaligned, deterministic, unaligned, launch_failed, bias, output};
}

// For a function of Python that was interrupted while C++ called it.
CUDAL2_EXPORT void cudal2_interrupt() { interrupted = true; }

// Has an operator ask a service from now on; null for PyTorch's own kernel alone.
CUDAL2_EXPORT void cudal2_serve(int which, Service* service) { serving[which].store(service, std::memory_order_release); }

// Registers the kernel of an operator. Returns null, or why PyTorch refused it.
CUDAL2_EXPORT const char* cudal2_register(int which) {
  static thread_local std::string refused;
  try {
    register_kernel(static_cast<Operator>(which));
    return nullptr;
  } catch (const std::exception& error) {
    refused = error.what();
    return refused.c_str();
  }
}

// Ends a registration. No other thread may be calling the operator.
CUDAL2_EXPORT void cudal2_unregister(int which) {
  delete registered[which];
  registered[which] = nullptr;
}

// Python ends: nothing is put to it from now on, and every product is PyTorch's own.
CUDAL2_EXPORT void cudal2_finish() {
  finished.store(true, std::memory_order_release);
  for (auto& each : serving) each.store(nullptr, std::memory_order_release);
}
