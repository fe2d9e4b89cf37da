// How float32 values become bytes and back, in each wire type (transfer.proto, enum WireType).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "gemps/v1/transfer.pb.h"

namespace gemps {

// Bytes of an element: a chunk may be cut between two of them.
std::size_t unit_bytes(v1::WireType type);

// Bytes that so many elements take.
std::uint64_t encoded_bytes(v1::WireType type, std::uint64_t elements);

// "float32" or "bfloat16"; nothing for what this worker does not speak.
std::optional<v1::WireType> wire_type_of(const std::string& name);
std::string name_of(v1::WireType type);

// Whether a delta may be made of these values.
bool all_finite(std::span<const float> values);

// Encodes scale * values, each product rounded to float32 first. `values` are finite; `out` has room for
// encoded_bytes().
void encode(v1::WireType type, std::span<const float> values, float scale, std::byte* out);

// Decodes `out.size()` elements.
void decode(v1::WireType type, const std::byte* data, std::span<float> out);

}  // namespace gemps
