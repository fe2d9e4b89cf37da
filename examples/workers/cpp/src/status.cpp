#include "status.hpp"

#include <optional>
#include <string>

#include "errors.hpp"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace gemps {
namespace {

constexpr auto kDomain = "gemps";

// What gRPC itself reports when a connection or a call breaks. INTERNAL is how it reports a stream that something
// between client and server has reset; an INTERNAL of the server's own carries an ErrorInfo.
bool is_transport(grpc::StatusCode code) {
  return code == grpc::UNAVAILABLE || code == grpc::CANCELLED || code == grpc::DEADLINE_EXCEEDED ||
         code == grpc::INTERNAL;
}

}  // namespace

void throw_failure(const grpc::Status& status) {
  std::string reason;
  std::optional<Seconds> retry_after;
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    for (const auto& detail : details.details()) {
      if (detail.UnpackTo(&info) && info.domain() == kDomain) {
        reason = info.reason();
      } else if (detail.UnpackTo(&retry)) {
        retry_after = Seconds(static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos());
      }
    }
  }
  const std::string& message = status.error_message();
  if (reason.empty()) {
    const std::string code = "gRPC status " + std::to_string(status.error_code());
    if (is_transport(status.error_code())) throw Torn(message.empty() ? code : message, false, retry_after);
    throw Refused(code, message, retry_after);
  }
  // A phase of the server's life: the call is repeated like one that did not reach it.
  if (reason == "STARTING" || reason == "DRAINING") throw Torn(reason + ": " + message, true, retry_after);
  throw Refused(reason, message, retry_after);
}

}  // namespace gemps
