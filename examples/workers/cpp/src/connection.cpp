#include "connection.hpp"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "status.hpp"
#include "stop.hpp"

namespace gemps {
namespace {

using Clock = std::chrono::system_clock;  // what gRPC's deadlines are made of

constexpr int kMiB = 1 << 20;
// How soon a signal is noticed while something is waited for.
constexpr std::chrono::milliseconds kPollInterval{200};

Clock::duration whole(Seconds seconds) { return std::chrono::duration_cast<Clock::duration>(seconds); }

void check_address(const std::string& address) {
  if (address.starts_with("unix:") && address.size() > 5) return;
  const auto colon = address.rfind(':');
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < address.size() &&
                        address.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  if (!has_port || address.find("://") != std::string::npos) {
    throw UsageError("'" + address + "' is not a server address: write HOST:PORT, for example localhost:50051");
  }
}

std::shared_ptr<grpc::Channel> open_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A ping a minute keeps what lies between from forgetting the connection; the server takes one every 30 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC's own pauses between attempts to connect grow to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // What is repeated, and how, is decided here: gRPC would not resend what exceeds its own buffer.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // For streams of large chunks, of which a worker has one at a time, and reads it.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16 * kMiB - 1);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 * kMiB);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kMiB);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

template <class Request, class Response>
using UnaryMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (v1::ParameterServerService::Stub::*)(
    grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

// One unary call, waited for in slices so that a signal is noticed.
template <class Request, class Response>
Response call_once(v1::ParameterServerService::Stub& stub, UnaryMethod<Request, Response> method,
                   const Request& request, Seconds timeout, bool heed_stop) {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(Clock::now() + whole(timeout));
  Response response;
  grpc::Status status;
  const auto call = (stub.*method)(&context, request, &queue);
  call->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  bool stopped = false;
  while (queue.AsyncNext(&tag, &ok, Clock::now() + kPollInterval) == grpc::CompletionQueue::TIMEOUT) {
    if (heed_stop && stop_signal() != 0) {
      stopped = true;
      context.TryCancel();
    }
  }
  if (stopped) throw Interrupted();
  if (!status.ok()) throw_failure(status);
  return response;
}

}  // namespace

Connection::Connection(std::string address) : address_(std::move(address)) {
  check_address(address_);
  renew();
}

void Connection::renew() {
  channel_ = open_channel(address_);
  stub_ = v1::ParameterServerService::NewStub(channel_);
}

v1::JoinResponse Connection::join(const v1::JoinRequest& request, Seconds timeout) {
  return call_once(*stub_, &v1::ParameterServerService::Stub::AsyncJoin, request, timeout, true);
}

v1::HeartbeatResponse Connection::heartbeat(const v1::HeartbeatRequest& request, Seconds timeout) {
  return call_once(*stub_, &v1::ParameterServerService::Stub::AsyncHeartbeat, request, timeout, true);
}

v1::LeaveResponse Connection::leave(const v1::LeaveRequest& request, Seconds timeout) {
  return call_once(*stub_, &v1::ParameterServerService::Stub::AsyncLeave, request, timeout, false);
}

Stream::Stream(std::shared_ptr<grpc::Channel> channel, const char* method, const Patience& patience, Examine examine)
    : patience_(patience), examine_(std::move(examine)), stub_(std::move(channel)) {
  call_ = stub_.PrepareCall(&context_, method, &queue_);
  call_->StartCall(reinterpret_cast<void*>(Event::kStarted));
  ++outstanding_;
}

Stream::~Stream() {
  context_.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  // What gRPC still writes to belongs to this object.
  for (; outstanding_ > 0; --outstanding_) queue_.Next(&tag, &ok);
  queue_.Shutdown();
  while (queue_.Next(&tag, &ok)) {
  }
}

bool Stream::write(const grpc::ByteBuffer& message, bool is_last) {
  wait(Turn::kUs, [this] { return !starting_; });
  if (!may_write_) return false;
  begin_read();
  grpc::WriteOptions options;
  if (is_last) options.set_last_message();
  writing_ = true;
  ++outstanding_;
  call_->Write(message, options, reinterpret_cast<void*>(Event::kWritten));
  wait(Turn::kUs, [this] { return !writing_; });
  return may_write_;
}

std::optional<grpc::ByteBuffer> Stream::read(Turn turn) {
  wait(turn, [this] { return !starting_; });
  begin_read();
  wait(turn, [this] { return !reading_; });
  if (!has_message_) return std::nullopt;
  has_message_ = false;
  return std::exchange(incoming_, {});
}

grpc::Status Stream::finish() {
  if (!finished_) {
    ++outstanding_;
    call_->Finish(&status_, reinterpret_cast<void*>(Event::kFinished));
    wait(Turn::kUs, [this] { return finished_; });
  }
  return status_;
}

bool Stream::is_open() {
  if (!starting_) begin_read();
  // A time long past, for gRPC rounds up: it would wait a millisecond for what is due now.
  while (outstanding_ > 0 && pump(Clock::time_point{})) {
  }
  return may_write_ && may_read_;
}

void Stream::begin_read() {
  if (reading_ || has_message_ || !may_read_) return;
  reading_ = true;
  ++outstanding_;
  call_->Read(&incoming_, reinterpret_cast<void*>(Event::kRead));
}

bool Stream::pump(Clock::time_point until) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return false;
  --outstanding_;
  switch (static_cast<Event>(reinterpret_cast<std::intptr_t>(tag))) {
    case Event::kStarted:
      starting_ = false;
      if (!ok) may_write_ = may_read_ = false;
      break;
    case Event::kRead:
      reading_ = false;
      has_message_ = ok;
      may_read_ = ok;
      break;
    case Event::kWritten:
      writing_ = false;
      may_write_ = ok;
      break;
    case Event::kFinished:
      finished_ = true;
      break;
  }
  return true;
}

void Stream::wait(Turn turn, const std::function<bool()>& done) {
  const Seconds limit = turn == Turn::kServer ? std::min(patience_.heartbeat_interval, patience_.progress_timeout)
                                              : patience_.progress_timeout;
  auto moved_at = Clock::now();
  while (!done()) {
    if (pump(Clock::now() + kPollInterval)) {
      moved_at = Clock::now();
      continue;
    }
    check_stop();
    if (Clock::now() - moved_at < whole(limit)) continue;
    const auto why = turn == Turn::kServer ? examine_() : std::optional<std::string>("nothing has moved");
    if (why) throw Torn(*why + " for " + std::to_string(static_cast<int>(limit.count())) + " s");
    moved_at = Clock::now();
  }
}

}  // namespace gemps
