#include "payload.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "check.hpp"
#include "crc32c.hpp"
#include "errors.hpp"

namespace {

using gemps::Layout;
using gemps::PayloadFormat;
using gemps::PayloadReader;
using gemps::Tensors;
namespace v1 = gemps::v1;

// 600 PARAMETERs (two blocks of 256, and one of 88), then elements of 8, 1, 2 and 4 bytes; a FROZEN tensor.
Layout mixed_layout() {
  return Layout::from_json(nlohmann::json::parse(R"([
    {"name": "a", "shape": [20, 15], "element_type": "float32", "kind": "parameter"},
    {"name": "nothing", "shape": [0, 7], "element_type": "bfloat16", "kind": "parameter"},
    {"name": "b", "shape": [300], "element_type": "float64", "kind": "parameter"},
    {"name": "c", "shape": [5], "element_type": "int64", "kind": "buffer"},
    {"name": "d", "shape": [3], "element_type": "bool", "kind": "buffer"},
    {"name": "e", "shape": [4], "element_type": "float16", "kind": "buffer"},
    {"name": "f", "shape": [2], "element_type": "int32", "kind": "buffer"},
    {"name": "g", "shape": [9], "element_type": "other", "kind": "frozen", "sha256": "00ff"}
  ])"));
}

Tensors made_up(const Layout& layout) {
  Tensors tensors(layout);
  for (std::size_t i = 0; i < tensors.parameters.size(); ++i) tensors.parameters[i] = static_cast<float>(i) / 8 - 30;
  for (std::size_t i = 0; i < tensors.rest.size(); ++i) tensors.rest[i] = static_cast<std::byte>(i + 1);
  return tensors;
}

std::vector<std::byte> bytes_of(const PayloadFormat& format, const Tensors& tensors) {
  std::vector<std::byte> bytes(format.byte_count());
  encode_range(format, {tensors.parameters, 1.0F, tensors.rest}, 0, bytes.size(), bytes.data());
  return bytes;
}

v1::Footer footer_of(const std::vector<std::byte>& bytes, std::uint64_t chunks) {
  v1::Footer footer;
  footer.set_byte_count(bytes.size());
  footer.set_chunk_count(chunks);
  footer.set_crc32c(gemps::crc32c(bytes));
  return footer;
}

// A chunk that arrives in pieces of so many bytes.
void take(PayloadReader& reader, std::uint64_t offset, std::span<const std::byte> data, std::size_t piece) {
  reader.begin_chunk(offset, data.size());
  while (!data.empty()) {
    reader.feed(data.first(std::min(piece, data.size())));
    data = data.subspan(std::min(piece, data.size()));
  }
  reader.end_chunk();
}

constexpr auto kTypes = {v1::WIRE_TYPE_FLOAT32, v1::WIRE_TYPE_BFLOAT16};

}  // namespace

TEST("payload", "sizes are those of the contract") {
  const Layout layout = mixed_layout();
  CHECK(PayloadFormat(layout, v1::WIRE_TYPE_FLOAT32).byte_count() == 2400 + 40 + 3 + 8 + 8);
  CHECK(PayloadFormat(layout, v1::WIRE_TYPE_BFLOAT16).byte_count() == 1200 + 40 + 3 + 8 + 8);
}

TEST("payload", "chunks are cut at the borders of elements") {
  const PayloadFormat format(mixed_layout(), v1::WIRE_TYPE_BFLOAT16);
  const auto border = [&](std::uint64_t offset) { return format.border_at_or_before(offset); };
  CHECK(border(0) == 0 && border(1) == 0 && border(2) == 2 && border(1199) == 1198);  // 2 bytes each
  CHECK(border(1200) == 1200 && border(1207) == 1200 && border(1208) == 1208);        // 8
  CHECK(border(1241) == 1241 && border(1242) == 1242);                                // 1
  CHECK(border(1243) == 1243 && border(1244) == 1243 && border(1245) == 1245);        // 2
  CHECK(border(1251) == 1251 && border(1253) == 1251 && border(1255) == 1255 && border(1259) == 1259);
  CHECK(format.chunk_end(0, 301) == 300 && format.chunk_end(1200, 300) == 1259);
  CHECK(format.count_chunks(300) == 5);
  CHECK(format.count_chunks(2000) == 1);
}

