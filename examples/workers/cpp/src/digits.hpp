// The digits of `gemps export-task digits`, learnt by a perceptron.
#pragma once

#include <filesystem>
#include <vector>

#include "perceptron.hpp"
#include "task.hpp"

namespace gemps {

class Digits : public Task {
 public:
  // Throws UsageError where the file is not one that `gemps export-task digits` writes.
  explicit Digits(const std::filesystem::path& file);

  [[nodiscard]] std::string name() const override { return "digits"; }
  [[nodiscard]] const Layout& layout() const override { return model_.layout(); }
  [[nodiscard]] std::uint64_t steps_per_epoch() const override;
  void first_parameters(std::uint64_t seed, Tensors& into) const override;
  void begin(std::uint64_t seed, std::uint32_t rank) override;
  Step compute(std::span<const float> parameters, std::span<float> gradient) override;
  [[nodiscard]] std::string evaluate(std::span<const float> parameters) override;

  struct Samples {
    std::size_t features = 0;
    std::vector<float> inputs;  // [samples, features], 0 to 1
    std::vector<std::size_t> labels;

    [[nodiscard]] std::span<const float> input(std::size_t number) const {
      return std::span(inputs).subspan(number * features, features);
    }
  };

 private:
  struct File {
    std::size_t features;
    std::size_t classes;
    Samples train;
    Samples held_out;
  };

  explicit Digits(File file);
  static File read(const std::filesystem::path& path);
  void shuffle();

  Samples train_;
  Samples held_out_;
  Perceptron model_;
  std::uint64_t seed_ = 0;
  std::uint32_t rank_ = 0;
  std::uint64_t epoch_ = 0;
  std::vector<std::size_t> order_;
  std::size_t next_ = 0;
};

}  // namespace gemps
