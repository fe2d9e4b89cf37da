#include "perceptron.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>
#include <string>

namespace gemps {
namespace {

void add_tensor(v1::Layout& layout, const std::string& name, std::initializer_list<std::size_t> shape) {
  auto& tensor = *layout.add_tensors();
  tensor.set_name(name);
  for (const std::size_t dimension : shape) tensor.add_shape(dimension);
  tensor.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  tensor.set_kind(v1::TENSOR_KIND_PARAMETER);
}

Layout make_layout(std::size_t features, std::size_t hidden, std::size_t classes) {
  v1::Layout layout;
  add_tensor(layout, "hidden.weight", {hidden, features});
  add_tensor(layout, "hidden.bias", {hidden});
  add_tensor(layout, "output.weight", {classes, hidden});
  add_tensor(layout, "output.bias", {classes});
  return Layout(layout);
}

// Weights and biases of one layer, and what lies behind them.
struct Layer {
  Layer(std::span<const float> parameters, std::size_t inputs, std::size_t outputs)
      : weights(parameters.first(inputs * outputs)),
        biases(parameters.subspan(inputs * outputs, outputs)),
        behind(parameters.subspan(inputs * outputs + outputs)) {}

  std::span<const float> weights;
  std::span<const float> biases;
  std::span<const float> behind;
};

float dot(const float* one, const float* other, std::size_t size) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < size; ++i) sum += one[i] * other[i];
  return sum;
}

void add_scaled(float* to, const float* from, float factor, std::size_t size) {
#pragma omp simd
  for (std::size_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

void apply(const Layer& layer, std::span<const float> input, std::span<float> output) {
  for (std::size_t i = 0; i < output.size(); ++i) {
    output[i] = layer.biases[i] + dot(&layer.weights[i * input.size()], input.data(), input.size());
  }
}

}  // namespace

Perceptron::Perceptron(std::size_t features, std::size_t hidden, std::size_t classes)
    : features_(features),
      hidden_(hidden),
      classes_(classes),
      layout_(make_layout(features, hidden, classes)),
      activations_(hidden),
      logits_(classes),
      errors_(hidden) {}

void Perceptron::first_parameters(std::uint64_t seed, std::span<float> into) const {
  std::mt19937_64 random(seed);
  const auto fill = [&random](std::span<float> part, std::size_t inputs) {
    const float bound = 1.0F / std::sqrt(static_cast<float>(inputs));
    std::uniform_real_distribution<float> uniform(-bound, bound);
    std::generate(part.begin(), part.end(), [&] { return uniform(random); });
  };
  const std::size_t first_layer = (features_ + 1) * hidden_;
  fill(into.first(first_layer), features_);
  fill(into.subspan(first_layer), hidden_);
}

void Perceptron::forward(std::span<const float> parameters, std::span<const float> input) {
  const Layer first(parameters, features_, hidden_);
  const Layer second(first.behind, hidden_, classes_);
  apply(first, input, activations_);
  for (float& activation : activations_) activation = std::max(activation, 0.0F);
  apply(second, activations_, logits_);
}

double Perceptron::add_gradient(std::span<const float> parameters, std::span<const float> input, std::size_t label,
                                float weight, std::span<float> gradient) {
  forward(parameters, input);
  const std::size_t first_layer = (features_ + 1) * hidden_;
  const Layer second(parameters.subspan(first_layer), hidden_, classes_);
  const float largest = *std::max_element(logits_.begin(), logits_.end());
  float sum = 0;
  for (const float logit : logits_) sum += std::exp(logit - largest);
  const double loss = std::log(sum) + largest - logits_[label];

  // From here on an element of `errors_` or `error` is the derivative of the loss by what goes into that unit.
  std::fill(errors_.begin(), errors_.end(), 0.0F);
  float* const output_weights = &gradient[first_layer];
  float* const output_biases = output_weights + classes_ * hidden_;
  for (std::size_t i = 0; i < classes_; ++i) {
    const float error = weight * (std::exp(logits_[i] - largest) / sum - (i == label ? 1.0F : 0.0F));
    output_biases[i] += error;
    add_scaled(output_weights + i * hidden_, activations_.data(), error, hidden_);
    add_scaled(errors_.data(), &second.weights[i * hidden_], error, hidden_);
  }
  float* const hidden_biases = &gradient[features_ * hidden_];
  for (std::size_t i = 0; i < hidden_; ++i) {
    if (activations_[i] <= 0) continue;
    hidden_biases[i] += errors_[i];
    add_scaled(&gradient[i * features_], input.data(), errors_[i], features_);
  }
  return loss;
}

std::size_t Perceptron::classify(std::span<const float> parameters, std::span<const float> input) {
  forward(parameters, input);
  return static_cast<std::size_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

}  // namespace gemps
