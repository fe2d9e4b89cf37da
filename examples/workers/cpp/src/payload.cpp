#include "payload.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "crc32c.hpp"
#include "errors.hpp"
#include "wire_types.hpp"

namespace gemps {

Tensors::Tensors(const Layout& layout)
    : parameters(layout.parameter_count()), rest(layout.buffer_bytes()) {}

PayloadFormat::PayloadFormat(const Layout& layout, v1::WireType wire_type)
    : wire_type_(wire_type),
      digest_(layout.digest()),
      parameter_count_(layout.parameter_count()),
      parameter_bytes_(encoded_bytes(wire_type, layout.parameter_count())),
      byte_count_(parameter_bytes_) {
  if (parameter_bytes_ > 0) regions_.push_back({0, parameter_bytes_, unit_bytes(wire_type)});
  for (const auto& tensor : layout.tensors().tensors()) {
    if (tensor.kind() != v1::TENSOR_KIND_BUFFER) continue;
    const std::uint64_t unit = byte_size(tensor.element_type());
    const std::uint64_t stop = byte_count_ + element_count(tensor) * unit;
    if (stop == byte_count_) continue;
    if (byte_count_ > parameter_bytes_ && regions_.back().unit == unit) {
      regions_.back().stop = stop;
    } else {
      regions_.push_back({byte_count_, stop, unit});
    }
    byte_count_ = stop;
  }
}

std::uint64_t PayloadFormat::border_at_or_before(std::uint64_t offset) const {
  if (offset >= byte_count_) return byte_count_;
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), offset,
                                      [](std::uint64_t place, const Region& region) { return place < region.start; });
  const Region& region = *std::prev(after);
  return offset - (offset - region.start) % region.unit;
}

std::uint64_t PayloadFormat::chunk_end(std::uint64_t offset, std::uint64_t chunk_bytes) const {
  return border_at_or_before(std::min(offset + chunk_bytes, byte_count_));
}

std::uint64_t PayloadFormat::count_chunks(std::uint64_t chunk_bytes) const {
  std::uint64_t count = 0;
  for (std::uint64_t offset = 0; offset < byte_count_; ++count) offset = chunk_end(offset, chunk_bytes);
  return count;
}

std::uint64_t PayloadFormat::element_at(std::uint64_t offset) const {
  if (offset >= parameter_bytes_) return parameter_count_;
  return offset / unit_bytes(wire_type_);
}

void encode_range(const PayloadFormat& format, const PayloadView& payload, std::uint64_t begin, std::uint64_t end,
                  std::byte* out) {
  const std::uint64_t boundary = std::clamp(format.parameter_bytes(), begin, end);
  if (begin < boundary) {
    const std::uint64_t first = format.element_at(begin);
    encode(format.wire_type(), payload.parameters.subspan(first, format.element_at(boundary) - first), payload.scale,
           out);
  }
  if (boundary < end) {
    std::memcpy(out + (boundary - begin), payload.rest.data() + (boundary - format.parameter_bytes()), end - boundary);
  }
}

PayloadReader::PayloadReader(const PayloadFormat& format, Tensors& into) : format_(format), into_(into) {
  partial_.reserve(unit_bytes(format.wire_type()));
}

void PayloadReader::reset() noexcept {
  received_ = chunk_count_ = 0;
  checksum_ = 0;
}

void PayloadReader::begin_chunk(std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t end = offset + size;
  if (offset != received_ || size == 0 || size > kLargestChunk || end > format_.byte_count() ||
      format_.border_at_or_before(end) != end) {
    throw Torn("the parameters arrived damaged: a chunk of " + std::to_string(size) + " bytes at " +
               std::to_string(offset) + " cannot follow the first " + std::to_string(received_));
  }
  position_ = offset;
  chunk_end_ = end;
  partial_.clear();
}

void PayloadReader::feed(std::span<const std::byte> piece) {
  checksum_ = crc32c(piece, checksum_);
  const std::uint64_t boundary = std::clamp(format_.parameter_bytes(), position_, position_ + piece.size());
  const auto parameters = piece.first(boundary - position_);
  const auto rest = piece.subspan(parameters.size());
  if (!parameters.empty()) feed_parameters(parameters);
  if (!rest.empty()) std::memcpy(into_.rest.data() + (boundary - format_.parameter_bytes()), rest.data(), rest.size());
  position_ += piece.size();
}

// gRPC hands a message over in pieces that end anywhere: a unit that is cut waits for the rest of it.
void PayloadReader::feed_parameters(std::span<const std::byte> piece) {
  const std::uint64_t stop = std::min(chunk_end_, format_.parameter_bytes());
  const std::size_t unit = unit_bytes(format_.wire_type());
  std::uint64_t place = position_;
  while (!piece.empty()) {
    if (partial_.empty()) {
      const std::uint64_t whole = place + piece.size() == stop ? piece.size() : piece.size() - piece.size() % unit;
      decode_units(piece.first(whole));
      place += whole;
      piece = piece.subspan(whole);
    }
    if (piece.empty()) break;
    const std::uint64_t unit_start = place - partial_.size();
    const std::size_t size = std::min<std::uint64_t>(unit, stop - unit_start);
    const auto part = piece.first(std::min(piece.size(), size - partial_.size()));
    partial_.insert(partial_.end(), part.begin(), part.end());
    place += part.size();
    piece = piece.subspan(part.size());
    if (partial_.size() == size) {
      decode_units(partial_);
      partial_.clear();
    }
  }
}

void PayloadReader::decode_units(std::span<const std::byte> units) {
  const std::uint64_t first = format_.element_at(received_);
  received_ += units.size();
  const std::uint64_t count = format_.element_at(received_) - first;
  decode(format_.wire_type(), units.data(), std::span(into_.parameters).subspan(first, count));
}

void PayloadReader::end_chunk() {
  received_ = chunk_end_;
  ++chunk_count_;
}

void PayloadReader::finish(const v1::Footer& footer) const {
  if (footer.byte_count() != format_.byte_count() || received_ != format_.byte_count() ||
      footer.chunk_count() != chunk_count_ || footer.crc32c() != checksum_) {
    throw Torn("the parameters arrived damaged: their footer does not match what came");
  }
}

}  // namespace gemps
