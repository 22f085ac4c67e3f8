// A cuBLASLt without a GPU: it records calls, suggests what a test asks for, and can multiply in host memory. Its types are
// declared here once more, from the documentation of cuBLASLt, so that those of the launcher are checked against them.
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kMagic = 0xA160;  // of algorithms that this library knows
constexpr int kNotSupported = 15, kInvalidValue = 7;

struct Algorithm {  // configuration: id, tile, stages, split K, reduction, cluster
  uint64_t magic;
  int32_t configuration[6];
  uint64_t workspace, mark, padding[2];
};
static_assert(sizeof(Algorithm) == 64);

struct Result {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct Operation {
  int compute, scale;
  std::map<int, int32_t> attributes;
};

struct Matrix {
  int type;
  uint64_t rows, columns;
  int64_t lead;
};

std::mutex mutex;
std::vector<std::string> events;
std::vector<Result> suggestions;
std::map<std::string, int> failures;
std::string joined;
size_t version = 130100;
bool computing = false;

void record(const std::string& event) {
  const std::lock_guard lock(mutex);
  events.push_back(event);
}

int failure(const char* function) {
  const std::lock_guard lock(mutex);
  const auto found = failures.find(function);
  return found == failures.end() ? 0 : found->second;
}

std::string numbers(const Matrix& matrix) {
  std::ostringstream text;
  text << "[" << matrix.type << ", " << matrix.rows << ", " << matrix.columns << ", " << matrix.lead << "]";
  return text.str();
}

float number(uint16_t bits, int type) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;  // bf16
  if (type == 2) {
    const uint32_t exponent = bits >> 10 & 31;
    wide = exponent ? (bits & 0x8000u) << 16 | (exponent + 112) << 23 | (bits & 1023u) << 13 : 0;
  }
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

uint16_t rounded(float value, int type) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const int dropped = type == 2 ? 13 : 16;
  const uint32_t half = 1u << (dropped - 1), rest = bits & (2 * half - 1);
  bits = (bits >> dropped) + (rest > half || (rest == half && (bits >> dropped & 1)));
  if (type != 2) return bits;
  const int exponent = static_cast<int>(bits >> 10 & 255) - 112;
  return exponent <= 0 ? 0 : (bits >> 3 & 0x8000) | exponent << 10 | (bits & 1023);
}

void compute(const Operation& operation, const Matrix& a, const uint16_t* left, const Matrix& b, const uint16_t* right,
             const Matrix& d, uint16_t* out) {
  const bool a_transposed = operation.attributes.at(3), b_transposed = operation.attributes.at(4);
  const uint64_t depth = a_transposed ? a.rows : a.columns;
  for (uint64_t row = 0; row < d.rows; ++row) {
    for (uint64_t column = 0; column < d.columns; ++column) {
      float sum = 0;
      for (uint64_t at = 0; at < depth; ++at) {
        sum += number(left[a_transposed ? row * a.lead + at : at * a.lead + row], a.type) *
               number(right[b_transposed ? at * b.lead + column : column * b.lead + at], b.type);
      }
      out[column * d.lead + row] = rounded(sum, d.type);
    }
  }
}

}  // namespace

