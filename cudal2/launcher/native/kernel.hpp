// A launch plan in plain numbers, and a cubin with its plan as launches on a stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "driver.hpp"

namespace cudal2 {

constexpr Address kAlignment = 256;  // of operands, in bytes; kernels were verified with it
constexpr unsigned kPortableCluster = 8;
constexpr std::size_t kMaxArguments = 64;
constexpr std::size_t kMaxTensorMaps = 256;  // per parameter; a program uses few addresses, again and again
constexpr std::size_t kMaxWorkspaces = 256;  // per kernel

enum Operand : std::uint8_t { kA, kB, kD, kWorkspace, kThird };  // kThird: a bias, or a second matrix like B
enum class Zero : std::uint8_t { kNever, kEveryRun, kRestored };
using Dim = std::array<unsigned, 3>;

// What a tensor map describes: the driver's type, elements with the contiguous dimension first, strides in bytes of the others.
struct MapView {
  int type = 0;
  std::vector<std::uint64_t> sizes, strides;
  std::vector<std::uint32_t> box;
  std::uint32_t swizzle = 0, promotion = 0;  // bytes
};

// One kernel parameter.
struct Argument {
  enum Kind : std::uint8_t { kPointer, kTensorMap, kScalar } kind;
  Operand operand = kA;
  unsigned bytes = 8;
  std::uint64_t value = 0;  // a scalar's bits, or bytes from the start of the operand
  MapView view = {};
};

inline Argument pointer(Operand operand, std::uint64_t offset = 0) { return {Argument::kPointer, operand, 8, offset}; }
inline Argument scalar(std::uint64_t bits, unsigned bytes) { return {Argument::kScalar, kA, bytes, bits}; }
inline Argument tensor_map(Operand operand, std::uint64_t offset, MapView view) {
  return {Argument::kTensorMap, operand, sizeof(TensorMap), offset, std::move(view)};
}

struct Launch {
  std::string entry;
  Dim grid, block, cluster;
  unsigned shared_bytes;
  bool programmatic;
  std::vector<Argument> arguments;
};

// `sms`: of the chip that the plan was made for, 0 for any. `zero`: kRestored clears the first `zero_bytes` of the workspace
// once, and the kernel leaves them clear.
struct Plan {
  std::vector<Launch> launches;
  std::uint64_t workspace_bytes = 0;
  Zero zero = Zero::kNever;
  std::uint64_t zero_bytes = 0;
  int sms = 0;
};

// The workspaces of one kernel, one for each stream and for each capture. A lock of the kernel guards them.
class Workspaces {
 public:
  // The workspace of a stream, or of a capture on it: a graph may be launched on any stream, beside later calls on this one.
  // Streams are known by their id, because a handle is used again, and one handle means another stream in every thread. A
  // stream that is captured may not be asked for its id; it has a handle of its own in the capture. A new workspace's first
  // `zero_bytes` are zero. The GPU's context must be current.
  Address of(const Gpu& gpu, Stream stream, std::size_t bytes, std::size_t zero_bytes) {
    int status = 0;
    std::uint64_t capture = 0;
    gpu.driver.check(gpu.driver.capture_info(stream, &status, &capture, nullptr, nullptr, nullptr), "cuStreamGetCaptureInfo");
    unsigned long long id = reinterpret_cast<std::uintptr_t>(stream);
    if (status != kCaptureActive) {
      capture = 0;
      gpu.driver.check(gpu.driver.stream_id(stream, &id), "cuStreamGetId");
    }
    for (const Workspace& each : workspaces_) {
      if (each.stream == id && each.capture == capture) return each.address;
    }
    if (workspaces_.size() >= kMaxWorkspaces) {
      throw Error("the kernel has workspaces for 256 streams and captures, which is the maximum", "CUDA_ERROR_OUT_OF_MEMORY");
    }
    const Address address = gpu.allocate(bytes, zero_bytes);
    workspaces_.push_back({id, capture, address});
    return address;
  }

  std::size_t size() const { return workspaces_.size(); }

 private:
  struct Workspace {
    unsigned long long stream;  // its id, in captures its handle
    std::uint64_t capture;      // 0 outside captures
    Address address;
  };

