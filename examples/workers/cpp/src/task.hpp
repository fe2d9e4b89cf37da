// What a worker trains.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "payload.hpp"

namespace gemps {

struct Step {
  std::optional<double> loss;
  std::uint64_t samples = 0;
};

class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual const Layout& layout() const = 0;
  // Steps that one pass over the data takes; 0: there are no passes.
  [[nodiscard]] virtual std::uint64_t steps_per_epoch() const { return 0; }

  // The first parameters, the same for all workers of a run.
  virtual void first_parameters(std::uint64_t seed, Tensors& into) const = 0;
  // This worker's order of the data follows from seed and rank.
  virtual void begin(std::uint64_t /*seed*/, std::uint32_t /*rank*/) {}
  // The gradient of one batch at these parameters.
  virtual Step compute(std::span<const float> parameters, std::span<float> gradient) = 0;
  // What to tell at the end; empty: nothing.
  [[nodiscard]] virtual std::string evaluate(std::span<const float> /*parameters*/) { return {}; }
};

}  // namespace gemps
