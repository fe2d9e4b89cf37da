#include "crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define GEMPS_CRC_TARGET [[gnu::target("sse4.2")]]
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define GEMPS_CRC_TARGET [[gnu::target("+crc")]]
#endif

namespace gemps {
namespace {

// The polynomial 0x1EDC6F41 with its bits reversed, as the shifts to the right below want it.
constexpr std::uint32_t kPolynomial = 0x82F63B78;

constexpr std::array<std::uint32_t, 256> make_byte_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    table[byte] = state;
  }
  return table;
}

constexpr auto kByteTable = make_byte_table();

std::uint32_t advance_by_table(std::uint32_t state, const std::byte* data, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    state = (state >> 8) ^ kByteTable[(state ^ std::to_integer<std::uint32_t>(data[i])) & 0xFF];
  }
  return state;
}

#ifdef GEMPS_CRC_TARGET

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
GEMPS_CRC_TARGET inline std::uint32_t eight(std::uint32_t state, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
}
GEMPS_CRC_TARGET inline std::uint32_t one(std::uint32_t state, std::byte byte) {
  return _mm_crc32_u8(state, std::to_integer<unsigned char>(byte));
}
#else
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
GEMPS_CRC_TARGET inline std::uint32_t eight(std::uint32_t state, std::uint64_t word) { return __crc32cd(state, word); }
GEMPS_CRC_TARGET inline std::uint32_t one(std::uint32_t state, std::byte byte) {
  return __crc32cb(state, std::to_integer<std::uint8_t>(byte));
}
#endif

// The instruction takes three cycles and can begin anew in each, so three lanes run side by side. A lane's state is
// joined with the next one's by passing it over as many zeros as that lane has bytes, which is linear in the state's
// bits: four tables of 256 entries do it.
constexpr std::size_t kLane = 4096;

class ZerosTable {
 public:
  ZerosTable() {
    static constexpr std::array<std::byte, kLane> kZeros{};
    std::array<std::uint32_t, 32> basis{};
    for (std::size_t bit = 0; bit < 32; ++bit) basis[bit] = advance_by_table(1U << bit, kZeros.data(), kLane);
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::size_t value = 0; value < 256; ++value) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) table_[byte][value] ^= basis[8 * byte + bit];
        }
      }
    }
  }

  [[nodiscard]] std::uint32_t pass(std::uint32_t state) const {
    return table_[0][state & 0xFF] ^ table_[1][state >> 8 & 0xFF] ^ table_[2][state >> 16 & 0xFF] ^
           table_[3][state >> 24];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> table_{};
};

inline std::uint64_t word_at(const std::byte* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof word);
  return word;
}

GEMPS_CRC_TARGET std::uint32_t advance_by_instruction(std::uint32_t state, const std::byte* data, std::size_t size) {
  static const ZerosTable zeros;
  for (; size >= 3 * kLane; data += 3 * kLane, size -= 3 * kLane) {
    std::uint32_t second = 0;
    std::uint32_t third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      state = eight(state, word_at(data + i));
      second = eight(second, word_at(data + kLane + i));
      third = eight(third, word_at(data + 2 * kLane + i));
    }
    state = zeros.pass(zeros.pass(state) ^ second) ^ third;
  }
  for (; size >= 8; data += 8, size -= 8) state = eight(state, word_at(data));
  for (; size > 0; ++data, --size) state = one(state, *data);
  return state;
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t sum) {
#ifdef GEMPS_CRC_TARGET
  static const bool by_instruction = has_instruction();
  if (by_instruction) return ~advance_by_instruction(~sum, data.data(), data.size());
#endif
  return crc32c_by_table(data, sum);
}

std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t sum) {
  return ~advance_by_table(~sum, data.data(), data.size());
}

}  // namespace gemps
