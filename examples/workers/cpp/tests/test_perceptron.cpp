#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check.hpp"
#include "digits.hpp"

namespace {

using gemps::Vector;

const gemps::Perceptron kModel(5, 7, 3);

// Of chosen values, so that no kink of ReLU lies within the differences below.
Vector some_parameters() {
  Vector parameters(kModel.output.end());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = (static_cast<float>(19 * i % 29) - 14) / 29;
  return parameters;
}

const Vector kInput{-0.5F, -0.2F, 0.1F, 0.4F, 0.7F};

nlohmann::json some_digits() {
  return {{"features", 2},
          {"classes", 2},
          {"maximum", 4},
          {"train", {{"inputs", {{1, 2}, {3, 4}}}, {"labels", {0, 1}}}},
          {"held_out", {{"inputs", {{4, 0}}}, {"labels", {1}}}}};
}

bool is_refused(const nlohmann::json& changes) {
  auto file = some_digits();
  file.merge_patch(changes);
  try {
    gemps::Digits digits(file);
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

}  // namespace

TEST("perceptron", "the gradient is that of finite differences") {
  const Vector parameters = some_parameters();
  Vector gradient(parameters.size());
  Vector ignored(parameters.size());
  kModel.loss(parameters, kInput, 1, 1, gradient);
  constexpr float kStep = 1e-2F;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Vector above = parameters;
    Vector below = parameters;
    above[i] += kStep;
    below[i] -= kStep;
    const double rise = kModel.loss(above, kInput, 1, 1, ignored) - kModel.loss(below, kInput, 1, 1, ignored);
    CHECK(std::abs(gradient[i] - rise / (2 * kStep)) < 2e-3);
  }
  CHECK(std::any_of(gradient.begin(), gradient.end(), [](float value) { return std::abs(value) > 0.05F; }));
}

TEST("perceptron", "gradients add up, by their weights") {
  const Vector parameters = some_parameters();
  Vector once(parameters.size());
  Vector twice(parameters.size());
  kModel.loss(parameters, kInput, 2, 1, once);
  kModel.loss(parameters, kInput, 2, 0.5F, twice);
  kModel.loss(parameters, kInput, 2, 0.5F, twice);
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(std::abs(once[i] - twice[i]) < 1e-6);
}

TEST("perceptron", "the layout of the digits is that of two torch.nn.Linear") {
  const gemps::Digits digits(some_digits());
  std::string shapes;
  for (const auto& tensor : digits.layout.tensors()) {
    shapes += tensor.name();
    for (const auto dimension : tensor.shape()) shapes += " " + std::to_string(dimension);
    shapes += "\n";
  }
  CHECK(shapes == "hidden.weight 64 2\nhidden.bias 64\noutput.weight 2 64\noutput.bias 2\n");
  CHECK(digits.first.parameters.size() == 64 * 3 + 2 * 65);
}

TEST("perceptron", "a file of digits that does not fit together is refused") {
  CHECK(!is_refused(nlohmann::json::object()));
  CHECK(is_refused({{"features", 3}}));
  CHECK(is_refused({{"train", nullptr}}));
  CHECK(is_refused({{"held_out", {{"inputs", nlohmann::json::array()}, {"labels", nlohmann::json::array()}}}}));
  CHECK(is_refused({{"train", {{"labels", {0, 2}}}}}));
}
