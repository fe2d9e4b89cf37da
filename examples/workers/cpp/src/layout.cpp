#include "layout.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace gemps {
namespace {

constexpr std::string_view kTypePrefix = "ELEMENT_TYPE_";
constexpr std::string_view kKindPrefix = "TENSOR_KIND_";

// The canonical text's names are the enums' names without the prefix, in small letters.
std::string plain_name(const std::string& enum_name, std::string_view prefix) {
  std::string name = enum_name.substr(prefix.size());
  std::transform(name.begin(), name.end(), name.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return name;
}

std::string enum_name(const std::string& plain, std::string_view prefix) {
  std::string name(prefix);
  std::transform(plain.begin(), plain.end(), std::back_inserter(name),
                 [](char c) { return c >= 'a' && c <= 'z' ? c - 32 : c; });
  return name;
}

void append_name(std::string& text, const std::string& name) { text += std::to_string(name.size()) + ":" + name; }

std::string sha256(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw Error("OpenSSL cannot compute SHA-256 here");
  }
  return {reinterpret_cast<const char*>(digest.data()), size};
}

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string bytes_of_hex(const std::string& hex) {
  if (hex.size() % 2 != 0) throw UsageError("an odd number of hexadecimal digits: " + hex);
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const auto high = kHexDigits.find(hex[i]);
    const auto low = kHexDigits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) throw UsageError("no hexadecimal: " + hex);
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

std::string hex_of_bytes(const std::string& bytes) {
  std::string hex;
  for (const char one : bytes) {
    const auto byte = static_cast<unsigned char>(one);
    hex += {kHexDigits[byte / 16], kHexDigits[byte % 16]};
  }
  return hex;
}

v1::TensorSpec tensor_from_json(const nlohmann::json& description) {
  v1::TensorSpec tensor;
  tensor.set_name(description.at("name").get<std::string>());
  for (const auto& dimension : description.at("shape")) tensor.add_shape(dimension.get<std::uint64_t>());
  v1::ElementType type{};
  v1::TensorKind kind{};
  if (!v1::ElementType_Parse(enum_name(description.at("element_type").get<std::string>(), kTypePrefix), &type) ||
      !v1::TensorKind_Parse(enum_name(description.at("kind").get<std::string>(), kKindPrefix), &kind)) {
    throw UsageError("tensor " + tensor.name() + " is of a type or kind that layout.proto does not know");
  }
  tensor.set_element_type(type);
  tensor.set_kind(kind);
  for (const auto& alias : description.value("aliases", nlohmann::json::array())) {
    tensor.add_aliases(alias.get<std::string>());
  }
  tensor.set_sha256(bytes_of_hex(description.value("sha256", std::string())));
  return tensor;
}

}  // namespace

std::uint64_t byte_size(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_FLOAT64:
    case v1::ELEMENT_TYPE_INT64:
      return 8;
    case v1::ELEMENT_TYPE_FLOAT32:
    case v1::ELEMENT_TYPE_INT32:
      return 4;
    case v1::ELEMENT_TYPE_FLOAT16:
    case v1::ELEMENT_TYPE_BFLOAT16:
    case v1::ELEMENT_TYPE_INT16:
      return 2;
    case v1::ELEMENT_TYPE_INT8:
    case v1::ELEMENT_TYPE_UINT8:
    case v1::ELEMENT_TYPE_BOOL:
      return 1;
    default:
      throw UsageError("an element type that layout.proto does not know: " + std::to_string(type));
  }
}

std::uint64_t element_count(const v1::TensorSpec& tensor) {
  std::uint64_t count = 1;
  for (const std::uint64_t dimension : tensor.shape()) count *= dimension;
  return count;
}

Layout::Layout(v1::Layout tensors) : tensors_(std::move(tensors)) {
  for (const auto& tensor : tensors_.tensors()) {
    const std::uint64_t count = element_count(tensor);
    switch (tensor.kind()) {
      case v1::TENSOR_KIND_PARAMETER:
        parameter_count_ += count;
        break;
      case v1::TENSOR_KIND_BUFFER:
        buffer_bytes_ += count * byte_size(tensor.element_type());
        break;
      case v1::TENSOR_KIND_FROZEN:
        break;
      default:
        throw UsageError("tensor " + tensor.name() + " is neither parameter nor buffer nor frozen");
    }
  }
  digest_ = sha256(canonical_text());
}

Layout Layout::from_json(const nlohmann::json& tensors) {
  v1::Layout layout;
  try {
    for (const auto& description : tensors) *layout.add_tensors() = tensor_from_json(description);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(std::string("not a list of tensors: ") + error.what());
  }
  return Layout(std::move(layout));
}

std::string Layout::canonical_text() const {
  std::string text = "gemps-layout-1\n";
  for (const auto& tensor : tensors_.tensors()) {
    text += plain_name(v1::TensorKind_Name(tensor.kind()), kKindPrefix) + " ";
    text += plain_name(v1::ElementType_Name(tensor.element_type()), kTypePrefix) + " ";
    text += std::to_string(tensor.shape_size()) + ":";
    for (const std::uint64_t dimension : tensor.shape()) text += std::to_string(dimension) + ",";
    if (tensor.shape_size() > 0) text.pop_back();
    text += " ";
    if (tensor.kind() == v1::TENSOR_KIND_FROZEN) text += hex_of_bytes(tensor.sha256()) + " ";
    append_name(text, tensor.name());
    // std::string compares bytes as unsigned numbers, which is the order that the text wants.
    std::vector<std::string> aliases(tensor.aliases().begin(), tensor.aliases().end());
    std::sort(aliases.begin(), aliases.end());
    for (const auto& alias : aliases) append_name(text += " ", alias);
    text += "\n";
  }
  return text;
}

}  // namespace gemps
