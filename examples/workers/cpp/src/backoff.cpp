#include "backoff.hpp"

#include <algorithm>
#include <utility>

namespace gemps {
namespace {

// The first pause, and the longest one: they bound how late a server that is back is noticed, and how many attempts a
// second reach one that starts.
constexpr Seconds kFirst{0.1};
constexpr Seconds kLongest{2.0};

}  // namespace

Backoff::Backoff(std::string address, Seconds limit, Notify notify, Nap nap)
    : address_(std::move(address)), limit_(limit), notify_(std::move(notify)), nap_(std::move(nap)), pause_(kFirst) {}

void Backoff::failed(const std::string& why, Seconds at_least) {
  const auto now = Clock::now();
  if (!failing_since_) failing_since_ = now;
  if (now - *failing_since_ >= limit_) {
    throw ServerUnavailable("no answer from a gemps server at " + address_ + " for " +
                            std::to_string(static_cast<int>(limit_.count())) + " s (" + why +
                            "): check that it runs there (gemps serve), and that this machine can reach the port");
  }
  tell_trouble(why);
  nap_(std::max(pause_ * jitter(0.5, 1.5), at_least * jitter(1.0, 1.25)));
  pause_ = std::min(2 * pause_, kLongest);
}

void Backoff::wait_as_asked(const Refused& refusal, bool bounded) {
  if (!refusal.retry_after()) throw refusal;
  // Damage that comes again each time is no passing one.
  if (refusal.reason() == "CHECKSUM") return failed(refusal.what(), *refusal.retry_after());
  const auto now = Clock::now();
  failing_since_.reset();
  pause_ = kFirst;
  if (!busy_since_) busy_since_ = now;
  if (bounded && now - *busy_since_ >= limit_) {
    throw ServerUnavailable("the server at " + address_ + " has asked to wait for too long: " + refusal.what());
  }
  tell_trouble(refusal.what());
  nap_(*refusal.retry_after() * jitter(1.0, 1.25));
}

void Backoff::moved_on() {
  if (failing_since_) failing_since_ = Clock::now();
}

void Backoff::succeeded() {
  if (told_) notify_("the server at " + address_ + " answers");
  told_ = false;
  failing_since_.reset();
  busy_since_.reset();
  pause_ = kFirst;
}

double Backoff::jitter(double low, double high) { return std::uniform_real_distribution(low, high)(random_); }

void Backoff::tell_trouble(const std::string& what) {
  if (!std::exchange(told_, true)) notify_("waiting for the server at " + address_ + ": " + what);
}

}  // namespace gemps
