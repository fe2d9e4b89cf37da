// The task that `gemps export-task digits` writes down: handwritten digits, and a perceptron of two layers that reads
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <utility>

#include "task.hpp"

namespace gemps {

using Vector = std::vector<float>;

// As torch.nn.Linear: weights [outputs, inputs] from `start` on in the parameters, then biases, up to end().
struct Linear {
  [[nodiscard]] std::size_t biases() const { return start + inputs * outputs; }
  [[nodiscard]] std::size_t end() const { return biases() + outputs; }

  [[nodiscard]] Vector forward(const Vector& parameters, const Vector& input) const {
    Vector output(parameters.data() + biases(), parameters.data() + end());
    for (std::size_t k = 0; k < inputs * outputs; ++k) output[k / inputs] += parameters[start + k] * input[k % inputs];
    return output;
  }

  // Adds the parameters' gradient to `gradient`, and returns the input's; `error` is the output's.
  Vector backward(const Vector& parameters, const Vector& input, const Vector& error, Vector& gradient) const {
    Vector back(inputs);
    for (std::size_t j = 0; j < outputs; ++j) gradient[biases() + j] += error[j];
    for (std::size_t k = 0; k < inputs * outputs; ++k) {
      gradient[start + k] += error[k / inputs] * input[k % inputs];
      back[k % inputs] += error[k / inputs] * parameters[start + k];
    }
    return back;
  }

  std::size_t inputs, outputs, start;
};

// Two layers with ReLU between them and cross-entropy behind them, over one array of parameters.
struct Perceptron {
  Perceptron(std::size_t features, std::size_t units, std::size_t classes)
      : hidden{features, units, 0}, output{units, classes, hidden.end()} {}

  // Activations of the hidden layer, and the probabilities of the classes.
  [[nodiscard]] std::pair<Vector, Vector> forward(const Vector& parameters, const Vector& input) const {
    Vector units = hidden.forward(parameters, input);
    for (float& one : units) one = std::max(one, 0.0F);
    Vector powers = output.forward(parameters, units);
    const float largest = *std::max_element(powers.begin(), powers.end());  // so that exp() does not overflow
    float sum = 0;
    for (float& one : powers) sum += one = std::exp(one - largest);
    for (float& one : powers) one /= sum;
    return {units, powers};
  }

  // The loss of a sample. Its gradient, times `weight`, is added to `gradient`.
  double loss(const Vector& parameters, const Vector& input, std::size_t label, float weight, Vector& gradient) const {
    const auto [units, probabilities] = forward(parameters, input);
    Vector error(probabilities);
    error[label] -= 1;
    for (float& one : error) one *= weight;
    Vector back = output.backward(parameters, units, error, gradient);
    for (std::size_t k = 0; k < back.size(); ++k) back[k] = units[k] > 0 ? back[k] : 0;
    hidden.backward(parameters, input, back, gradient);
    return -std::log(static_cast<double>(probabilities[label]));
  }

  Linear hidden, output;
};

class Digits : public Task {
 public:
  // Throws nlohmann::json::exception or std::invalid_argument if this is no such file.
  explicit Digits(const nlohmann::json& file)
      : train_(samples(file, "train")),
        held_out_(samples(file, "held_out")),
        model_(file.at("features"), kHidden, file.at("classes")) {
    std::uniform_real_distribution<float> uniform(-0.125, 0.125);  // 1 / sqrt(kHidden), as torch.nn.Linear begins
    first.parameters.resize(model_.output.end());
    for (float& one : first.parameters) one = uniform(random_);
    steps_per_epoch = std::max<std::size_t>(1, train_.size() / kBatch);
    add_tensor("hidden.weight", {kHidden, model_.hidden.inputs});
    add_tensor("hidden.bias", {kHidden});
    add_tensor("output.weight", {model_.output.outputs, kHidden});
    add_tensor("output.bias", {model_.output.outputs});
  }

  // Of a batch that is drawn at random.
  Step step(const Model& model) override {
    Step step{{Vector(model.parameters.size()), model.buffers}, 0, kBatch};
    std::uniform_int_distribution<std::size_t> any(0, train_.size() - 1);
    for (std::size_t i = 0; i < kBatch; ++i) {
      const auto& [input, label] = train_[any(random_)];
      step.loss += model_.loss(model.parameters, input, label, 1.0F / kBatch, step.gradient.parameters) / kBatch;
    }
    return step;
  }

  std::string evaluate(const Model& model) override {
    double right = 0;
    for (const auto& [input, label] : held_out_) {
      const Vector classes = model_.forward(model.parameters, input).second;
      if (classes[label] == *std::max_element(classes.begin(), classes.end())) ++right;
    }
    return "accuracy " + std::to_string(right / static_cast<double>(held_out_.size())) + " on held-out samples";
  }

 private:
  // As the Python worker has it for this task, so that all can train one model.
  static constexpr std::size_t kHidden = 64;
  static constexpr std::size_t kBatch = 32;

  static std::vector<std::pair<Vector, std::size_t>> samples(const nlohmann::json& file, const char* part) {
    const std::vector<Vector> inputs = file.at(part).at("inputs");
    const std::vector<std::size_t> labels = file.at(part).at("labels");
    if (labels.empty() || inputs.size() != labels.size()) throw std::invalid_argument("not as many labels as rows");
    std::vector<std::pair<Vector, std::size_t>> samples;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const bool fits = labels[i] < file.at("classes") && inputs[i].size() == file.at("features");
      if (!fits) throw std::invalid_argument("a label that is no class, or a row of another length than features");
      samples.emplace_back(inputs[i], labels[i]);
      for (float& one : samples.back().first) one /= file.at("maximum").get<float>();
    }
    return samples;
  }

  void add_tensor(const char* name, const std::vector<std::size_t>& shape) {
    v1::TensorSpec& tensor = *layout.add_tensors();
    tensor.set_name(name);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
    tensor.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
    tensor.set_kind(v1::TENSOR_KIND_PARAMETER);
  }

  std::mt19937 random_{std::random_device()()};
  std::vector<std::pair<Vector, std::size_t>> train_, held_out_;
  Perceptron model_;
};

}  // namespace gemps
