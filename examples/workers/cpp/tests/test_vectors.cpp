// The vectors that every implementation of the contract is held to: proto/vectors.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"
#include "crc32c.hpp"
#include "errors.hpp"
#include "layout.hpp"
#include "wire_types.hpp"

namespace {

using gemps::Layout;
namespace v1 = gemps::v1;
using Bytes = std::vector<std::byte>;

nlohmann::json cases_of(const std::string& file) {
  std::ifstream stream(VECTORS + file);
  auto cases = nlohmann::json::parse(stream).at("cases");
  CHECK(!cases.empty());
  return cases;
}

Bytes from_hex(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <class Container>
std::string to_hex(const Container& bytes) {
  std::ostringstream text;
  for (const auto byte : bytes)
    text << std::hex << std::setw(2) << std::setfill('0') << (static_cast<int>(byte) & 0xFF);
  return text.str();
}

Bytes encoded(v1::WireType type, const std::vector<float>& values, float scale = 1.0F) {
  Bytes bytes(gemps::encoded_bytes(type, values.size()));
  gemps::encode(type, values, scale, bytes.data());
  return bytes;
}

// Each case alone and all of them at once, which takes the vectorised loop.
void check_bfloat16() {
  std::vector<float> all;
  Bytes expected;
  for (const auto& one : cases_of("bfloat16.json")) {
    const std::vector<float> value{std::bit_cast<float>(one.at("float32").get<std::uint32_t>())};
    const auto half = one.at("bfloat16").get<std::uint32_t>();
    const Bytes bytes{static_cast<std::byte>(half & 0xFF), static_cast<std::byte>(half >> 8)};
    CHECK(encoded(v1::WIRE_TYPE_BFLOAT16, value) == bytes);
    all.push_back(value.front());
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  CHECK(encoded(v1::WIRE_TYPE_BFLOAT16, all) == expected);
}

}  // namespace

TEST("vectors", "crc32c by the instruction and by the table") {
  for (const auto& one : cases_of("crc32c.json")) {
    Bytes bytes;
    if (one.contains("hex")) {
      bytes = from_hex(one.at("hex").get<std::string>());
    } else {
      for (std::uint64_t i = 0; i < 4099; ++i) bytes.push_back(static_cast<std::byte>(i * i % 251));
    }
    CHECK(gemps::crc32c(bytes) == one.at("crc32c").get<std::uint32_t>());
    CHECK(gemps::crc32c_by_table(bytes) == one.at("crc32c").get<std::uint32_t>());
  }
}

TEST("vectors", "crc32c of long bytes is the same in lanes, in parts and by the table") {
  Bytes bytes(100'003);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const std::uint32_t expected = gemps::crc32c_by_table(bytes);
  for (const std::size_t cut : {0U, 1U, 7U, 12'288U, 12'289U, 50'000U, 100'003U}) {
    const std::span<const std::byte> all(bytes);
    CHECK(gemps::crc32c(all.subspan(cut), gemps::crc32c(all.first(cut))) == expected);
  }
}

TEST("vectors", "bfloat16 is rounded half to even") { check_bfloat16(); }

TEST("vectors", "every finite bfloat16 survives the way there and back") {
  constexpr std::uint32_t kInfinity = 0x7F80;
  Bytes bytes;
  for (std::uint32_t half = 0; half < kInfinity; ++half) {
    for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
      bytes.push_back(static_cast<std::byte>(half & 0xFF));
      bytes.push_back(static_cast<std::byte>((half | sign) >> 8));
    }
  }
  std::vector<float> values(bytes.size() / 2);
  gemps::decode(v1::WIRE_TYPE_BFLOAT16, bytes.data(), values);
  CHECK(std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }));
  CHECK(encoded(v1::WIRE_TYPE_BFLOAT16, values) == bytes);
}

TEST("vectors", "a delta is the product as float32 rounds it, and then encoded") {
  const std::vector<float> values{0.1F, -3.3F, 1e-7F, 77.0F};
  std::vector<float> products;
  for (const float value : values) products.push_back(-0.05F * value);
  for (const auto type : {v1::WIRE_TYPE_FLOAT32, v1::WIRE_TYPE_BFLOAT16}) {
    CHECK(encoded(type, values, -0.05F) == encoded(type, products));
  }
}

TEST("vectors", "what is not finite is found wherever it is") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(100, -std::numeric_limits<float>::max());
  CHECK(gemps::all_finite(values) && gemps::all_finite({}));
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t place : {0U, 50U, 99U}) {
      auto some = values;
      some[place] = bad;
      CHECK(!gemps::all_finite(some));
    }
  }
}

TEST("vectors", "layout digests") {
  for (const auto& one : cases_of("layout_digest.json")) {
    CHECK(to_hex(Layout::from_json(one.at("tensors")).digest()) == one.at("digest").get<std::string>());
  }
}

TEST("vectors", "a digest with an odd number of digits is refused") {
  auto tensors = nlohmann::json::parse(R"([
    {"name": "a", "shape": [2], "element_type": "float32", "kind": "frozen", "sha256": ""}
  ])");
  tensors[0]["sha256"] = std::string(64, '0');
  Layout::from_json(tensors);
  tensors[0]["sha256"] = std::string(65, '0');
  CHECK(check::throws<gemps::UsageError>([&] { Layout::from_json(tensors); }));
}
