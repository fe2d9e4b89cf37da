#include "frames.hpp"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <array>

#include "gemps/v1/transfer.pb.h"

namespace gemps {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr auto kVarint = WireFormatLite::WIRETYPE_VARINT;
constexpr auto kLengthDelimited = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
constexpr std::uint32_t kOffsetTag = WireFormatLite::MakeTag(v1::Chunk::kOffsetFieldNumber, kVarint);
constexpr std::uint32_t kDataTag = WireFormatLite::MakeTag(v1::Chunk::kDataFieldNumber, kLengthDelimited);

[[noreturn]] void malformed() { throw ServerMisbehaved("the server sent what is no message of gemps.v1"); }

ChunkPlace parse_chunk(CodedInputStream& input) {
  ChunkPlace chunk;
  while (const std::uint32_t tag = input.ReadTag()) {
    std::uint32_t size = 0;
    if (tag == kOffsetTag) {
      if (!input.ReadVarint64(&chunk.offset)) malformed();
    } else if (tag == kDataTag) {
      if (!input.ReadVarint32(&size)) malformed();
      chunk.position = static_cast<std::size_t>(input.CurrentPosition());
      chunk.size = size;
      if (!input.Skip(static_cast<int>(size))) malformed();
    } else if (!WireFormatLite::SkipField(&input, tag)) {
      malformed();
    }
  }
  return chunk;
}

}  // namespace

ChunkData make_chunk_data(std::size_t size) { return std::make_unique_for_overwrite<std::byte[]>(size); }

grpc::ByteBuffer make_frame(const google::protobuf::MessageLite& fields, int chunk_field, std::uint64_t offset,
                            ChunkData data, std::size_t size) {
  // Fields may come in any order, so the chunk goes last, and its data as its last field.
  std::string head;
  {
    const std::size_t chunk_size = 1 + CodedOutputStream::VarintSize64(offset) + 1 +
                                   CodedOutputStream::VarintSize32(static_cast<std::uint32_t>(size)) + size;
    StringOutputStream sink(&head);
    CodedOutputStream output(&sink);
    fields.SerializeToCodedStream(&output);
    output.WriteTag(WireFormatLite::MakeTag(chunk_field, kLengthDelimited));
    output.WriteVarint32(static_cast<std::uint32_t>(chunk_size));
    output.WriteTag(kOffsetTag);
    output.WriteVarint64(offset);
    output.WriteTag(kDataTag);
    output.WriteVarint32(static_cast<std::uint32_t>(size));
  }
  // The slice owns the memory now, and gRPC lets go of it once it is sent.
  const grpc::Slice body(data.release(), size, [](void* memory) { delete[] static_cast<std::byte*>(memory); });
  const std::array<grpc::Slice, 2> slices{grpc::Slice(head), body};
  return {slices.data(), slices.size()};
}

grpc::ByteBuffer make_frame(const google::protobuf::MessageLite& fields) {
  const grpc::Slice slice(fields.SerializeAsString());
  return {&slice, 1};
}

std::optional<ChunkPlace> parse_frame(grpc::ByteBuffer& frame, int chunk_field, google::protobuf::MessageLite& fields) {
  const std::uint32_t chunk_tag = WireFormatLite::MakeTag(chunk_field, kLengthDelimited);
  std::optional<ChunkPlace> chunk;
  std::string others;  // the other fields, as they came
  {
    grpc::ProtoBufferReader reader(&frame);
    CodedInputStream input(&reader);
    StringOutputStream sink(&others);
    CodedOutputStream output(&sink);
    while (const std::uint32_t tag = input.ReadTag()) {
      if (tag == chunk_tag) {
        std::uint32_t size = 0;
        if (!input.ReadVarint32(&size)) malformed();
        const auto outside = input.PushLimit(static_cast<int>(size));
        chunk = parse_chunk(input);
        if (!input.ConsumedEntireMessage()) malformed();
        input.PopLimit(outside);
      } else if (!WireFormatLite::SkipField(&input, tag, &output)) {
        malformed();
      }
    }
    if (!input.ConsumedEntireMessage()) malformed();
  }
  if (!fields.ParseFromString(others)) malformed();
  return chunk;
}

void for_each_piece(grpc::ByteBuffer& frame, const ChunkPlace& chunk,
                    const std::function<void(std::span<const std::byte>)>& take) {
  grpc::ProtoBufferReader reader(&frame);
  if (chunk.position > 0 && !reader.Skip(static_cast<int>(chunk.position))) malformed();
  const void* data = nullptr;
  int size = 0;
  for (std::size_t left = chunk.size; left > 0;) {
    if (!reader.Next(&data, &size)) malformed();
    const std::size_t piece = std::min(left, static_cast<std::size_t>(size));
    take({static_cast<const std::byte*>(data), piece});
    left -= piece;
  }
}

}  // namespace gemps
