#include <string>

#include "check.hpp"
#include "failure.hpp"

namespace {

using gemps::Failure;
using gemps::Remedy;
using gemps::Seconds;

grpc::Status refusal(const std::string& reason, double delay = -1, bool is_final = false,
                     const std::string& domain = "gemps") {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(domain);
  if (is_final) (*info.mutable_metadata())["final"] = "true";
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  if (delay >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(static_cast<long>(delay));
    retry.mutable_retry_delay()->set_nanos(500'000'000);
    details.add_details()->PackFrom(retry);
  }
  return {grpc::FAILED_PRECONDITION, "because", details.SerializeAsString()};
}

Failure failure_of(const grpc::Status& status) {
  try {
    gemps::check(status);
  } catch (const Failure& failure) {
    return failure;
  }
  return {Remedy::kBug, "nothing was thrown", "NOTHING"};
}

gemps::Clock::time_point at(double seconds) {
  return gemps::Clock::time_point(std::chrono::duration_cast<gemps::Clock::duration>(Seconds(seconds)));
}

const Failure kTorn(Remedy::kRejoin, "torn");
const Failure kRefused(Remedy::kRejoin, "not finite", "BAD_VALUE");

}  // namespace

TEST("failure", "each refusal has the remedy of the table in errors.proto") {
  CHECK(failure_of(refusal("STALE_BASE")).remedy == Remedy::kRejoin);
  CHECK(failure_of(refusal("CHECKSUM")).reason == "CHECKSUM");
  CHECK(failure_of(refusal("DRAINING", 1)).delay == Seconds(1.5));
  CHECK(failure_of(refusal("WAITING_ROOM", 2)).remedy == Remedy::kRejoin);
  CHECK(failure_of(refusal("A_NEW_REASON", 1)).remedy == Remedy::kRejoin);
  CHECK(failure_of(refusal("RUN_FINISHED")).remedy == Remedy::kFinished);
  CHECK(failure_of(refusal("FEATURE", -1, true)).remedy == Remedy::kFinal);
  CHECK(failure_of(refusal("SIZE_MISMATCH")).remedy == Remedy::kBug);
  CHECK(failure_of(refusal("A_NEW_REASON")).remedy == Remedy::kBug);
  CHECK(failure_of(refusal("STALE_BASE", -1, false, "a proxy")).remedy == Remedy::kBug);
}

TEST("failure", "a broken connection is retried, another status of gRPC's own is not") {
  for (const auto code : {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::DEADLINE_EXCEEDED, grpc::INTERNAL}) {
    CHECK(failure_of(grpc::Status(code, "Socket closed")).remedy == Remedy::kRejoin);
  }
  CHECK(failure_of(grpc::Status(grpc::UNIMPLEMENTED, "no such method")).remedy == Remedy::kBug);
  gemps::check(grpc::Status::OK);
}

TEST("failure", "pauses grow up to 2 s, and are short again after a commit") {
  gemps::Backoff backoff;
  double most = 0.1;
  for (int i = 0; i < 8; ++i) {
    const double pause = backoff.after(kTorn, at(0)).count();
    CHECK(pause >= most / 2 && pause <= most);
    most = std::min(2 * most, 2.0);
  }
  backoff.applied();
  CHECK(backoff.after(kTorn, at(0)).count() <= 0.1);
}

TEST("failure", "the server's advice is waited for") {
  const double pause = gemps::Backoff().after({Remedy::kRejoin, "later", "STALLED", Seconds(3)}).count();
  CHECK(pause > 3 && pause <= 3.1);
}

TEST("failure", "a worker gives up when the server is away for five minutes, and not while it answers") {
  gemps::Backoff away;
  away.after(kTorn, at(0));
  away.after(kTorn, at(300));
  CHECK(check::throws<Failure>([&] { away.after(kTorn, at(301)); }));
  gemps::Backoff answering;
  answering.after(kTorn, at(0));
  answering.answered();
  answering.after(kTorn, at(400));
  answering.after({Remedy::kRejoin, "full", "STORAGE_FULL", Seconds(1)}, at(600));
  answering.after(kTorn, at(900));
}

TEST("failure", "more than five deltas in a row that are refused for their content are too many") {
  gemps::Backoff backoff;
  for (int i = 0; i < 5; ++i) backoff.after(kRefused, at(0));
  CHECK(check::throws<Failure>([&] { backoff.after(kRefused, at(0)); }));
  backoff.applied();
  backoff.after(kRefused, at(0));
}