#define FAIL(function) \
  if (const int failed = failure(#function)) return failed

extern "C" {

void fake_reset() {
  const std::lock_guard lock(mutex);
  events.clear();
  suggestions.clear();
  failures.clear();
  version = 130100;
  computing = false;
}
void fake_version(size_t packed) { version = packed; }
void fake_compute(int on) { computing = on; }
void fake_fail(const char* function, int status) { failures[function] = status; }
void fake_suggest(const int32_t* configuration, uint64_t workspace, uint64_t mark, int state, void* written) {
  Result result = {};
  result.algorithm.magic = kMagic;
  memcpy(result.algorithm.configuration, configuration, sizeof result.algorithm.configuration);
  result.algorithm.workspace = result.workspace = workspace;
  result.algorithm.mark = mark;
  result.state = state;
  if (written) {
    memcpy(written, &result.algorithm, sizeof result.algorithm);
  } else {
    suggestions.push_back(result);
  }
}
const char* fake_events() {
  const std::lock_guard lock(mutex);
  joined.clear();
  for (const std::string& event : events) joined += event + "\n";
  events.clear();
  return joined.c_str();
}

size_t cublasLtGetVersion() { return version; }
const char* cublasLtGetStatusName(int status) {
  static const std::map<int, const char*> names = {
      {0, "CUBLAS_STATUS_SUCCESS"}, {1, "CUBLAS_STATUS_NOT_INITIALIZED"}, {13, "CUBLAS_STATUS_EXECUTION_FAILED"}};
  const auto found = names.find(status);
  return found == names.end() ? nullptr : found->second;
}
int cublasLtCreate(void** handle) {
  FAIL(cublasLtCreate);
  record("{\"call\": \"create\"}");
  *handle = reinterpret_cast<void*>(0x17);
  return 0;
}
int cublasLtMatmulDescCreate(void** made, int compute_type, int scale_type) {
  FAIL(cublasLtMatmulDescCreate);
  *made = new Operation{compute_type, scale_type, {}};
  return 0;
}
int cublasLtMatmulDescDestroy(void* made) { return delete static_cast<Operation*>(made), 0; }
int cublasLtMatmulDescSetAttribute(void* made, int attribute, const void* value, size_t bytes) {
  if (bytes != 4) return kInvalidValue;
  memcpy(&static_cast<Operation*>(made)->attributes[attribute], value, bytes);
  return 0;
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  *made = new Matrix{type, rows, columns, lead};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* made) { return delete static_cast<Matrix*>(made), 0; }
int cublasLtMatmulPreferenceCreate(void** made) { return *made = new uint64_t(0), 0; }
int cublasLtMatmulPreferenceDestroy(void* made) { return delete static_cast<uint64_t*>(made), 0; }
int cublasLtMatmulPreferenceSetAttribute(void* made, int attribute, const void* value, size_t bytes) {
  if (attribute != 1 || bytes != 8) return kInvalidValue;
  memcpy(made, value, bytes);
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void* preference, int wanted, Result* results,
                                   int* found) {
  FAIL(cublasLtMatmulAlgoGetHeuristic);
  record("{\"call\": \"suggest\", \"wanted\": " + std::to_string(wanted) +
         ", \"workspace\": " + std::to_string(*static_cast<uint64_t*>(preference)) + "}");
  *found = 0;
  for (const Result& each : suggestions) {
    if (*found < wanted) results[(*found)++] = each;
  }
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes,
                                         size_t* written) {
  static const std::map<int, std::pair<int, size_t>> places = {{0, {0, 4}}, {1, {1, 4}}, {6, {2, 4}},
                                                               {2, {3, 4}}, {3, {4, 4}}, {8, {5, 2}}};
  const auto found = places.find(attribute);
  if (algorithm->magic != kMagic || found == places.end() || bytes != found->second.second) return kInvalidValue;
  memcpy(value, &algorithm->configuration[found->second.first], bytes);
  *written = bytes;
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const Algorithm* algorithm, Result* result) {
  FAIL(cublasLtMatmulAlgoCheck);
  if (algorithm->magic != kMagic) return kNotSupported;
  result->algorithm = *algorithm;
  result->workspace = algorithm->workspace;
  result->state = 0;
  return 0;
}
int cublasLtMatmul(void* handle, void* made, const void* alpha, const void* a, void* a_matrix, const void* b, void* b_matrix,
                   const void* beta, const void* c, void* c_matrix, void* d, void* d_matrix, const Algorithm* algorithm,
                   void* workspace, size_t workspace_bytes, void* stream) {
  FAIL(cublasLtMatmul);
  const auto& operation = *static_cast<Operation*>(made);
  const auto &left = *static_cast<Matrix*>(a_matrix), &right = *static_cast<Matrix*>(b_matrix);
  const auto& out = *static_cast<Matrix*>(d_matrix);
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  std::ostringstream event;
  event << "{\"call\": \"multiply\", \"types\": [" << operation.compute << ", " << operation.scale << "], \"transposed\": ["
        << operation.attributes.at(3) << ", " << operation.attributes.at(4) << "], \"left\": " << numbers(left)
        << ", \"right\": " << numbers(right) << ", \"out\": " << numbers(out) << ", \"scales\": ["
        << *static_cast<const float*>(alpha) << ", " << *static_cast<const float*>(beta) << "], \"addresses\": [" << address(a)
        << ", " << address(b) << ", " << address(d) << "], \"mark\": " << algorithm->mark
        << ", \"workspace\": " << address(workspace) << ", \"workspace_bytes\": " << workspace_bytes
        << ", \"stream\": " << address(stream) << "}";
  record(event.str());
  if (handle != reinterpret_cast<void*>(0x17) || c != d || c_matrix != d_matrix) return kInvalidValue;
  if (computing) {
    compute(operation, left, static_cast<const uint16_t*>(a), right, static_cast<const uint16_t*>(b), out,
            static_cast<uint16_t*>(d));
  }
  return 0;
}

}  // extern "C"