  std::vector<Workspace> workspaces_;
};

// Kernel and plan on one GPU. Any number of threads may launch it. The code and its workspaces stay until the process ends,
// because CUDA graphs may still use them. `shared`: kernels of the same cubin share its code; they ask for equal shared memory.
class Kernel {
 public:
  Kernel(std::shared_ptr<const Gpu> gpu, const std::string& cubin, const Plan& plan, bool shared = false)
      : gpu_(std::move(gpu)), driver_(gpu_->driver), plan_(plan) {
    if (plan.sms && plan.sms != gpu_->sms()) {
      throw Error("the kernel was planned for a GPU of " + std::to_string(plan.sms) +
                      " SMs; cuda:" + std::to_string(gpu_->device) + " has " + std::to_string(gpu_->sms()),
                  "CUDA_ERROR_INVALID_DEVICE");
    }
    zeroes_every_run_ = plan.zero == Zero::kEveryRun && plan.zero_bytes > 0;
    const Current current(driver_, gpu_->context());
    const RelaxedCapture relaxed(driver_);
    const Library library = gpu_->code(cubin, shared);
    for (const Launch& launch : plan_.launches) {
      entries_.emplace_back(driver_, library, launch);
      for (const Argument& each : launch.arguments) reads_third_ |= each.kind != Argument::kScalar && each.operand == kThird;
    }
  }

  // Enqueues D = A B. `third`: the bias or the second matrix that the plan reads beside A and B; 0 is none. Addresses are those
  // of a device, aligned to kAlignment.
  // It waits for nothing and allocates nothing on the device, but for the workspace at the first call on a stream or in a
  // capture.
  void launch(Address a, Address b, Address d, Stream stream, Address third = 0) {
    if (reads_third_ != (third != 0)) {
      throw Error(reads_third_ ? "the kernel reads a third operand, and none is given" : "the kernel reads no third operand",
                  "CUDA_ERROR_INVALID_VALUE");
    }
    if ((a | b | d | third) % kAlignment) {
      throw Error("operands must be aligned to 256 bytes, as they were when the kernel was verified",
                  "CUDA_ERROR_INVALID_VALUE");
    }
    const Current current(driver_, gpu_->context());
    std::unique_lock lock(mutex_);  // a workspace's memset and its launches must not interleave with those of another thread
    const std::size_t cleared = plan_.zero == Zero::kRestored ? plan_.zero_bytes : 0;
    const Address scratch = plan_.workspace_bytes ? workspaces_.of(*gpu_, stream, plan_.workspace_bytes, cleared) : 0;
    const Operands operands = {a, b, d, scratch, third};
    if (zeroes_every_run_) driver_.check(driver_.set_bytes(scratch, 0, plan_.zero_bytes, stream), "cuMemsetD8Async");
    for (std::size_t index = 0; index < entries_.size(); ++index) enqueue(index, operands, stream, lock);
  }

  std::size_t tensor_maps() const { return cached(&Entry::maps); }
  std::size_t workspaces() const {
    const std::lock_guard lock(mutex_);
    return workspaces_.size();
  }

 private:
  using Operands = std::array<Address, 5>;  // by `Operand`
  using Maps = std::vector<std::unordered_map<Address, TensorMap>>;

  // One launch of the plan with its function, and its tensor maps by argument and address.
  struct Entry {
    Function function = nullptr;
    Maps maps;

    Entry(const Driver& driver, Library library, const Launch& launch) : maps(launch.arguments.size()) {
      LibraryKernel kernel = nullptr;
      driver.check(driver.library_kernel(&kernel, library, launch.entry.c_str()), "cuLibraryGetKernel");
      driver.check(driver.kernel_function(&function, kernel), "cuKernelGetFunction");
      driver.check(driver.load_function(function), "cuFuncLoad");  // now, not lazily inside a capture
      check_parameters(driver, launch);
      if (launch.shared_bytes) set(driver, kMaxDynamicShared, static_cast<int>(launch.shared_bytes));
      if (launch.cluster[0] * launch.cluster[1] * launch.cluster[2] > kPortableCluster) set(driver, kNonPortableCluster, 1);
    }

    void set(const Driver& driver, int attribute, int value) const {
      driver.check(driver.set_function_attribute(function, attribute, value), "cuFuncSetAttribute");
    }

