// gRPC's status in, this worker's exceptions out: the one place that reads status codes, ErrorInfo and RetryInfo.
#pragma once

#include <grpcpp/support/status.h>

namespace gemps {

// Throws Torn where the call may be repeated or resumed, else Refused. `status` is not OK.
[[noreturn]] void throw_failure(const grpc::Status& status);

}  // namespace gemps
