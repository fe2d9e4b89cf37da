#include "progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <utility>

#include "wire_types.hpp"

namespace gemps {
namespace {

constexpr double kTerminalInterval = 0.5;
constexpr double kLogInterval = 5;

std::string rate(std::uint64_t steps, Seconds duration) {
  std::ostringstream text;
  const double value = duration.count() > 0 ? static_cast<double>(steps) / duration.count() : 0;
  text << std::fixed << std::setprecision(value < 100 ? 1 : 0) << value << " commits/s";
  return text.str();
}

}  // namespace

Progress::Progress(std::string name, std::optional<double> interval)
    : name_(std::move(name)),
      is_terminal_(isatty(STDOUT_FILENO) == 1),
      interval_(interval.value_or(is_terminal_ ? kTerminalInterval : kLogInterval)) {}

void Progress::line(const std::string& text) {
  if (std::exchange(is_open_line_, false)) std::cout << "\n";
  std::cout << name_ << ": " << text << std::endl;
}

void Progress::event(const std::string& what) {
  if (std::exchange(is_open_line_, false)) std::cout << std::endl;
  std::cerr << name_ << ": " << what << std::endl;
}

void Progress::joined(const v1::JoinResponse& membership, const std::string& task) {
  std::ostringstream text;
  text << "joined with rank " << membership.rank() << ": " << task << ", rule " << membership.settings().rule()
       << ", eta " << membership.next_eta() << ", deltas in " << name_of(membership.delta_wire_type())
       << ", parameters in " << name_of(membership.parameter_wire_type());
  line(text.str());
}

void Progress::step(const Step& step, const Outcome& outcome) {
  const auto now = Clock::now();
  if (!outcome.is_applied) {
    ++dropped_;
    return event("one delta was dropped, and fresh parameters pulled");
  }
  if (applied_ == 0) first_ = shown_ = now;
  ++applied_;
  last_ = now;
  const Seconds since = now - shown_;
  if (applied_ > 1 && since < interval_) return;
  std::ostringstream text;
  text << "step " << applied_;
  if (step.loss) text << "  loss " << std::fixed << std::setprecision(4) << *step.loss;
  if (outcome.verdict) text << "  staleness " << outcome.verdict->staleness();
  if (applied_ > 1) text << "  " << rate(applied_ - shown_applied_, since);
  shown_ = now;
  shown_applied_ = applied_;
  if (!is_terminal_) return line(text.str());
  std::cout << "\r" << name_ << ": " << text.str() << "\x1b[K" << std::flush;
  is_open_line_ = true;
}

void Progress::skipped() {
  if (skipped_++ == 0) event("the gradient is not finite: this step is skipped");
}

void Progress::ended(const std::string& how, const std::string& result) {
  std::ostringstream text;
  text << how << ": " << applied_ << " commits";
  if (applied_ > 1) text << " (" << rate(applied_ - 1, last_ - first_) << ")";
  if (dropped_ > 0) text << ", " << dropped_ << " dropped";
  if (skipped_ > 0) text << ", " << skipped_ << " skipped";
  if (!result.empty()) text << ", " << result;
  line(text.str());
}

}  // namespace gemps
