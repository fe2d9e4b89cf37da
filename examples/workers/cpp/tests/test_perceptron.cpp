#include "perceptron.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "check.hpp"

namespace {

constexpr std::size_t kFeatures = 5;
constexpr std::size_t kHidden = 7;
constexpr std::size_t kClasses = 3;

std::vector<float> first_parameters(const gemps::Perceptron& model, std::uint64_t seed) {
  std::vector<float> parameters(model.layout().parameter_count());
  model.first_parameters(seed, parameters);
  return parameters;
}

double loss_at(gemps::Perceptron& model, const std::vector<float>& parameters, const std::vector<float>& input) {
  std::vector<float> ignored(parameters.size());
  return model.add_gradient(parameters, input, 1, 1.0F, ignored);
}

}  // namespace

TEST("perceptron", "the gradient is that of finite differences") {
  gemps::Perceptron model(kFeatures, kHidden, kClasses);
  const auto parameters = first_parameters(model, 3);
  std::vector<float> input(kFeatures);
  for (std::size_t i = 0; i < kFeatures; ++i) input[i] = 0.3F * static_cast<float>(i) - 0.5F;
  std::vector<float> gradient(parameters.size());
  model.add_gradient(parameters, input, 1, 1.0F, gradient);
  constexpr float kStep = 1e-2F;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto above = parameters;
    auto below = parameters;
    above[i] += kStep;
    below[i] -= kStep;
    const double difference = (loss_at(model, above, input) - loss_at(model, below, input)) / (2 * kStep);
    CHECK(std::abs(gradient[i] - difference) < 2e-3);
  }
  CHECK(std::any_of(gradient.begin(), gradient.end(), [](float value) { return std::abs(value) > 0.05F; }));
}

TEST("perceptron", "gradients add up, by their weights") {
  gemps::Perceptron model(kFeatures, kHidden, kClasses);
  const auto parameters = first_parameters(model, 3);
  const std::vector<float> input(kFeatures, 0.5F);
  std::vector<float> once(parameters.size());
  std::vector<float> twice(parameters.size());
  model.add_gradient(parameters, input, 2, 1.0F, once);
  model.add_gradient(parameters, input, 2, 0.5F, twice);
  model.add_gradient(parameters, input, 2, 0.5F, twice);
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(std::abs(once[i] - twice[i]) < 1e-6);
}

TEST("perceptron", "first parameters follow from the seed and stay within their bounds") {
  const gemps::Perceptron model(64, 64, 10);
  const auto parameters = first_parameters(model, 1);
  CHECK(parameters == first_parameters(model, 1));
  CHECK(parameters != first_parameters(model, 2));
  CHECK(std::all_of(parameters.begin(), parameters.end(), [](float value) { return std::abs(value) <= 0.125F; }));
  const double sum = std::accumulate(parameters.begin(), parameters.end(), 0.0);
  CHECK(std::abs(sum) / static_cast<double>(parameters.size()) < 0.01);
}

TEST("perceptron", "its layout is that of two torch.nn.Linear") {
  const gemps::Perceptron model(64, 64, 10);
  CHECK(model.layout().parameter_count() == 64 * 64 + 64 + 10 * 64 + 10);
  CHECK(model.layout().canonical_text() ==
        "gemps-layout-1\nparameter float32 2:64,64 13:hidden.weight\nparameter float32 1:64 11:hidden.bias\n"
        "parameter float32 2:10,64 13:output.weight\nparameter float32 1:10 11:output.bias\n");
}
