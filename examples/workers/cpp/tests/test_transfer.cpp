#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check.hpp"
#include "transfer.hpp"

namespace {

using gemps::Failure;
using gemps::Remedy;
using gemps::v1::PullResponse;

const gemps::Model kModel{{1.0F, -2.5F}, {'\7', '\0', '\x9'}};
const std::string kPayload = gemps::payload_of(kModel);
const std::string kDigest(32, '\5');

PullResponse header() {
  PullResponse message;
  auto& header = *message.mutable_header();
  header.mutable_version()->set_clock(3);
  header.set_wire_type(gemps::v1::WIRE_TYPE_FLOAT32);
  header.set_byte_count(kPayload.size());
  header.set_layout_digest(kDigest);
  return message;
}

PullResponse chunk(const std::string& bytes) {
  PullResponse message;
  message.set_chunk(bytes);
  return message;
}

PullResponse footer() {
  PullResponse message;
  message.mutable_footer()->set_crc32c(gemps::crc32c(kPayload));
  return message;
}

gemps::Model received(std::vector<PullResponse> messages) {
  gemps::Model model{{0, 0}, std::string(3, 'x')};
  std::size_t i = 0;
  const auto next = [&] {
    if (++i == messages.size()) throw Failure(Remedy::kRejoin, "the stream ended");
    return messages[i];
  };
  CHECK(gemps::receive(messages[0], next, kDigest, model).clock() == 3);
  return model;
}

bool is_kept_off(const std::vector<PullResponse>& messages, Remedy remedy) {
  try {
    received(messages);
  } catch (const Failure& failure) {
    return failure.remedy == remedy;
  }
  return false;
}

}  // namespace

TEST("transfer", "checksums are those of the vectors that all implementations share") {
  std::ifstream stream(std::string(VECTORS) + "crc32c.json");
  const auto cases = nlohmann::json::parse(stream).at("cases");
  CHECK(cases.size() > 3);
  for (const auto& one : cases) {
    std::string bytes;
    if (one.contains("hex")) {
      const std::string hex = one.at("hex");
      for (std::size_t i = 0; i < hex.size(); i += 2) {
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
    } else {
      for (int i = 0; i < 4099; ++i) bytes += static_cast<char>(i * i % 251);
    }
    CHECK(gemps::crc32c(bytes) == one.at("crc32c").get<std::uint32_t>());
  }
}

TEST("transfer", "parameters arrive whole, wherever their chunks are cut") {
  for (std::size_t size = 1; size <= kPayload.size() + 1; ++size) {
    std::vector<PullResponse> messages{header()};
    for (std::size_t at = 0; at < kPayload.size(); at += size) messages.push_back(chunk(kPayload.substr(at, size)));
    messages.push_back(footer());
    const auto model = received(messages);
    CHECK(model.parameters == kModel.parameters && model.buffers == kModel.buffers);
  }
}

TEST("transfer", "one message may have all parts") {
  auto message = header();
  message.MergeFrom(chunk(kPayload));
  message.MergeFrom(footer());
  CHECK(received({message}).parameters == kModel.parameters);
}

TEST("transfer", "parameters that are damaged, cut short, too long or torn are not accepted") {
  std::string damaged = kPayload;
  damaged[3] = static_cast<char>(damaged[3] ^ 1);
  CHECK(is_kept_off({header(), chunk(damaged), footer()}, Remedy::kRejoin));
  CHECK(is_kept_off({header(), chunk(kPayload.substr(4)), footer()}, Remedy::kRejoin));
  CHECK(is_kept_off({header(), chunk(kPayload + kPayload), footer()}, Remedy::kRejoin));
  CHECK(is_kept_off({header(), chunk(kPayload)}, Remedy::kRejoin));
}

TEST("transfer", "parameters of another layout, size or wire type end the worker") {
  auto other = header();
  other.mutable_header()->set_layout_digest(std::string(32, '\6'));
  CHECK(is_kept_off({other, chunk(kPayload), footer()}, Remedy::kBug));
  other = header();
  other.mutable_header()->set_byte_count(12);
  CHECK(is_kept_off({other, chunk(kPayload), footer()}, Remedy::kBug));
  other = header();
  other.mutable_header()->set_wire_type(gemps::v1::WIRE_TYPE_BFLOAT16);
  CHECK(is_kept_off({other, chunk(kPayload), footer()}, Remedy::kBug));
}
