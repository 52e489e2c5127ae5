// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/numerics/bf16.h"

namespace moekit::verify {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Elements between the end of a row and the next in strided views: odd, so that rows are unaligned.
constexpr std::int64_t kRowGap = 5;

class TensorGenerator {
 public:
  TensorGenerator(const VerifyCase& verify_case, const Quirks& quirks, CaseTensors& tensors)
      : problem_(verify_case.problem),
        num_tokens_(verify_case.num_tokens),
        quirks_(quirks),
        tensors_(tensors),
        random_(verify_case.seed * 0xD6E8FEB86659FD93U + 7) {}

  void fill() {
    make_x();
    if (problem_.expert_map) {
      make_map();
    }
    if (problem_.routing.has_value()) {
      make_logits();
    } else {
      make_ids();
      make_router_weights();
    }
    if (problem_.shared != SharedInput::kNone) {
      make_shared();
    }
    make_out();
  }

 private:
  [[nodiscard]] std::int64_t row_stride(std::int64_t cols) const {
    return cols + (quirks_.views == ViewQuirk::kStrided ? kRowGap : 0);
  }

  // Room for [num_tokens, cols]; what lies between rows is all ones: NaN, or id -1.
  MutableTensorView allocate(DType dtype, std::int64_t cols) {
    const std::int64_t bytes = num_tokens_ * row_stride(cols) * dtype_bits(dtype) / 8;
    tensors_.inputs.emplace_back(bytes);
    auto* memory = tensors_.inputs.back().as<std::byte>();
    std::fill_n(memory, bytes, std::byte{0xFF});
    MutableTensorView view = matrix_view(static_cast<void*>(memory), dtype, num_tokens_, cols);
    view.strides[0] = row_stride(cols);
    return view;
  }

  static TensorView read_only(const MutableTensorView& view) {
    return {view.data, view.dtype, view.rank, view.shape, view.strides};
  }

  static void store(const MutableTensorView& view,
                    std::int64_t row,
                    std::int64_t col,
                    float value) {
    const std::int64_t at = row * view.strides[0] + col;
    if (view.dtype == DType::kF32) {
      static_cast<float*>(view.data)[at] = value;
    } else {
      static_cast<std::uint16_t*>(view.data)[at] =
          view.dtype == DType::kBf16 ? device::bf16_from_f32(value) : device::f16_from_f32(value);
    }
  }

  float x_value(std::int64_t token, std::int64_t k) {
    const float value = random_.normal();
    const bool half = problem_.io_dtype == DType::kF16;
    switch (quirks_.inputs) {
      case InputQuirk::kZero:
        return 0.0F;
      case InputQuirk::kNegativeZero:
        return -0.0F;
      case InputQuirk::kLarge:
        return random_.below(16) == 0 ? value * (half ? 0x1p12F : 0x1p40F) : value;
      case InputQuirk::kSubnormal:
        return token % 2 == 0 ? value * (half ? 0x1p-17F : 0x1p-128F) : value;
      case InputQuirk::kOneHot:
        return k == token % problem_.hidden_size ? value : 0.0F;
      default:
        return value;
    }
  }

  void make_x() {
    const MutableTensorView x = allocate(problem_.io_dtype, problem_.hidden_size);
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      for (std::int64_t k = 0; k < problem_.hidden_size; ++k) {
        store(x, token, k, x_value(token, k));
      }
    }
    const bool nan = quirks_.inputs == InputQuirk::kNanToken;
    if (num_tokens_ > 0 && (nan || quirks_.inputs == InputQuirk::kInfToken)) {
      const std::int64_t token = random_.below(num_tokens_);
      store(x,
            token,
            random_.below(problem_.hidden_size),
            nan ? kNan : (random_.below(2) == 0 ? kInfinity : -kInfinity));
    }
    tensors_.arguments.x = read_only(x);
  }

