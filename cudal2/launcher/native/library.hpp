// A folder of kernels: the products that it has, and their kernels, which are loaded at their first use.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernel.hpp"

namespace cudal2 {

enum class Layout { kNN, kTN, kNT };  // first letter t: B lies as N x K; second letter t: A lies as K x M; D is always M x N
enum class Element { kF16, kBF16 };
enum class Accumulator { kF32, kF16 };

// D = A B, where A is M x K and B is K x N. `bias`: N elements are added to every row, before D is rounded.
struct Product {
  std::uint64_t m, n, k;
  Layout layout = Layout::kNN;
  Element element = Element::kF16;
  Accumulator accumulator = Accumulator::kF32;
  bool bias = false;

  auto key() const { return std::tuple(m, n, k, layout, element, accumulator, bias); }
};

// One kernel; `cubin` is a file of the library's folder. Its time and its speedup over cuBLASLt-AutoTuning, with the lower end
// of its interval, are those of the chip that the library was measured on.
struct Entry {
  Product product;
  std::string id, cubin;
  double time_us, speedup, speedup_low;
  Plan plan;
};

// The kernels of one folder on one GPU. Any number of threads may use it.
class KernelLibrary {
 public:
  // `chip`: where the entries were measured. On a GPU of another name no entry is found, unless `any_chip`.
  KernelLibrary(std::string folder, const std::string& chip, std::vector<Entry> entries, int device = 0, bool any_chip = false,
                const std::string& driver = "libcuda.so.1")
      : folder_(std::move(folder)), gpu_(std::make_shared<Gpu>(device, driver)), entries_(std::move(entries)) {
    if (!any_chip && gpu_->name().find(chip) == std::string::npos) return;
    for (const Entry& entry : entries_) found_.emplace(entry.product.key(), &entry);
  }
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  const Gpu& gpu() const { return *gpu_; }

  // The entry of exactly this product, or null: then another library is at least as fast.
  const Entry* find(const Product& product) const {
    const auto at = found_.find(product.key());
    return at == found_.end() ? nullptr : at->second;
  }

  // Enqueues D = A B and returns true; false, with nothing done, where the library has no entry. Addresses are those of the
  // device, aligned to kAlignment; matrices are contiguous. The first call of a product loads its kernel. `bias`: of N elements
  // that are added, 0 for none; a product with one has entries of its own.
  bool multiply(Product product, Address a, Address b, Address d, Stream stream, Address bias = 0) {
    product.bias |= bias != 0;
    const Entry* const entry = find(product);
    if (entry) kernel(*entry).launch(a, b, d, stream, bias);
    return entry != nullptr;
  }

  // The kernel of an entry of this library, loaded. Calling this early keeps the loading out of the first product.
  Kernel& kernel(const Entry& entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& kernel = kernels_[&entry];
    if (!kernel) kernel = std::make_unique<Kernel>(gpu_, read(entry.cubin), entry.plan);
    return *kernel;
  }

 private:
  using Key = decltype(std::declval<Product>().key());

  std::string read(const std::string& cubin) const {
    const std::string path = folder_ + "/" + cubin;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw Error(path + " cannot be read; name the folder of the kernels", "CUDA_ERROR_FILE_NOT_FOUND");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string folder_;
  const std::shared_ptr<const Gpu> gpu_;
  const std::vector<Entry> entries_;
  std::map<Key, const Entry*> found_;
  std::mutex mutex_;
  std::map<const Entry*, std::unique_ptr<Kernel>> kernels_;
};

// What `entries.cpp` of an exported folder defines: its entries, and the chip that they were measured on.
std::vector<Entry> exported_entries();
extern const char* const kExportedChip;

}  // namespace cudal2
