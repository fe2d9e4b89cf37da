// Payloads: how a model becomes bytes, and how parameters that come in parts are accepted, only as a whole.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "failure.hpp"
#include "gemps/v1/commit.pb.h"
#include "gemps/v1/parameters.pb.h"
#include "task.hpp"

namespace gemps {

// The checksum of every payload, by a table: some 400 MB/s. For large models take the processor's instruction.
inline std::uint32_t crc32c(const std::string& data) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      table[byte] = byte;
      for (int bit = 0; bit < 8; ++bit) table[byte] = table[byte] >> 1 ^ (table[byte] & 1) * 0x82F63B78;
    }
    return table;
  }();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

// The payload of FLOAT32, which is little-endian.
inline std::string payload_of(const Model& model) {
  static_assert(std::endian::native == std::endian::little);
  std::string payload(reinterpret_cast<const char*>(model.parameters.data()), 4 * model.parameters.size());
  return payload += model.buffers;
}

inline const v1::ParametersHeader* header_in(const v1::PullResponse& message) {
  return message.has_header() ? &message.header() : nullptr;
}
inline const v1::ParametersHeader* header_in(const v1::CommitResponse& message) {
  return message.has_parameters() ? &message.parameters() : nullptr;
}

// Takes messages up to the footer, and then replaces `model`; the version of the new one. `next` reads a message, and
// throws when there are no more; `digest` is that of Join. Throws Failure.
template <class Message, class Next>
v1::Version receive(Message message, const Next& next, const std::string& digest, Model& model) {
  const std::size_t parameter_bytes = 4 * model.parameters.size();
  const std::size_t byte_count = parameter_bytes + model.buffers.size();
  v1::Version version;
  std::string payload;
  for (;; message = next()) {
    if (const v1::ParametersHeader* header = header_in(message)) {
      if (header->layout_digest() != digest || header->byte_count() != byte_count ||
          header->wire_type() != v1::WIRE_TYPE_FLOAT32) {
        throw Failure(Remedy::kBug, "the server sent parameters of another layout or wire type");
      }
      version = header->version();
    }
    payload += message.chunk();
    if (message.has_footer() || payload.size() > byte_count) break;
  }
  if (payload.size() != byte_count || crc32c(payload) != message.footer().crc32c()) {
    throw Failure(Remedy::kRejoin, "the parameters that came do not match their footer", "CHECKSUM");
  }
  std::memcpy(model.parameters.data(), payload.data(), parameter_bytes);
  model.buffers = payload.substr(parameter_bytes);
  return version;
}

}  // namespace gemps
