// Runs every kernel of this folder on operands of -1, 0 and 1, and compares entries of D with sums of whole numbers.
// Usage: example FOLDER [any]. With "any", kernels run on another chip than the one that they were measured on.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>

#include "cudal2.hpp"

extern "C" {  // of the CUDA driver
int cuMemAlloc_v2(cudal2::Address* address, std::size_t bytes);
int cuMemFree_v2(cudal2::Address address);
int cuMemcpyHtoD_v2(cudal2::Address to, const void* from, std::size_t bytes);
int cuMemcpyDtoH_v2(void* to, cudal2::Address from, std::size_t bytes);
int cuCtxSynchronize();
}

namespace {

using Words = std::vector<std::uint16_t>;

void check(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s failed with CUDA error %d\n", what, status);
  std::exit(1);
}

// A buffer on the device.
struct Buffer {
  explicit Buffer(const Words& words) : bytes(words.size() * 2) {
    check(cuMemAlloc_v2(&address, bytes), "cuMemAlloc");
    check(cuMemcpyHtoD_v2(address, words.data(), bytes), "cuMemcpyHtoD");
  }
  ~Buffer() { cuMemFree_v2(address); }
  Words read() const {
    Words words(bytes / 2);
    check(cuMemcpyDtoH_v2(words.data(), address, bytes), "cuMemcpyDtoH");
    return words;
  }
  cudal2::Address address = 0;
  std::size_t bytes;
};

// The value of a normal f16 or bf16 number, or zero.
double value_of(std::uint16_t word, bool bfloat16) {
  const int bits = bfloat16 ? 7 : 10, bias = bfloat16 ? 127 : 15;
  const int exponent = (word & 0x7FFF) >> bits, fraction = word & ((1 << bits) - 1);
  if (!exponent) return 0;
  double value = 1.0 + static_cast<double>(fraction) / (1 << bits);
  for (int step = exponent; step > bias; --step) value *= 2;
  for (int step = exponent; step < bias; ++step) value /= 2;
  return word & 0x8000 ? -value : value;
}

Words drawn(std::size_t count, bool bfloat16, std::mt19937& random) {
  const std::uint16_t one = bfloat16 ? 0x3F80 : 0x3C00;
  const std::uint16_t values[3] = {0, one, static_cast<std::uint16_t>(one | 0x8000)};
  Words words(count);
  for (std::uint16_t& word : words) word = values[random() % 3];
  return words;
}

// Whether D holds the product at places drawn at random. Sums of this size are exact in f16; bf16 has 8 bits. `bias`: empty for
// none.
bool right(const cudal2::Product& p, const Words& a, const Words& b, const Words& bias, const Words& d, std::mt19937& random) {
  const bool bfloat16 = p.element == cudal2::Element::kBF16;
  for (int sample = 0; sample < 256; ++sample) {
    const std::size_t i = random() % p.m, j = random() % p.n;
    double sum = p.bias ? value_of(bias[j], bfloat16) : 0;
    for (std::size_t l = 0; l < p.k; ++l) {
      const std::size_t of_a = p.layout == cudal2::Layout::kNT ? l * p.m + i : i * p.k + l;
      const std::size_t of_b = p.layout == cudal2::Layout::kTN ? j * p.k + l : l * p.n + j;
      sum += value_of(a[of_a], bfloat16) * value_of(b[of_b], bfloat16);
    }
    const double error = value_of(d[i * p.n + j], bfloat16) - sum, size = sum < 0 ? -sum : sum;
    if ((error < 0 ? -error : error) > (bfloat16 ? size / 256 : 0)) {
      std::printf("D[%zu][%zu] is %g, not %g\n", i, j, sum + error, sum);
      return false;
    }
  }
  return true;
}

bool run(cudal2::KernelLibrary& library, const cudal2::Entry& entry) {
  const cudal2::Product& p = entry.product;
  const bool bfloat16 = p.element == cudal2::Element::kBF16;
  std::mt19937 random(1);
  const Words a = drawn(p.m * p.k, bfloat16, random), b = drawn(p.k * p.n, bfloat16, random);
  const Words bias = drawn(p.bias ? p.n : 0, bfloat16, random);
  const Buffer on_a(a), on_b(b), on_d(Words(p.m * p.n, 0xFFFF));
  std::optional<Buffer> on_bias;
  if (p.bias) on_bias.emplace(bias);
  const char* const added = p.bias ? " + bias" : "";
  if (!library.multiply(p, on_a.address, on_b.address, on_d.address, nullptr, on_bias ? on_bias->address : 0)) {
    std::printf("%zux%zux%zu%s: no kernel on this GPU\n", p.m, p.n, p.k, added);
    return false;
  }
  check(cuCtxSynchronize(), "the kernel");
  const bool passed = right(p, a, b, bias, on_d.read(), random);
  std::printf("%zux%zux%zu%s: %s\n", p.m, p.n, p.k, added, passed ? "right" : "WRONG");
  return passed;
}

}  // namespace

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [any]\n", words[0]);
    return 2;
  }
  try {
    const bool any_chip = count > 2 && std::strcmp(words[2], "any") == 0;
    const std::vector<cudal2::Entry> entries = cudal2::exported_entries();
    cudal2::KernelLibrary library(words[1], cudal2::kExportedChip, entries, 0, any_chip);
    const cudal2::Current current(library.gpu().driver, library.gpu().context());
    std::size_t passed = 0;
    for (const cudal2::Entry& entry : entries) passed += run(library, entry);
    std::printf("%zu of %zu kernels are right on %s\n", passed, entries.size(), library.gpu().name().c_str());
    return passed == entries.size() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
