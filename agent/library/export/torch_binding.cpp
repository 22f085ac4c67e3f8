// The operator mm: a kernel of this folder where there is one for the product on this GPU, else PyTorch's own. With a bias that
// is addmm.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "../cudal2/cudal2.hpp"
#include "registration.h"

namespace {

std::mutex mutex;
std::string folder;                                               // with the cubins
std::map<int, std::unique_ptr<cudal2::KernelLibrary>> libraries;  // by device; null where the driver cannot serve

void open_folder(std::string path) {
  const std::lock_guard<std::mutex> lock(mutex);
  folder = std::move(path);
}

cudal2::KernelLibrary* library_of(int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = libraries.find(device); found != libraries.end()) return found->second.get();
  std::unique_ptr<cudal2::KernelLibrary> library;
  try {
    library = std::make_unique<cudal2::KernelLibrary>(folder, cudal2::kExportedChip, cudal2::exported_entries(), device);
  } catch (const cudal2::Unavailable&) {
  }
  return (libraries[device] = std::move(library)).get();
}

// Whether a matrix lies transposed in memory; nothing where it is not contiguous either way.
std::optional<bool> transposed(const at::Tensor& matrix) {
  const auto rows = matrix.size(0), columns = matrix.size(1);
  if (matrix.stride(1) == 1 && matrix.stride(0) == columns) return false;
  if (matrix.stride(0) == 1 && matrix.stride(1) == rows) return true;
  return std::nullopt;
}

using Bias = std::optional<at::Tensor>;

std::optional<cudal2::Product> product_of(const at::Tensor& a, const at::Tensor& b, const Bias& bias) {
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0) || a.scalar_type() != b.scalar_type()) return std::nullopt;
  if (a.device() != b.device()) return std::nullopt;
  if (bias) {
    const bool row = bias->dim() == 1 && bias->size(0) == b.size(1) && bias->is_contiguous();
    if (!row || bias->scalar_type() != a.scalar_type() || bias->device() != a.device()) return std::nullopt;
  }
  const bool half = a.scalar_type() == at::kHalf;
  if (!half && a.scalar_type() != at::kBFloat16) return std::nullopt;
  const auto of_a = transposed(a), of_b = transposed(b);
  if (!of_a || !of_b || (*of_a && *of_b)) return std::nullopt;
  const auto layout = *of_a ? cudal2::Layout::kNT : *of_b ? cudal2::Layout::kTN : cudal2::Layout::kNN;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return cudal2::Product{size(a.size(0)),
                         size(b.size(1)),
                         size(a.size(1)),
                         layout,
                         half ? cudal2::Element::kF16 : cudal2::Element::kBF16,
                         cudal2::Accumulator::kF32,
                         bias.has_value()};
}

cudal2::Address address_of(const at::Tensor& tensor) { return reinterpret_cast<cudal2::Address>(tensor.const_data_ptr()); }

at::Tensor mm(const at::Tensor& a, const at::Tensor& b, const Bias& bias) {
  const auto product = product_of(a, b, bias);
  cudal2::KernelLibrary* const library = product ? library_of(a.get_device()) : nullptr;
  const cudal2::Address added = product && bias ? address_of(*bias) : 0;
  if (!library || !library->find(*product) || (address_of(a) | address_of(b) | added) % cudal2::kAlignment) {
    return bias ? at::addmm(*bias, a, b) : at::mm(a, b);
  }
  const c10::cuda::CUDAGuard guard(a.device());
  const at::Tensor d = at::empty({a.size(0), b.size(1)}, a.options());
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(a.get_device());
  const auto handle = reinterpret_cast<cudal2::Stream>(stream.stream());
  library->multiply(*product, address_of(a), address_of(b), address_of(d), handle, added);
  return d;
}

}  // namespace

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("open_folder(str folder) -> ()", &open_folder);
  ops.def("mm(Tensor a, Tensor b, Tensor? bias=None) -> Tensor");
  ops.impl("mm", c10::kCUDA, &mm);
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
