// The connection to one server: a channel that is made anew after a break, the unary calls, and raw streams.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "errors.hpp"
#include "gemps/v1/parameter_server.grpc.pb.h"

namespace gemps {

// How long something may take. There is no time-out on a whole transfer.
struct Patience {
  Seconds progress_timeout{60};    // without a message moving, while bytes are under way
  Seconds heartbeat_interval{30};  // without a word, while the server has the next one: then a Heartbeat asks for it
  Seconds call_timeout{20};        // of one unary call
  Seconds connect_timeout{300};    // without a call that gets through, before the worker gives up
};

// The server's address and the calls to it. For one thread.
class Connection {
 public:
  // Throws UsageError unless it is HOST:PORT, [IPV6]:PORT or unix:PATH.
  explicit Connection(std::string address);

  [[nodiscard]] const std::shared_ptr<grpc::Channel>& channel() const noexcept { return channel_; }

  // Give the connection up: the next call makes another, and asks DNS again.
  void renew();

  // Unary calls. Throw Torn, Refused, and Interrupted where `heed_stop`.
  v1::JoinResponse join(const v1::JoinRequest& request, Seconds timeout);
  v1::HeartbeatResponse heartbeat(const v1::HeartbeatRequest& request, Seconds timeout);
  v1::LeaveResponse leave(const v1::LeaveRequest& request, Seconds timeout);

 private:
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ParameterServerService::Stub> stub_;
};

// Who moves next on a stream, which decides what a pause means.
enum class Turn {
  kUs,      // bytes are under way: without progress the call is given up
  kServer,  // a buffer, a verdict or a turn is waited for, for as long as others take: a Heartbeat decides
};

// One streaming call of raw messages, used from one thread. At most one message each way is in memory. When nothing
// moves it throws Torn; on a signal, Interrupted. Whatever is left of the call is cancelled when this object goes.
class Stream {
 public:
  // `examine` is asked after a silence while the server has the next word: why it cannot be counted on, or nothing.
  using Examine = std::function<std::optional<std::string>()>;

  Stream(std::shared_ptr<grpc::Channel> channel, const char* method, const Patience& patience, Examine examine);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Hand a message to gRPC, which takes it as the server's flow control allows. False: the call has ended, read() and
  // finish() tell how.
  [[nodiscard]] bool write(const grpc::ByteBuffer& message, bool is_last = false);

  // The next message; nothing: the call has ended, finish() tells how.
  [[nodiscard]] std::optional<grpc::ByteBuffer> read(Turn turn);

  // The status of a call that has ended.
  grpc::Status finish();

  // Whether the call is still open, as far as known. Does not block.
  [[nodiscard]] bool is_open();

 private:
  enum class Event : std::intptr_t { kStarted = 1, kRead, kWritten, kFinished };

  void begin_read();
  // Wait for one event until the time is up; false: none came.
  bool pump(std::chrono::system_clock::time_point until);
  // Wait until `done` holds.
  void wait(Turn turn, const std::function<bool()>& done);

  const Patience& patience_;
  Examine examine_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Status status_;
  grpc::ByteBuffer incoming_;
  int outstanding_ = 0;
  bool starting_ = true;
  bool reading_ = false;
  bool has_message_ = false;
  bool writing_ = false;
  bool may_write_ = true;
  bool may_read_ = true;
  bool finished_ = false;
};

}  // namespace gemps
