#include "status.hpp"

#include <chrono>
#include <string>

#include "check.hpp"
#include "errors.hpp"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace {

using gemps::Refused;
using gemps::Torn;

grpc::Status status_of(grpc::StatusCode code, const std::string& reason, double retry_after = -1,
                       const std::string& domain = "gemps") {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(domain);
  details.add_details()->PackFrom(info);
  if (retry_after >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(static_cast<long>(retry_after));
    retry.mutable_retry_delay()->set_nanos(500'000'000);
    details.add_details()->PackFrom(retry);
  }
  return {code, "why", details.SerializeAsString()};
}

// An exception of another type fails the test.
template <class Error>
Error thrown_by(const grpc::Status& status) {
  try {
    gemps::throw_failure(status);
  } catch (const Error& error) {
    return error;
  }
}

}  // namespace

TEST("status", "a refusal has the reason, and the delay where there is one") {
  const auto final = thrown_by<Refused>(status_of(grpc::FAILED_PRECONDITION, "STALE_BASE"));
  CHECK(final.reason() == "STALE_BASE" && !final.retry_after() && !final.lost_session());
  const auto busy = thrown_by<Refused>(status_of(grpc::RESOURCE_EXHAUSTED, "WAITING_ROOM", 2));
  CHECK(busy.retry_after() == gemps::Seconds(2.5));
  CHECK(thrown_by<Refused>(status_of(grpc::FAILED_PRECONDITION, "EXPIRED_SESSION")).lost_session());
}

TEST("status", "a server that starts or drains is waited for as one that is away") {
  const auto draining = thrown_by<Torn>(status_of(grpc::UNAVAILABLE, "DRAINING", 1));
  CHECK(draining.by_server() && draining.retry_after() == gemps::Seconds(1.5));
}

TEST("status", "a broken connection may be repeated, another status of gRPC's own may not") {
  for (const auto code : {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::DEADLINE_EXCEEDED, grpc::INTERNAL}) {
    CHECK(!thrown_by<Torn>(grpc::Status(code, "Socket closed")).by_server());
  }
  CHECK(!thrown_by<Refused>(grpc::Status(grpc::UNIMPLEMENTED, "no such method")).retry_after());
  // An INTERNAL of the server's own is no broken connection.
  CHECK(thrown_by<Refused>(status_of(grpc::INTERNAL, "INTERNAL")).reason() == "INTERNAL");
}

TEST("status", "a reason of another domain is none of ours") {
  CHECK(thrown_by<Refused>(status_of(grpc::PERMISSION_DENIED, "STALE_BASE", -1, "proxy")).reason() != "STALE_BASE");
}
