// A perceptron of two layers with ReLU between them, and the gradient of its cross-entropy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "layout.hpp"

namespace gemps {

// Its parameters lie one behind the other, as torch.nn.Linear has them (row-major, [out, in]):
// hidden.weight, hidden.bias, output.weight, output.bias. Not for two threads at once: it has room for one sample.
class Perceptron {
 public:
  Perceptron(std::size_t features, std::size_t hidden, std::size_t classes);

  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }

  // Uniform in +-1/sqrt(fan_in), as torch.nn.Linear begins.
  void first_parameters(std::uint64_t seed, std::span<float> into) const;

  // Adds `weight` times the gradient of one sample's loss to `gradient`; returns the loss.
  double add_gradient(std::span<const float> parameters, std::span<const float> input, std::size_t label, float weight,
                      std::span<float> gradient);

  // The likeliest class.
  std::size_t classify(std::span<const float> parameters, std::span<const float> input);

 private:
  void forward(std::span<const float> parameters, std::span<const float> input);

  std::size_t features_;
  std::size_t hidden_;
  std::size_t classes_;
  Layout layout_;
  std::vector<float> activations_;
  std::vector<float> logits_;
  std::vector<float> errors_;
};

}  // namespace gemps
