// How long to wait between the attempts of a call, and when to give up.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "errors.hpp"

namespace gemps {

// Reports when trouble begins and when it is over. Which failures may be repeated is decided where the calls are made.
class Backoff {
 public:
  using Notify = std::function<void(const std::string&)>;
  using Nap = std::function<void(Seconds)>;

  // `nap` sleeps; `limit`: without a success for so long, ServerUnavailable is thrown.
  Backoff(std::string address, Seconds limit, Notify notify, Nap nap);

  // An attempt failed: sleep before the next, for at least `at_least`.
  void failed(const std::string& why, Seconds at_least = Seconds(0));

  // The server refused, and said when to come back: sleep so long. Throws the refusal where it said nothing of the
  // kind. A server that answers does not use up the patience, unless `bounded`.
  void wait_as_asked(const Refused& refusal, bool bounded = false);

  // The call that failed has come further than before.
  void moved_on();
  // A call got through to its end.
  void succeeded();

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double jitter(double low, double high);
  void tell_trouble(const std::string& what);

  std::string address_;
  Seconds limit_;
  Notify notify_;
  Nap nap_;
  std::mt19937 random_{std::random_device{}()};
  std::optional<Clock::time_point> failing_since_;
  std::optional<Clock::time_point> busy_since_;
  bool told_ = false;
  Seconds pause_;
};

}  // namespace gemps
