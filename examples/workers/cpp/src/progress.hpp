// What a person sees of a worker: a line that is kept up to date on a terminal, else plain lines now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "client.hpp"
#include "task.hpp"

namespace gemps {

class Progress {
 public:
  // `interval`: seconds between two lines; where it is unset, what suits a person or a log.
  Progress(std::string name, std::optional<double> interval);

  // Something happened, as the client tells it.
  void event(const std::string& what);
  void joined(const v1::JoinResponse& membership, const std::string& task);
  void step(const Step& step, const Outcome& outcome);
  void skipped();
  // The last lines. `how`: why it ended; `result`: what the task says.
  void ended(const std::string& how, const std::string& result);

  [[nodiscard]] std::uint64_t applied() const noexcept { return applied_; }

 private:
  using Clock = std::chrono::steady_clock;

  void line(const std::string& text);

  std::string name_;
  bool is_terminal_;
  Seconds interval_;
  bool is_open_line_ = false;
  std::uint64_t applied_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t skipped_ = 0;
  // From the first commit on, so that neither waiting for others nor connecting counts.
  Clock::time_point first_{};
  Clock::time_point last_{};
  Clock::time_point shown_{};
  std::uint64_t shown_applied_ = 0;
};

}  // namespace gemps
