// The launcher as Python sees it: plans, GPUs, kernels. Errors are those of `contract/errors.py`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "cublaslt.hpp"
#include "kernel.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using cudal2::Address;
using cudal2::Argument;
using cudal2::Dim;
using cudal2::Gpu;
using cudal2::Kernel;
using cudal2::Lt;
using cudal2::LtKernel;
using cudal2::LtProduct;
using cudal2::Plan;

void raise(const char* name, nb::tuple arguments) {
  const nb::object type = nb::module_::import_("cudal2_agent.contract.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const cudal2::Unavailable& error) {
    raise("DeviceUnavailable", nb::make_tuple(error.what()));
  } catch (const cudal2::Error& error) {
    raise("LauncherError", nb::make_tuple(error.what(), error.status));
  }
}

void bind_plan(nb::module_& module) {
  nb::enum_<cudal2::Operand>(module, "Operand", nb::is_arithmetic(), "A matrix of the product.")
      .value("A", cudal2::kA)
      .value("B", cudal2::kB)
      .value("D", cudal2::kD)
      .value("WORKSPACE", cudal2::kWorkspace)
      .value("THIRD", cudal2::kThird);
  nb::enum_<cudal2::Zero>(module, "Zero", "When the workspace is cleared.")
      .value("NEVER", cudal2::Zero::kNever)
      .value("EVERY_RUN", cudal2::Zero::kEveryRun)
      .value("RESTORED", cudal2::Zero::kRestored);
  nb::class_<Argument>(module, "Argument", "One kernel parameter.");
  nb::class_<cudal2::MapView>(module, "MapView", "What a tensor map describes.")
      .def(nb::init<int, std::vector<std::uint64_t>, std::vector<std::uint64_t>, std::vector<std::uint32_t>, std::uint32_t,
                    std::uint32_t>(),
           "type"_a, "sizes"_a, "strides"_a, "box"_a, "swizzle"_a, "promotion"_a);
  module.def("pointer", &cudal2::pointer, "operand"_a, "offset"_a = 0);
  module.def("scalar", &cudal2::scalar, "bits"_a, "bytes"_a);
  module.def("tensor_map", &cudal2::tensor_map, "operand"_a, "offset"_a, "view"_a);
  nb::class_<cudal2::Launch>(module, "Launch", "One launch in plain numbers.")
      .def(nb::init<std::string, Dim, Dim, Dim, unsigned, bool, std::vector<Argument>>(), "entry"_a, "grid"_a, "block"_a,
           "cluster"_a, "shared_bytes"_a, "programmatic"_a, "arguments"_a);
  nb::class_<Plan>(module, "Plan", "Launches and the workspace.")
      .def(nb::init<std::vector<cudal2::Launch>, std::uint64_t, cudal2::Zero, std::uint64_t, int>(), "launches"_a,
           "workspace_bytes"_a, "zero"_a, "zero_bytes"_a, "sms"_a);
}

std::shared_ptr<Kernel> load(std::shared_ptr<Gpu> gpu, const nb::bytes& cubin, const Plan& plan, bool shared) {
  const nb::gil_scoped_release unlocked;
  return std::make_shared<Kernel>(std::move(gpu), std::string(cubin.c_str(), cubin.size()), plan, shared);
}

std::shared_ptr<Lt> open_cublaslt(std::shared_ptr<Gpu> gpu, const std::vector<std::string>& files) {
  const nb::gil_scoped_release unlocked;
  return std::make_shared<Lt>(std::move(gpu), files);
}

std::shared_ptr<LtKernel> load_algorithm(std::shared_ptr<Lt> lt, const LtProduct& product) {
  const nb::gil_scoped_release unlocked;
  return std::make_shared<LtKernel>(std::move(lt), product);
}

LtProduct lt_product(const std::array<std::uint64_t, 3>& sizes, bool transposes_a, bool transposes_b, bool bfloat16,
                     const cudal2::LtConfiguration& configuration, const nb::bytes& opaque) {
  return {sizes[0], sizes[1], sizes[2], transposes_a, transposes_b, bfloat16, configuration, {opaque.c_str(), opaque.size()}};
}

