// What lies where in a payload (transfer.proto, message Chunk), and both of its ways: out of tensors, and into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gemps/v1/transfer.pb.h"
#include "layout.hpp"

namespace gemps {

inline constexpr std::uint32_t kLargestChunk = 2U << 20;  // bytes of a chunk: transfer.proto

// What a worker holds of a model: all PARAMETERs as float32, and the bytes of the BUFFERs.
struct Tensors {
  explicit Tensors(const Layout& layout);

  std::vector<float> parameters;
  std::vector<std::byte> rest;
};

// A payload that is sent: scale * parameters (as float32 rounds it), then the bytes of the rest.
struct PayloadView {
  std::span<const float> parameters;
  float scale;
  std::span<const std::byte> rest;
};

// The places of one payload: of a layout, in a wire type.
class PayloadFormat {
 public:
  PayloadFormat(const Layout& layout, v1::WireType wire_type);

  [[nodiscard]] v1::WireType wire_type() const noexcept { return wire_type_; }
  [[nodiscard]] const std::string& digest() const noexcept { return digest_; }
  [[nodiscard]] std::uint64_t byte_count() const noexcept { return byte_count_; }
  [[nodiscard]] std::uint64_t parameter_count() const noexcept { return parameter_count_; }
  [[nodiscard]] std::uint64_t parameter_bytes() const noexcept { return parameter_bytes_; }
  [[nodiscard]] std::uint64_t rest_bytes() const noexcept { return byte_count_ - parameter_bytes_; }

  // The largest place at or before `offset` at which a chunk may be cut.
  [[nodiscard]] std::uint64_t border_at_or_before(std::uint64_t offset) const;
  // Where a chunk of at most `chunk_bytes` that begins at `offset` ends.
  [[nodiscard]] std::uint64_t chunk_end(std::uint64_t offset, std::uint64_t chunk_bytes) const;
  [[nodiscard]] std::uint64_t count_chunks(std::uint64_t chunk_bytes) const;
  // The PARAMETER that begins at a border.
  [[nodiscard]] std::uint64_t element_at(std::uint64_t offset) const;

 private:
  // Neighbouring bytes [start, stop) that are cut every `unit` bytes from `start` on.
  struct Region {
    std::uint64_t start;
    std::uint64_t stop;
    std::uint64_t unit;
  };

  v1::WireType wire_type_;
  std::string digest_;
  std::uint64_t parameter_count_;
  std::uint64_t parameter_bytes_;
  std::uint64_t byte_count_;
  std::vector<Region> regions_;
};

// Writes the bytes [begin, end) of a payload, two borders, to `out`.
void encode_range(const PayloadFormat& format, const PayloadView& payload, std::uint64_t begin, std::uint64_t end,
                  std::byte* out);

// Puts a payload together from its chunks, straight into tensors. What it has written counts only once `finish` has
// returned. Throws Torn where the bytes are not what the contract promises: then `reset`, and start over.
class PayloadReader {
 public:
  PayloadReader(const PayloadFormat& format, Tensors& into);

  // Bytes that have come, from 0 on: where the next chunk starts, and a torn transfer continues.
  [[nodiscard]] std::uint64_t received() const noexcept { return received_; }

  // The stream is another one: its footer counts its own chunks, while the checksum is over all bytes.
  void next_stream() noexcept { chunk_count_ = 0; }
  void reset() noexcept;

  // One chunk: begin, its bytes in as many pieces as they lie in, end.
  void begin_chunk(std::uint64_t offset, std::uint64_t size);
  void feed(std::span<const std::byte> piece);
  void end_chunk();

  void finish(const v1::Footer& footer) const;

 private:
  void feed_parameters(std::span<const std::byte> piece);
  void decode_units(std::span<const std::byte> units);

  const PayloadFormat& format_;
  Tensors& into_;
  std::uint64_t received_ = 0;
  std::uint64_t chunk_count_ = 0;
  std::uint32_t checksum_ = 0;
  // Within a chunk: how far it has come, where it ends, and a unit (element or block) of which a part has come.
  std::uint64_t position_ = 0;
  std::uint64_t chunk_end_ = 0;
  std::vector<std::byte> partial_;
};

}  // namespace gemps
