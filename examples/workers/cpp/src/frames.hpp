// Messages that carry a chunk, without a copy of its bytes: they are encoded where gRPC sends them from, and decoded
// where gRPC received them. Generated code would copy them once more each way; all other fields go through it.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "errors.hpp"

namespace gemps {

// Memory for the bytes of a chunk.
using ChunkData = std::unique_ptr<std::byte[]>;
ChunkData make_chunk_data(std::size_t size);

// A message: `fields`, and a Chunk in field number `chunk_field`, whose bytes gRPC takes over.
grpc::ByteBuffer make_frame(const google::protobuf::MessageLite& fields, int chunk_field, std::uint64_t offset,
                            ChunkData data, std::size_t size);

// A message without a chunk.
grpc::ByteBuffer make_frame(const google::protobuf::MessageLite& fields);

// Where in a message a chunk's bytes lie.
struct ChunkPlace {
  std::uint64_t offset = 0;
  std::size_t position = 0;
  std::size_t size = 0;
};

// Parses all of a message but the chunk in `chunk_field`, whose place it returns. Throws ServerMisbehaved.
std::optional<ChunkPlace> parse_frame(grpc::ByteBuffer& frame, int chunk_field, google::protobuf::MessageLite& fields);

// Calls `take` with the chunk's bytes, in as many pieces as they lie in.
void for_each_piece(grpc::ByteBuffer& frame, const ChunkPlace& chunk,
                    const std::function<void(std::span<const std::byte>)>& take);

}  // namespace gemps