    // The driver reads as many bytes as the kernel declares, so the plan must pass them all.
    void check_parameters(const Driver& driver, const Launch& launch) const {
      bool same = launch.arguments.size() <= kMaxArguments;
      std::size_t offset = 0, bytes = 0, index = 0;
      for (; same && index < launch.arguments.size(); ++index) {
        const Result status = driver.parameter_info(function, index, &offset, &bytes);
        if (status != kInvalidValue) driver.check(status, "cuFuncGetParamInfo");
        same = status == kSuccess && bytes == launch.arguments[index].bytes;
      }
      if (!same || driver.parameter_info(function, index, &offset, &bytes) == kSuccess) {
        throw Error(launch.entry + " takes other parameters than its plan passes", "CUDA_ERROR_INVALID_VALUE");
      }
    }
  };

  void enqueue(std::size_t index, const Operands& operands, Stream stream, std::unique_lock<std::mutex>& lock) {
    const Launch& launch = plan_.launches[index];
    TensorMap maps[kMaxArguments];  // not initialised: only what is used is touched
    std::uint64_t words[kMaxArguments];
    void* parameters[kMaxArguments];
    for (std::size_t at = 0; at < launch.arguments.size(); ++at) {
      const Argument& argument = launch.arguments[at];
      parameters[at] = &words[at];
      switch (argument.kind) {
        case Argument::kPointer:
          words[at] = operands[argument.operand] + argument.value;
          break;
        case Argument::kScalar:
          words[at] = argument.value;
          break;
        case Argument::kTensorMap:
          maps[at] = tensor_map_of(index, at, operands[argument.operand] + argument.value);
          parameters[at] = &maps[at];
      }
    }
    // A kernel that needs neither memory of its own nor a second launch leaves the order to the driver.
    if (entries_.size() == 1 && !plan_.workspace_bytes) lock.unlock();
    LaunchAttribute attributes[2];
    unsigned count = 0;
    if (launch.cluster != Dim{1, 1, 1}) {
      attributes[count].id = kAttributeCluster;
      std::memset(&attributes[count].value, 0, sizeof attributes[count].value);
      std::memcpy(attributes[count++].value.cluster, launch.cluster.data(), sizeof launch.cluster);
    }
    // The first launch after a memset follows no kernel, so it has no programmatic edge.
    if (launch.programmatic && !(index == 0 && zeroes_every_run_)) {
      attributes[count].id = kAttributeProgrammatic;
      std::memset(&attributes[count].value, 0, sizeof attributes[count].value);
      attributes[count++].value.programmatic = 1;
    }
    const auto& [gx, gy, gz] = launch.grid;
    const auto& [bx, by, bz] = launch.block;
    const LaunchConfig config = {{gx, gy, gz}, {bx, by, bz}, launch.shared_bytes, stream, count ? attributes : nullptr, count};
    driver_.check(driver_.launch(&config, entries_[index].function, parameters, nullptr), "cuLaunchKernelEx");
  }

  // The descriptor of a view at an address. It depends on nothing else, so it stays right when memory is used again.
  const TensorMap& tensor_map_of(std::size_t index, std::size_t at, Address address) {
    auto& known = entries_[index].maps[at];
    if (const auto found = known.find(address); found != known.end()) return found->second;
    const MapView& view = plan_.launches[index].arguments[at].view;
    const std::vector<std::uint32_t> steps(view.sizes.size(), 1);
    const auto power = [](std::uint32_t bytes, std::uint32_t first) {  // 0, then 1 for `first`, 2 for twice that, and so on
      int code = 0;
      for (; bytes >= first; bytes /= 2) ++code;
      return code;
    };
    TensorMap map;
    driver_.check(driver_.encode_tiled(&map, view.type, static_cast<std::uint32_t>(view.sizes.size()),
                                       reinterpret_cast<void*>(address), view.sizes.data(), view.strides.data(),
                                       view.box.data(), steps.data(), 0, power(view.swizzle, 32), power(view.promotion, 64), 0),
                  "cuTensorMapEncodeTiled");
    if (known.size() >= kMaxTensorMaps) known.clear();
    return known.emplace(address, map).first->second;
  }

  std::size_t cached(Maps Entry::* maps) const {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const Entry& entry : entries_) {
      for (const auto& each : entry.*maps) count += each.size();
    }
    return count;
  }

  const std::shared_ptr<const Gpu> gpu_;
  const Driver& driver_;
  const Plan plan_;
  bool zeroes_every_run_ = false, reads_third_ = false;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  Workspaces workspaces_;
};

}  // namespace cudal2