TEST("payload", "a range is encoded as it lies in the whole") {
  const Layout layout = mixed_layout();
  const Tensors tensors = made_up(layout);
  for (const auto type : kTypes) {
    const PayloadFormat format(layout, type);
    const auto whole = bytes_of(format, tensors);
    std::vector<std::byte> together;
    for (std::uint64_t begin = 0; begin < whole.size();) {
      const std::uint64_t end = format.chunk_end(begin, 261);
      std::vector<std::byte> part(end - begin);
      encode_range(format, {tensors.parameters, 1.0F, tensors.rest}, begin, end, part.data());
      together.insert(together.end(), part.begin(), part.end());
      begin = end;
    }
    CHECK(together == whole);
  }
}

TEST("payload", "chunks in pieces of any size are put together") {
  const Layout layout = mixed_layout();
  const Tensors tensors = made_up(layout);
  for (const auto type : kTypes) {
    const PayloadFormat format(layout, type);
    const auto bytes = bytes_of(format, tensors);
    for (const std::size_t piece : {1U, 3U, 64U, 255U, 259U, 260U, 261U, 10'000U}) {
      Tensors received(layout);
      PayloadReader reader(format, received);
      std::uint64_t chunks = 0;
      for (std::uint64_t begin = 0; begin < bytes.size(); ++chunks) {
        const std::uint64_t end = format.chunk_end(begin, 600);
        take(reader, begin, std::span(bytes).subspan(begin, end - begin), piece);
        begin = end;
      }
      reader.finish(footer_of(bytes, chunks));
      CHECK(received.rest == tensors.rest);
      CHECK(bytes_of(format, received) == bytes);
      if (type == v1::WIRE_TYPE_FLOAT32) CHECK(received.parameters == tensors.parameters);
    }
  }
}

TEST("payload", "a resumed stream counts its own chunks, and the checksum is over all bytes") {
  const Layout layout = mixed_layout();
  const PayloadFormat format(layout, v1::WIRE_TYPE_FLOAT32);
  const auto bytes = bytes_of(format, made_up(layout));
  Tensors received(layout);
  PayloadReader reader(format, received);
  take(reader, 0, std::span(bytes).first(400), 400);
  take(reader, 400, std::span(bytes).subspan(400, 400), 400);
  CHECK(reader.received() == 800);
  reader.next_stream();
  take(reader, 800, std::span(bytes).subspan(800), 5000);
  reader.finish(footer_of(bytes, 1));
  CHECK(check::throws<gemps::Torn>([&] { reader.finish(footer_of(bytes, 3)); }));
}

TEST("payload", "chunks that do not follow, are empty, too long or cut within an element are refused") {
  const Layout layout = mixed_layout();
  const PayloadFormat format(layout, v1::WIRE_TYPE_FLOAT32);
  Tensors received(layout);
  PayloadReader reader(format, received);
  CHECK(check::throws<gemps::Torn>([&] { reader.begin_chunk(4, 4); }));
  CHECK(check::throws<gemps::Torn>([&] { reader.begin_chunk(0, 0); }));
  CHECK(check::throws<gemps::Torn>([&] { reader.begin_chunk(0, 6); }));
  CHECK(check::throws<gemps::Torn>([&] { reader.begin_chunk(0, format.byte_count() + 1); }));
}

TEST("payload", "a footer of other bytes, chunks or checksum is refused") {
  const Layout layout = mixed_layout();
  const PayloadFormat format(layout, v1::WIRE_TYPE_FLOAT32);
  const auto bytes = bytes_of(format, made_up(layout));
  Tensors received(layout);
  PayloadReader reader(format, received);
  take(reader, 0, bytes, 1000);
  const auto good = footer_of(bytes, 1);
  reader.finish(good);
  for (int field = 0; field < 3; ++field) {
    auto bad = good;
    if (field == 0) bad.set_byte_count(good.byte_count() - 1);
    if (field == 1) bad.set_chunk_count(2);
    if (field == 2) bad.set_crc32c(good.crc32c() ^ 1);
    CHECK(check::throws<gemps::Torn>([&] { reader.finish(bad); }));
  }
}
