// CRC32C (Castagnoli), as in Footer.crc32c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gemps {

// The checksum of what `sum` is the checksum of, followed by `data`; start with 0. Uses the processor's instruction
// where it has one.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t sum = 0);

// The same by a table, on any processor: what the instruction is held to.
std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t sum = 0);

}  // namespace gemps
