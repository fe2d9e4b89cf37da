// The task of the conformance kit: loss = 1/2 sum theta^2. The kit knows every byte that must come of it.
#pragma once

#include "task.hpp"

namespace gemps {

class Quadratic : public Task {
 public:
  explicit Quadratic(Layout layout) : layout_(std::move(layout)) {}

  [[nodiscard]] std::string name() const override { return "quadratic"; }
  [[nodiscard]] const Layout& layout() const override { return layout_; }
  void first_parameters(std::uint64_t seed, Tensors& into) const override;
  Step compute(std::span<const float> parameters, std::span<float> gradient) override;

 private:
  Layout layout_;
};

// A model of one tensor that costs no computing, to see how fast commits are: every gradient is the same one.
class NoCompute : public Task {
 public:
  explicit NoCompute(std::uint64_t parameters);

  [[nodiscard]] std::string name() const override { return "no-compute"; }
  [[nodiscard]] const Layout& layout() const override { return layout_; }
  void first_parameters(std::uint64_t seed, Tensors& into) const override;
  Step compute(std::span<const float> parameters, std::span<float> gradient) override;

 private:
  Layout layout_;
  bool is_ready_ = false;
};

}  // namespace gemps
