// What a worker trains. Write a Task for your own model: the rest of the worker knows no more of it than this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemps/v1/layout.pb.h"

namespace gemps {

// PARAMETERs, or a gradient of them, and the bytes of all BUFFERs; both in the layout's order.
struct Model {
  std::vector<float> parameters;
  std::string buffers;
};

struct Step {
  Model gradient;             // with the BUFFERs as they are after the step
  double loss = 0;            // at the model that the step was given
  std::uint64_t samples = 0;  // that the gradient is of; 0: unknown
};

struct Task {
  virtual ~Task() = default;
  virtual Step step(const Model& model) = 0;
  virtual std::string evaluate(const Model& model) = 0;  // a line for people

  v1::Layout layout;
  Model first;                        // what Initialize uploads if the server has no parameters yet
  std::uint64_t steps_per_epoch = 0;  // of one pass over the data; 0: unknown
};

}  // namespace gemps
