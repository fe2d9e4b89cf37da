#include "quadratic.hpp"

#include <algorithm>

namespace gemps {
namespace {

Layout one_tensor(std::uint64_t parameters) {
  v1::Layout layout;
  auto& tensor = *layout.add_tensors();
  tensor.set_name("theta");
  tensor.add_shape(parameters);
  tensor.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  tensor.set_kind(v1::TENSOR_KIND_PARAMETER);
  return Layout(layout);
}

}  // namespace

void Quadratic::first_parameters(std::uint64_t /*seed*/, Tensors& into) const {
  for (std::size_t i = 0; i < into.parameters.size(); ++i) {
    into.parameters[i] = (static_cast<float>(i % 509) - 254.0F) / 256.0F;
  }
  std::fill(into.rest.begin(), into.rest.end(), std::byte{0});
}

Step Quadratic::compute(std::span<const float> parameters, std::span<float> gradient) {
  std::copy(parameters.begin(), parameters.end(), gradient.begin());
  double sum = 0;
  for (const float theta : parameters) sum += static_cast<double>(theta) * theta;
  return {sum / 2, 1};
}

NoCompute::NoCompute(std::uint64_t parameters) : layout_(one_tensor(parameters)) {}

void NoCompute::first_parameters(std::uint64_t /*seed*/, Tensors& into) const {
  std::fill(into.parameters.begin(), into.parameters.end(), 0.0F);
}

Step NoCompute::compute(std::span<const float> /*parameters*/, std::span<float> gradient) {
  // Of several sizes and both signs, as gradients are.
  for (std::size_t i = 0; !is_ready_ && i < gradient.size(); ++i) {
    gradient[i] = (static_cast<float>(i * 2654435761U % 1009) - 504.0F) / 504'000.0F;
  }
  is_ready_ = true;
  return {};
}

}  // namespace gemps
