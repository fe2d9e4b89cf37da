// What a failed call asks of the worker, and how long to wait before the next attempt: the table at the head of
// errors.proto. No other file reads status codes.
#pragma once

#include <grpcpp/support/status.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace gemps {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

enum class Remedy {
  kRejoin,    // the one rule: wait, join again, pull, a new delta
  kFinished,  // leave, exit status 0
  kFinal,     // neither waiting nor restarting this worker would help: exit status 2
  kBug,       // of this worker or of the server: exit status 1
};

struct Failure : std::runtime_error {
  Failure(Remedy remedy, const std::string& message, std::string reason = "", Seconds delay = Seconds(0))
      : std::runtime_error(message), remedy(remedy), reason(std::move(reason)), delay(delay) {}

  Remedy remedy;
  std::string reason;  // a name of ErrorReason; empty if the server said none
  Seconds delay;       // the server's advice how long to wait
};

// Throws the Failure that the status of a call stands for; does nothing if it is OK.
inline void check(const grpc::Status& status) {
  // What gRPC itself reports when a connection or a call breaks.
  static const std::set kBroken{grpc::UNAVAILABLE, grpc::CANCELLED, grpc::DEADLINE_EXCEEDED, grpc::INTERNAL};
  // Reasons with which the worker joins again although the server names no delay: those with a * in errors.proto.
  static const std::set<std::string> kRejoin{"BAD_VALUE",           "CHECKSUM",   "UNKNOWN_SESSION", "EXPIRED_SESSION",
                                             "UNKNOWN_INCARNATION", "STALE_BASE", "SEQUENCE_GAP",    "NOT_INITIALIZED",
                                             "NEWER_CALL",          "STARTING",   "DRAINING"};
  if (status.ok()) return;
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  bool has_delay = false;
  for (const auto& detail : details.details()) {
    if (!detail.UnpackTo(&info)) has_delay |= detail.UnpackTo(&retry);
  }
  const std::string& reason = info.reason();
  if (info.domain() != "gemps") {
    // UNIMPLEMENTED (12), for example: the peer is a server of another version.
    const auto remedy = kBroken.count(status.error_code()) > 0 ? Remedy::kRejoin : Remedy::kBug;
    throw Failure(remedy, "gRPC status " + std::to_string(status.error_code()) + ": " + status.error_message());
  }
  Remedy remedy = has_delay || kRejoin.count(reason) > 0 ? Remedy::kRejoin : Remedy::kBug;
  if (reason == "RUN_FINISHED") remedy = Remedy::kFinished;
  if ((*info.mutable_metadata())["final"] == "true") remedy = Remedy::kFinal;
  const Seconds delay(static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos());
  throw Failure(remedy, reason + ": " + status.error_message(), reason, delay);
}

class Backoff {
 public:
  void answered() { away_since_.reset(); }  // a Join
  void applied() {                          // a commit
    longest_ = Seconds(0.1);
    refused_ = 0;
  }

  // The time to wait before the worker joins again. Throws the failure if the worker must stop.
  Seconds after(const Failure& failure, Clock::time_point now = Clock::now()) {
    if (failure.remedy != Remedy::kRejoin) throw failure;
    if (failure.reason == "BAD_VALUE" || failure.reason == "CHECKSUM") ++refused_;
    away_since_ = failure.reason.empty() ? std::optional(away_since_.value_or(now)) : std::nullopt;
    if (refused_ > kMostRefused || now - away_since_.value_or(now) > kPatience) throw failure;
    const Seconds pause = longest_ * std::uniform_real_distribution<double>(0.5, 1)(random_);
    longest_ = std::min(2 * longest_, Seconds(2));
    return failure.delay + pause;
  }

 private:
  static constexpr Seconds kPatience{300};  // with a server that is away
  // If the server refuses more deltas in a row for their content, they are computed wrongly or the run diverges.
  static constexpr int kMostRefused = 5;

  std::mt19937 random_{std::random_device()()};
  Seconds longest_{0.1};
  int refused_ = 0;
  std::optional<Clock::time_point> away_since_;
};

}  // namespace gemps