// Without the interpreter's lock: the driver waits where a stream's queue is full, and what it waits for may need that lock.
template <class Kernel>
void launch(Kernel& kernel, Address a, Address b, Address d, std::uint64_t stream, Address third) {
  const nb::gil_scoped_release unlocked;
  kernel.launch(a, b, d, reinterpret_cast<cudal2::Stream>(stream), third);
}

// The same for callers in C. `launched` becomes 1 once D = A B is enqueued; else `message` holds the error.
template <class Kernel>
void launch_for_c(void* kernel, Address a, Address b, Address d, Address third, void* stream, int* launched, char* message,
                  std::size_t message_bytes) noexcept {
  try {
    static_cast<Kernel*>(kernel)->launch(a, b, d, static_cast<cudal2::Stream>(stream), third);
    *launched = 1;
  } catch (const std::exception& error) {
    message[std::string_view(error.what()).copy(message, message_bytes - 1)] = 0;
  }
}

template <class Kernel>
std::pair<std::uintptr_t, std::uintptr_t> c_entry(Kernel& kernel) {
  return {reinterpret_cast<std::uintptr_t>(&launch_for_c<Kernel>), reinterpret_cast<std::uintptr_t>(&kernel)};
}

template <class Kernel>
nb::class_<Kernel> bind_kernel(nb::module_& module, const char* name, const char* told) {
  return nb::class_<Kernel>(module, name, told)
      .def("launch", &launch<Kernel>, "a"_a, "b"_a, "d"_a, "stream"_a, "third"_a = 0,
           "Enqueue D = A B: device addresses, and a stream's handle. `third`: a bias or a second matrix; 0 for none.")
      .def_prop_ro("c_entry", &c_entry<Kernel>, "Addresses of a C function that launches, and of its first argument.")
      .def_prop_ro("workspaces", &Kernel::workspaces, "Number of workspaces, one per stream and capture.");
}

void bind_cublaslt(nb::module_& module) {
  nb::class_<LtProduct>(module, "LtProduct", "A row-major product, and the algorithm of cuBLASLt that is to compute it.");
  module.def("lt_product", &lt_product, "sizes"_a, "transposes_a"_a, "transposes_b"_a, "bfloat16"_a, "configuration"_a,
             "opaque"_a);
  bind_kernel<LtKernel>(module, "LtKernel", "An algorithm of cuBLASLt for one product on one GPU.")
      .def_prop_ro("workspace_bytes", &LtKernel::workspace_bytes, "Size of each workspace.");
  nb::class_<Lt>(module, "Lt", "cuBLASLt on one GPU.").def("load", &load_algorithm, "product"_a);
  module.def(
      "cublaslt_version", [](const std::vector<std::string>& files) { return cudal2::LtLibrary(files).version(); }, "files"_a,
      "The version of the library that is loaded, or of the first file that loads, as cuBLAS packs it.");
}

}  // namespace

NB_MODULE(_native, module) {
  nb::set_leak_warnings(false);  // kernels stay loaded until the process ends, since graphs may use them
  nb::register_exception_translator(translate);
  bind_plan(module);
  module.attr("ALIGNMENT") = cudal2::kAlignment;
  bind_kernel<Kernel>(module, "Kernel", "A kernel with its plan on one GPU.")
      .def_prop_ro("tensor_maps", &Kernel::tensor_maps, "Number of descriptors in the cache.");
  bind_cublaslt(module);
  nb::class_<Gpu>(module, "Gpu", "One GPU with its primary context.")
      .def(nb::init<int, const std::string&>(), "device"_a, "driver"_a)
      .def_prop_ro("sms", &Gpu::sms)
      .def("load", &load, "cubin"_a, "plan"_a, "shared"_a = false)
      .def("open_cublaslt", &open_cublaslt, "files"_a, "cuBLASLt, of the file that is loaded, or of the first that loads.");
}
