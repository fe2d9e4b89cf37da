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

constexpr std::size_t kBlock = 256;
constexpr std::uint32_t kMagnitude = 0x7FFF'FFFF;
constexpr std::uint32_t kInfinity = 0x7F80'0000;

constexpr std::array<std::pair<const char*, v1::WireType>, 4> kNames{{
    {"float32", v1::WIRE_TYPE_FLOAT32},
    {"float16", v1::WIRE_TYPE_FLOAT16},
    {"bfloat16", v1::WIRE_TYPE_BFLOAT16},
    {"int8_block", v1::WIRE_TYPE_INT8_BLOCK},
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

// Half to even; what is beyond the largest number of the type becomes that one.
inline std::uint32_t to_float16(float value) {
  constexpr std::uint32_t kLargest = 0x477F'E000;         // 65504
  constexpr std::uint32_t kSmallestNormal = 0x3880'0000;  // 2^-14
  constexpr std::uint32_t kBias = 0x3800'0000;            // 127 - 15, in the exponent's place
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = std::min(bits & kMagnitude, kLargest);
  const std::uint32_t normal = (magnitude - kBias + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  // The last place of a number in [0.5, 1) is 2^-24, the unit of the type's denormal numbers: the sum rounds to it.
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  return (magnitude < kSmallestNormal ? denormal : normal) | (bits >> 16 & 0x8000);
}

inline float from_float16(std::uint32_t half) {
  const std::uint32_t shifted = (half & 0x7FFF) << 13;
  const std::uint32_t exponent = shifted & 0x0F80'0000;
  const std::uint32_t normal = shifted + 0x3800'0000 + (exponent == 0x0F80'0000 ? 0x3800'0000U : 0U);
  const float denormal = std::bit_cast<float>(shifted + 0x3880'0000) - std::bit_cast<float>(0x3880'0000U);
  const std::uint32_t magnitude = exponent == 0 ? std::bit_cast<std::uint32_t>(denormal) : normal;
  return std::bit_cast<float>(magnitude | (half & 0x8000) << 16);
}

GEMPS_VECTORISED void encode_float16(const float* values, std::size_t count, float scale, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) store16(out, i, to_float16(scale * values[i]));
}

GEMPS_VECTORISED void decode_float16(const std::byte* data, std::size_t count, float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = from_float16(load16(data, i));
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

GEMPS_VECTORISED void encode_block(const float* values, std::size_t count, float factor, std::byte* out) {
  std::array<float, kBlock> products{};
  for (std::size_t i = 0; i < count; ++i) products[i] = factor * values[i];
  const float scale = std::bit_cast<float>(largest_magnitude(products.data(), count)) / 127.0F;
  std::memcpy(out, &scale, 4);
  const float divisor = scale == 0.0F ? std::numeric_limits<float>::infinity() : scale;
  // A number of this size has 1 as its last place: the sum is rounded to an integer, half to even, in its lowest bits.
  constexpr float kRounder = 12'582'912.0F;
  for (std::size_t i = 0; i < count; ++i) {
    // A denormal scale is so coarse that the quotient can exceed 127.
    const float quotient = std::min(std::max(products[i] / divisor, -127.0F), 127.0F);
    const auto rounded = std::bit_cast<std::int32_t>(quotient + kRounder) - std::bit_cast<std::int32_t>(kRounder);
    out[4 + i] = static_cast<std::byte>(rounded & 0xFF);
  }
}

GEMPS_VECTORISED bool decode_block(const std::byte* data, std::size_t count, float* out) {
  float scale = 0;
  std::memcpy(&scale, data, 4);
  const auto* numbers = reinterpret_cast<const std::int8_t*>(data + 4);
  std::int32_t smallest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t number = numbers[i];
    smallest = std::min(smallest, number);
    out[i] = static_cast<float>(number) * scale;
  }
  return smallest >= -127 && std::bit_cast<std::uint32_t>(scale) < kInfinity;
}

}  // namespace

std::size_t unit_elements(v1::WireType type) { return type == v1::WIRE_TYPE_INT8_BLOCK ? kBlock : 1; }

std::size_t unit_bytes(v1::WireType type) {
  switch (type) {
    case v1::WIRE_TYPE_FLOAT32:
      return 4;
    case v1::WIRE_TYPE_FLOAT16:
    case v1::WIRE_TYPE_BFLOAT16:
      return 2;
    case v1::WIRE_TYPE_INT8_BLOCK:
      return 4 + kBlock;
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

std::uint64_t encoded_bytes(v1::WireType type, std::uint64_t elements) {
  if (type == v1::WIRE_TYPE_INT8_BLOCK) return elements + 4 * ((elements + kBlock - 1) / kBlock);
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
    case v1::WIRE_TYPE_FLOAT16:
      return encode_float16(values.data(), values.size(), scale, out);
    case v1::WIRE_TYPE_BFLOAT16:
      return encode_bfloat16(values.data(), values.size(), scale, out);
    case v1::WIRE_TYPE_INT8_BLOCK:
      for (std::size_t i = 0; i < values.size(); i += kBlock, out += 4 + kBlock) {
        encode_block(values.data() + i, std::min(kBlock, values.size() - i), scale, out);
      }
      return;
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

bool decode(v1::WireType type, const std::byte* data, std::span<float> out) {
  bool legal = true;
  switch (type) {
    case v1::WIRE_TYPE_FLOAT32:
      if (!out.empty()) std::memcpy(out.data(), data, out.size_bytes());
      return true;
    case v1::WIRE_TYPE_FLOAT16:
      decode_float16(data, out.size(), out.data());
      return true;
    case v1::WIRE_TYPE_BFLOAT16:
      decode_bfloat16(data, out.size(), out.data());
      return true;
    case v1::WIRE_TYPE_INT8_BLOCK:
      for (std::size_t i = 0; i < out.size(); i += kBlock, data += 4 + kBlock) {
        legal = decode_block(data, std::min(kBlock, out.size() - i), out.data() + i) && legal;
      }
      return legal;
    default:
      throw std::invalid_argument("a wire type without an encoding");
  }
}

}  // namespace gemps