  void make_map() {
    const std::int64_t router_experts = num_router_experts(problem_);
    tensors_.inputs.emplace_back(router_experts * 4);
    auto* map = tensors_.inputs.back().as<std::int32_t>();
    for (std::int64_t i = 0; i < router_experts; ++i) {
      map[i] = i < problem_.num_experts ? static_cast<std::int32_t>(i) : -1;
    }
    for (std::int64_t i = router_experts - 1; i > 0; --i) {
      std::swap(map[i], map[random_.below(i + 1)]);
    }
    tensors_.arguments.expert_map = map;
  }

  std::int64_t id_of(std::int64_t token, std::int64_t slot, std::int64_t first) {
    const std::int64_t experts = num_router_experts(problem_);
    // Distinct within a token where there are enough experts, as routers choose.
    const std::int64_t id = (first + slot * (1 + experts / problem_.top_k)) % experts;
    switch (quirks_.routes) {
      case RouteQuirk::kAllToOneExpert:
        return experts / 2;
      case RouteQuirk::kDuplicateIds:
        return first;
      case RouteQuirk::kInactiveIds:
        return random_.below(3) == 0 ? -1 : id;
      case RouteQuirk::kOutOfRangeIds: {
        const std::int64_t bad[] = {experts,
                                    experts + 7,
                                    std::numeric_limits<std::int32_t>::max(),
                                    std::numeric_limits<std::int32_t>::min()};
        return random_.below(2) == 0 ? bad[random_.below(4)] : id;
      }
      case RouteQuirk::kInactiveTokens:
        return token % 2 == 0 ? -1 : id;
      case RouteQuirk::kAllInactive:
        return random_.below(2) == 0 ? -1 : experts;
      default:
        return id;
    }
  }

