// This worker as a candidate of `gemps conformance serve`: it trains the kit's quadratic task, 1/2 sum(theta^2), on
// whatever layout the kit gives. docs/protocol.md says under "Conformance" what a candidate is.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "connection.hpp"
#include "worker.hpp"

namespace {

// Exit status for what the kit asks for and this worker does not implement.
constexpr int kNotSpoken = 3;

// Bytes of an element.
const std::map<std::string, std::size_t> kBytes{{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2},
                                                {"int8", 1},    {"int16", 2},   {"int32", 4},   {"int64", 8},
                                                {"uint8", 1},   {"bool", 1},    {"other", 1}};

// The value of an enum of the contract, by its name in the kit's file.
template <class Enum, class Parse>
Enum value_of(const std::string& prefix, std::string name, Parse parse) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char one) { return std::toupper(one); });
  Enum value{};
  if (!parse(prefix + name, &value)) throw std::runtime_error("the kit names an unknown " + prefix + name);
  return value;
}

std::string from_hexadecimal(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

class Quadratic : public gemps::Task {
 public:
  explicit Quadratic(const nlohmann::json& tensors) {
    std::size_t parameters = 0;
    for (const auto& json : tensors) {
      auto& tensor = *layout.add_tensors();
      tensor.set_name(json.at("name"));
      std::size_t elements = 1;
      for (const std::size_t dimension : json.at("shape")) {
        tensor.add_shape(dimension);
        elements *= dimension;
      }
      const std::string type = json.at("element_type");
      tensor.set_element_type(value_of<gemps::v1::ElementType>("ELEMENT_TYPE_", type, gemps::v1::ElementType_Parse));
      tensor.set_kind(value_of<gemps::v1::TensorKind>("TENSOR_KIND_", json.at("kind"), gemps::v1::TensorKind_Parse));
      for (const std::string alias : json.value("aliases", nlohmann::json::array())) tensor.add_aliases(alias);
      tensor.set_sha256(from_hexadecimal(json.value("sha256", "")));
      if (tensor.kind() == gemps::v1::TENSOR_KIND_PARAMETER) parameters += elements;
      if (tensor.kind() == gemps::v1::TENSOR_KIND_BUFFER) first.buffers.append(elements * kBytes.at(type), '\0');
    }
    first.parameters.resize(parameters);
    for (std::size_t i = 0; i < parameters; ++i) {
      first.parameters[i] = (static_cast<float>(i % 509) - 254) / 256;
    }
  }

  gemps::Step step(const gemps::Model& model) override {
    double loss = 0;
    for (const float theta : model.parameters) loss += 0.5 * theta * theta;
    return {model, loss, 0};
  }

  std::string evaluate(const gemps::Model& /*model*/) override { return "done"; }
};

bool has_float32(const nlohmann::json& wire_types) {
  return std::find(wire_types.begin(), wire_types.end(), "float32") != wire_types.end();
}

}  // namespace

int main() {
  gemps::block_signals();
  const auto file = nlohmann::json::parse(gemps::read_file(std::getenv("GEMPS_CONFORMANCE")));
  if (!has_float32(file.at("delta_wire_types")) || !has_float32(file.at("parameter_wire_types"))) return kNotSpoken;
  Quadratic task(file.at("layout"));
  const gemps::Connection connection(std::getenv("GEMPS_SERVER"), "");
  return gemps::work(task, connection, std::getenv("GEMPS_WORKER_NAME"), gemps::Seconds(5));
}
