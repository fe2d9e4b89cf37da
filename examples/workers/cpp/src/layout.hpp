// A model's tensors as the service sees them, and the digest by which two layouts are compared (layout.proto).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "gemps/v1/layout.pb.h"

namespace gemps {

// Bytes of one element in its own type.
std::uint64_t byte_size(v1::ElementType type);

// Elements of a tensor: 1 for a scalar, 0 when a dimension is 0.
std::uint64_t element_count(const v1::TensorSpec& tensor);

// An immutable layout. Whether it is legal the server judges (INVALID_LAYOUT).
class Layout {
 public:
  explicit Layout(v1::Layout tensors);

  // From a list of {"name", "shape", "element_type", "kind", "aliases"?, "sha256"?}, as
  // proto/vectors/layout_digest.json has them. Throws UsageError.
  static Layout from_json(const nlohmann::json& tensors);

  [[nodiscard]] const v1::Layout& tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::uint64_t parameter_count() const noexcept { return parameter_count_; }
  [[nodiscard]] std::uint64_t buffer_bytes() const noexcept { return buffer_bytes_; }
  // SHA-256 of the canonical text: 32 bytes.
  [[nodiscard]] const std::string& digest() const noexcept { return digest_; }

  [[nodiscard]] std::string canonical_text() const;

 private:
  v1::Layout tensors_;
  std::uint64_t parameter_count_ = 0;
  std::uint64_t buffer_bytes_ = 0;
  std::string digest_;
};

}  // namespace gemps