  void make_ids() {
    const DType dtype = quirks_.ids == IdQuirk::kInt32 ? DType::kI32 : DType::kI64;
    const MutableTensorView ids = allocate(dtype, problem_.top_k);
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      const std::int64_t first = random_.below(num_router_experts(problem_));
      for (std::int64_t slot = 0; slot < problem_.top_k; ++slot) {
        std::int64_t id = id_of(token, slot, first);
        if (quirks_.ids == IdQuirk::kInt64Wide && random_.below(3) == 0) {
          id += random_.below(2) == 0 ? std::int64_t{1} << 32 : -(std::int64_t{1} << 32);
        }
        const std::int64_t at = token * ids.strides[0] + slot;
        if (dtype == DType::kI64) {
          static_cast<std::int64_t*>(ids.data)[at] = id;
        } else {
          static_cast<std::int32_t*>(ids.data)[at] = static_cast<std::int32_t>(id);
        }
      }
    }
    tensors_.arguments.topk_ids = read_only(ids);
  }

  void make_router_weights() {
    const MutableTensorView weights = allocate(DType::kF32, problem_.top_k);
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      for (std::int64_t slot = 0; slot < problem_.top_k; ++slot) {
        float weight = 0.05F + random_.uniform();
        if (quirks_.routes == RouteQuirk::kZeroWeights && random_.below(2) == 0) {
          weight = 0.0F;
        }
        store(weights, token, slot, weight);
      }
    }
    tensors_.arguments.topk_weights = read_only(weights);
  }

  void make_logits() {
    const std::int64_t experts = num_router_experts(problem_);
    const MutableTensorView logits =
        allocate(problem_.io_dtype == DType::kF32 ? DType::kF32 : DType::kBf16, experts);
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      const std::int64_t finite = random_.below(problem_.top_k + 1);
      for (std::int64_t e = 0; e < experts; ++e) {
        float logit = random_.normal() * 2.0F;
        if (quirks_.routes == RouteQuirk::kTiedLogits) {
          logit = static_cast<float>(random_.below(3)) * 0.5F;
        }
        if (quirks_.routes == RouteQuirk::kMaskedLogits && random_.below(experts) >= finite) {
          logit = random_.below(2) == 0 ? -kInfinity : kNan;
        }
        store(logits, token, e, logit);
      }
    }
    tensors_.arguments.router_logits = read_only(logits);
    make_router_tables(experts);
    if (problem_.routing->correction_bias) {
      tensors_.inputs.emplace_back(experts * 4);
      auto* bias = tensors_.inputs.back().as<float>();
      for (std::int64_t e = 0; e < experts; ++e) {
        bias[e] = random_.normal();
      }
      tensors_.arguments.correction_bias = bias;
    }
  }

  void make_router_tables(std::int64_t experts) {
    if (problem_.routing->expert_scale) {
      tensors_.inputs.emplace_back(experts * 4);
      auto* scales = tensors_.inputs.back().as<float>();
      for (std::int64_t e = 0; e < experts; ++e) {
        scales[e] = 0.5F + random_.uniform();
      }
      tensors_.arguments.router_expert_scale = scales;
    }
    if (!problem_.routing->hash_table) {
      return;
    }
    constexpr std::int64_t kVocabulary = 61;
    tensors_.inputs.emplace_back(kVocabulary * problem_.top_k * 4);
    auto* table = tensors_.inputs.back().as<std::int32_t>();
    for (std::int64_t i = 0; i < kVocabulary * problem_.top_k; ++i) {
      table[i] = static_cast<std::int32_t>(random_.below(experts));
    }
    tensors_.inputs.emplace_back(std::max<std::int64_t>(num_tokens_, 1) * 8);
    auto* token_ids = tensors_.inputs.back().as<std::int64_t>();
    for (std::int64_t t = 0; t < num_tokens_; ++t) {
      // One token in sixteen lies outside the table, once by 2^32.
      const std::int64_t id = random_.below(kVocabulary);
      token_ids[t] =
          random_.below(16) != 0 ? id : (id % 2 == 0 ? -1 : id + (std::int64_t{1} << 32));
    }
    HashTable& hash = tensors_.arguments.router_hash_table;
    hash.expert_ids = table;
    hash.num_rows = kVocabulary;
    hash.token_ids = {token_ids, DType::kI64, 1, {num_tokens_, 0, 0, 0}, {1, 0, 0, 0}};
  }

  void make_shared() {
    const MutableTensorView shared =
        allocate(problem_.shared == SharedInput::kF32 ? DType::kF32 : problem_.io_dtype,
                 problem_.hidden_size);
    for (std::int64_t token = 0; token < num_tokens_; ++token) {
      for (std::int64_t n = 0; n < problem_.hidden_size; ++n) {
        store(shared, token, n, random_.normal());
      }
    }
    tensors_.arguments.shared = read_only(shared);
  }

  void make_out() {
    tensors_.out_row_stride = row_stride(problem_.hidden_size);
    tensors_.out = GuardedBuffer(num_tokens_ * tensors_.out_row_stride *
                                 dtype_bits(output_dtype(problem_)) / 8);
    tensors_.arguments.out = matrix_view(static_cast<void*>(tensors_.out.as<std::byte>()),
                                         output_dtype(problem_),
                                         num_tokens_,
                                         problem_.hidden_size);
    tensors_.arguments.out.strides[0] = tensors_.out_row_stride;
  }

  const Problem& problem_;
  std::int64_t num_tokens_;
  const Quirks& quirks_;
  CaseTensors& tensors_;
  Random random_;
};

}  // namespace

std::uint64_t CaseTensors::input_hash() const noexcept {
  std::uint64_t hash = 0;
  for (const GuardedBuffer& buffer : inputs) {
    hash = hash_bytes(buffer.bytes(), hash);
  }
  return hash;
}

bool CaseTensors::intact() const noexcept {
  return out.intact() && std::all_of(inputs.begin(), inputs.end(), [](const GuardedBuffer& b) {
           return b.intact();
         });
}

CaseTensors make_tensors(const VerifyCase& verify_case, const Quirks& quirks) {
  CaseTensors tensors;
  TensorGenerator(verify_case, quirks, tensors).fill();
  return tensors;
}

}  // namespace moekit::verify
