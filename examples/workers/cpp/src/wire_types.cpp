#include "wire_types.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

// The loops are written for the compiler to vectorise; where it can, also for AVX2, which is chosen when they run.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GEMPS_VECTORISED [[gnu::target_clones("avx2", "default")]]
#else
#define GEMPS_VECTORISED
#endif

namespace gemps {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and is written in place");
static_assert(std::numeric_limits<float>::is_iec559);

constexpr std::uint32_t kMagnitude = 0x7FFF'FFFF;
constexpr std::uint32_t kInfinity = 0x7F80'0000;

constexpr std::array<std::pair<const char*, v1::WireType>, 2> kNames{{
    {"float32", v1::WIRE_TYPE_FLOAT32},
    {"bfloat16", v1::WIRE_TYPE_BFLOAT16},
}};

inline void store16(std::byte* out, std::size_t i, std::uint32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  std::memcpy(out + 2 * i, &half, 2);
}

inline std::uint32_t load16(const std::byte* data, std::size_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, data + 2 * i, 2);
  return half;
}

GEMPS_VECTORISED void encode_float32(const float* values, std::size_t count, float scale, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const float product = scale * values[i];
    std::memcpy(out + 4 * i, &product, 4);
  }
}

GEMPS_VECTORISED std::int32_t largest_magnitude(const float* values, std::size_t count) {
  std::int32_t largest = 0;  // as bits: numbers of one sign are in the order of their bits
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(values[i]) & kMagnitude));
  }
  return largest;
}

GEMPS_VECTORISED void encode_bfloat16(const float* values, std::size_t count, float scale, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(scale * values[i]);
    // Just under half of the last place, or exactly half where that is odd, carries into it: half to even.
    store16(out, i, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

GEMPS_VECTORISED void decode_bfloat16(const std::byte* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(load16(data, i) << 16);
}

}  // namespace

std::size_t unit_bytes(v1::WireType type) {
  switch (type) {
    case v1::WIRE_TYPE_FLOAT32:
      return 4;
    case v1::WIRE_TYPE_BFLOAT16:
      return 2;
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

std::uint64_t encoded_bytes(v1::WireType type, std::uint64_t elements) {
  return elements * unit_bytes(type);
}

std::optional<v1::WireType> wire_type_of(const std::string& name) {
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return std::nullopt;
}

std::string name_of(v1::WireType type) {
  for (const auto& [name, known] : kNames) {
    if (type == known) return name;
  }
  return v1::WireType_Name(type);
}

bool all_finite(std::span<const float> values) {
  return largest_magnitude(values.data(), values.size()) < static_cast<std::int32_t>(kInfinity);
}

void encode(v1::WireType type, std::span<const float> values, float scale, std::byte* out) {
  switch (type) {
    case v1::WIRE_TYPE_FLOAT32:
      return encode_float32(values.data(), values.size(), scale, out);
    case v1::WIRE_TYPE_BFLOAT16:
      return encode_bfloat16(values.data(), values.size(), scale, out);
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

void decode(v1::WireType type, const std::byte* data, std::span<float> out) {
  switch (type) {
    case v1::WIRE_TYPE_FLOAT32:
      if (!out.empty()) std::memcpy(out.data(), data, out.size_bytes());
      return;
    case v1::WIRE_TYPE_BFLOAT16:
      return decode_bfloat16(data, out.size(), out.data());
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

}  // namespace gemps
