// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layer_weights.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/json_text.h"

namespace moekit::checkpoint {

using base::cat;

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
