#include "frames.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "check.hpp"
#include "errors.hpp"
#include "gemps/v1/commit.pb.h"

namespace {

namespace v1 = gemps::v1;
constexpr int kChunk = v1::CommitResponse::kChunkFieldNumber;

std::string text_of(const grpc::ByteBuffer& frame) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!frame.Dump(&slices).ok()) return text;
  for (const auto& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// As gRPC hands a message over: in slices that end anywhere.
grpc::ByteBuffer in_slices(const std::string& text, std::size_t size) {
  std::vector<grpc::Slice> slices;
  for (std::size_t i = 0; i < text.size(); i += size) slices.emplace_back(text.substr(i, size));
  return {slices.data(), slices.size()};
}

v1::CommitResponse response() {
  v1::CommitResponse message;
  message.mutable_verdict()->set_sequence(7);
  message.mutable_parameters()->set_byte_count(1000);
  message.mutable_chunk()->set_offset(123'456'789);
  message.mutable_chunk()->set_data(std::string(1000, 'x') + "end");
  message.mutable_footer()->set_crc32c(99);
  return message;
}

}  // namespace

TEST("frames", "what is made is what generated code reads") {
  v1::CommitRequest fields;
  fields.mutable_header()->set_sequence(3);
  fields.mutable_footer()->set_chunk_count(1);
  auto data = gemps::make_chunk_data(5);
  const std::string bytes = "bytes";
  for (std::size_t i = 0; i < 5; ++i) data[i] = static_cast<std::byte>(bytes[i]);
  const auto frame = gemps::make_frame(fields, v1::CommitRequest::kChunkFieldNumber, 1 << 20, std::move(data), 5);
  v1::CommitRequest read;
  CHECK(read.ParseFromString(text_of(frame)));
  CHECK(read.header().sequence() == 3 && read.footer().chunk_count() == 1);
  CHECK(read.chunk().offset() == 1 << 20 && read.chunk().data() == bytes);
}

TEST("frames", "what generated code writes is read, in slices of any size") {
  const auto message = response();
  for (const std::size_t size : {1U, 2U, 17U, 100U, 5000U}) {
    auto frame = in_slices(message.SerializeAsString(), size);
    v1::CommitResponse fields;
    const auto chunk = gemps::parse_frame(frame, kChunk, fields);
    CHECK(chunk && chunk->offset == 123'456'789 && chunk->size == 1003);
    CHECK(fields.verdict().sequence() == 7 && fields.parameters().byte_count() == 1000);
    CHECK(fields.footer().crc32c() == 99 && !fields.has_chunk());
    std::string data;
    gemps::for_each_piece(frame, *chunk, [&](std::span<const std::byte> piece) {
      data.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    CHECK(data == message.chunk().data());
  }
}

TEST("frames", "the chunk may come before the other fields, and unknown fields are passed over") {
  v1::CommitResponse chunk;
  *chunk.mutable_chunk() = response().chunk();
  v1::CommitResponse others = response();
  others.clear_chunk();
  const std::string unknown("\x98\x06\x01", 3);  // field 99, a number
  auto frame = in_slices(chunk.SerializeAsString() + unknown + others.SerializeAsString(), 64);
  v1::CommitResponse fields;
  const auto place = gemps::parse_frame(frame, kChunk, fields);
  CHECK(place && place->size == 1003);
  CHECK(fields.verdict().sequence() == 7 && fields.footer().crc32c() == 99);
}

TEST("frames", "what is cut off or no message at all is refused") {
  const std::string whole = response().SerializeAsString();
  for (const std::size_t size : {whole.size() - 1, std::size_t{40}, std::size_t{1}}) {
    auto frame = in_slices(whole.substr(0, size), 16);
    v1::CommitResponse fields;
    CHECK(check::throws<gemps::ServerMisbehaved>([&] { gemps::parse_frame(frame, kChunk, fields); }));
  }
  auto frame = in_slices("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 4);
  v1::CommitResponse fields;
  CHECK(check::throws<gemps::ServerMisbehaved>([&] { gemps::parse_frame(frame, kChunk, fields); }));
}
