// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_weights.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {

using base::cat;

namespace {

/// Where the exponent of a float has every bit set it is NaN, or an infinity without a fraction.
struct FloatBits {
  std::uint32_t sign;
  std::uint32_t exponent;
};

FloatBits float_bits(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {0x8000U, 0x7C00U};
    case DType::kBf16:
      return {0x8000U, 0x7F80U};
    default:
      return {0x8000'0000U, 0x7F80'0000U};
  }
}

/// `[3, 17]` of the element at `flat`.
std::string index_text(const TensorView& view, std::int64_t flat) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(view.rank));
  for (std::size_t axis = index.size(); axis-- > 0;) {
    index[axis] = flat % view.shape[axis];
    flat /= view.shape[axis];
  }
  return cat("[", base::join(index), "]");
}

template <typename Word>
Status check_words(std::string_view name, const TensorView& view, FloatBits bits) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    count *= view.shape[axis];
  }
  const auto* words = static_cast<const Word*>(view.data);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t word = words[i];
    if ((word & bits.exponent) == bits.exponent) {
      const bool infinite = (word & ~(bits.sign | bits.exponent)) == 0U;
      return invalid_argument(cat("tensor ",
                                  printable(name),
                                  " is ",
                                  !infinite                  ? "nan"
                                  : (word & bits.sign) != 0U ? "-inf"
                                                             : "inf",
                                  " at ",
                                  index_text(view, i),
                                  ", expected finite values"));
    }
  }
  return {};
}

}  // namespace

Status check_finite(std::string_view name, const TensorView& view) {
  return view.dtype == DType::kF32 ? check_words<std::uint32_t>(name, view, float_bits(view.dtype))
                                   : check_words<std::uint16_t>(name, view, float_bits(view.dtype));
}

const NamedTensor* TensorReader::find(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? nullptr : &found->second;
}

bool TensorReader::has_prefix(std::string_view prefix) const {
  const auto found = state_->tensors.lower_bound(prefix);
  return found != state_->tensors.end() && found->first.starts_with(prefix);
}

Result<const NamedTensor*> TensorReader::require(std::string_view name) const {
  const NamedTensor* tensor = find(name);
  if (tensor == nullptr) {
    return invalid_argument(cat("missing tensor ", printable(name)));
  }
  if (!tensor->foreign_dtype.empty()) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " has dtype ",
                                tensor->foreign_dtype,
                                ", which moekit does not read"));
  }
  // Empty tensors have a view too; only a rank without one leaves both null.
  if (tensor->view.data == nullptr) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " of rank ",
                                tensor->view.rank,
                                " and ",
                                tensor->bytes,
                                " bytes has no elements or more than 4 dimensions"));
  }
  return tensor;
}

Result<const NamedTensor*> TensorReader::require(std::string_view name,
                                                 DType dtype,
                                                 std::initializer_list<std::int64_t> shape) const {
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* tensor, require(name));
  const TensorView& view = tensor->view;
  const bool raw_e8m0 = dtype == DType::kE8m0 && view.dtype == DType::kU8;
  if (view.dtype != dtype && !raw_e8m0) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " has dtype ",
                                dtype_name(view.dtype),
                                ", expected ",
                                dtype_name(dtype)));
  }
  if (static_cast<std::size_t>(view.rank) != shape.size() ||
      !std::equal(shape.begin(), shape.end(), view.shape.begin())) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " has shape ",
                                shape_text(view),
                                ", expected [",
                                base::join(shape),
                                "]"));
  }
  return tensor;
}

Result<const NamedTensor*> find_bias(const TensorReader& tensors,
                                     const std::string& name,
                                     std::initializer_list<std::int64_t> shape) {
  const NamedTensor* found = tensors.find(name);
  if (found == nullptr) {
    return found;
  }
  const DType dtype = found->view.dtype;
  if (!found->foreign_dtype.empty() ||
      (dtype != DType::kBf16 && dtype != DType::kF16 && dtype != DType::kF32)) {
    return invalid_argument(cat("tensor ",
                                printable(name),
                                " has dtype ",
                                dtype_text(*found),
                                ", expected bf16, f16 or f32"));
  }
  MOEKIT_ASSIGN_OR_RETURN(const NamedTensor* bias, tensors.require(name, dtype, shape));
  MOEKIT_RETURN_IF_ERROR(check_finite(name, bias->view));
  return bias;
}

std::string_view dtype_text(const NamedTensor& tensor) {
  return tensor.foreign_dtype.empty() ? dtype_name(tensor.view.dtype)
                                      : std::string_view(tensor.foreign_dtype);
}

bool has_dtype(const NamedTensor& tensor, DType dtype) {
  return tensor.foreign_dtype.empty() && tensor.view.dtype == dtype;
}

std::string shape_text(const TensorView& view) {
  const auto rank = static_cast<std::size_t>(std::clamp(view.rank, 0, 4));
  const std::vector<std::int64_t> shape(view.shape.begin(),
                                        view.shape.begin() + static_cast<std::ptrdiff_t>(rank));
  return cat("[", base::join(shape), "]");
}

}  // namespace moekit::checkpoint
