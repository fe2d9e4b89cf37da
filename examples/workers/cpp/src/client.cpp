#include "client.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "stop.hpp"
#include "wire_types.hpp"

namespace gemps {
namespace {

constexpr auto kAgent = "gemps-example-cpp/1";
constexpr Seconds kLeaveTimeout{5};
constexpr Seconds kSlice{0.1};  // how soon a signal is noticed

std::string new_session_id() {
  std::random_device random;  // on Linux from the kernel: the id is a secret
  std::string id;
  while (id.size() < 16) id.push_back(static_cast<char>(random() & 0xFF));
  return id;
}

// The kernel's boot id, which all containers on a machine share as they share its devices.
std::string host_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? "unknown" : id;
}

}  // namespace

Client::Client(const std::string& address, const Layout& layout, Membership membership, Notify notify)
    : layout_(layout),
      membership_(std::move(membership)),
      notify_(std::move(notify)),
      connection_(address),
      backoff_(address, patience_.connect_timeout, notify_, [this](Seconds duration) { nap(duration); }) {
  request_.set_session_id(new_session_id());
  request_.set_worker_name(membership_.worker_name);
  request_.set_host_id(host_id());
  *request_.mutable_layout() = layout.tensors();
  for (const auto type : membership_.delta_wire_types) request_.add_delta_wire_types(type);
  for (const auto type : membership_.parameter_wire_types) request_.add_parameter_wire_types(type);
  request_.set_agent(kAgent);
  request_.set_device("cpu");
  request_.set_steps_per_epoch(membership_.steps_per_epoch);
}

const v1::JoinResponse& Client::join() {
  join_until_answered();
  backoff_.succeeded();
  return joined_;
}

void Client::leave(const std::string& reason) noexcept {
  stream_.reset();
  if (!std::exchange(is_member_, false)) return;
  try {
    v1::LeaveRequest request;
    request.set_session_id(request_.session_id());
    request.set_reason(reason.substr(0, 256));
    run_state_ = connection_.leave(request, kLeaveTimeout).run_state();
  } catch (const std::exception& error) {
    notify_(std::string("left without the server hearing of it: ") + error.what());
  }
}

// Make a unary call until it is answered. It does not reset the patience: as a part of a recovery it must not let the
// whole continue without limit.
template <class Call>
auto Client::persist(bool bounded, Call call) {
  for (;;) {
    try {
      return call();
    } catch (const Torn& error) {
      torn(error);
    } catch (const Refused& refusal) {
      backoff_.wait_as_asked(refusal, bounded);
    }
  }
}

void Client::torn(const Torn& why) {
  // A connection whose path has vanished keeps every call on it waiting: only a server's own word leaves it alone.
  if (!why.by_server()) connection_.renew();
  backoff_.failed(why.what(), why.retry_after().value_or(Seconds(0)));
}

void Client::join_again(const std::string& why) {
  notify_("joining again: " + why);
  held_.reset();
  backoff_.failed(why);
  join_until_answered();
}

void Client::join_until_answered() {
  auto answer = persist(true, [this] { return connection_.join(request_, patience_.call_timeout); });
  if (answer.incarnation() != joined_.incarnation()) held_.reset();
  joined_ = std::move(answer);
  is_member_ = true;
  check_membership();
  delta_format_.emplace(layout_, joined_.delta_wire_type());
  reply_format_.emplace(layout_, joined_.parameter_wire_type());
  last_applied_ = joined_.last_applied_sequence();
  next_eta_ = joined_.next_eta();
  run_state_ = joined_.run_state();
  if (joined_.session_timeout_seconds() > 0) {
    patience_.heartbeat_interval =
        std::min(patience_.heartbeat_interval, Seconds(joined_.session_timeout_seconds() / 3));
  }
}

void Client::check_membership() const {
  if (joined_.shards_size() > 0) {
    throw NotSpoken("the model is on several servers, and this worker commits to one: start gemps serve without --shard");
  }
  const auto offered = [](const std::vector<v1::WireType>& types, v1::WireType chosen) {
    return std::find(types.begin(), types.end(), chosen) != types.end();
  };
  if (!offered(membership_.delta_wire_types, joined_.delta_wire_type()) ||
      !offered(membership_.parameter_wire_types, joined_.parameter_wire_type())) {
    throw ServerMisbehaved("the server chose a wire type that this worker did not offer");
  }
  const std::size_t smallest =
      std::max({unit_bytes(joined_.delta_wire_type()), unit_bytes(joined_.parameter_wire_type()), std::size_t{8}});
  if (joined_.chunk_bytes() < smallest || joined_.chunk_bytes() > kLargestChunk) {
    throw ServerMisbehaved("the server wants chunks of " + std::to_string(joined_.chunk_bytes()) + " bytes");
  }
  if (joined_.settings().local_steps() > 1) {
    throw Error("the run asks for " + std::to_string(joined_.settings().local_steps()) +
                " gradients in one commit, and this worker computes one: start the server with --local-steps 1");
  }
}

// After a torn call: where does the session stand? Afterwards `last_applied_` is right.
void Client::heartbeat() {
  v1::HeartbeatRequest request;
  request.set_session_id(request_.session_id());
  try {
    const auto answer = persist(false, [&] { return connection_.heartbeat(request, patience_.call_timeout); });
    if (answer.incarnation() != joined_.incarnation()) return join_again("the server was restarted");
    last_applied_ = answer.last_applied_sequence();
    run_state_ = answer.run_state();
  } catch (const Refused& refusal) {
    if (!refusal.lost_session()) throw;
    join_again(refusal.what());
  }
}

// SUPERSEDED means a newer call of our own, or another process under our name: then the Heartbeat is refused, too.
void Client::confirm_superseded(const Refused& refusal) {
  v1::HeartbeatRequest request;
  request.set_session_id(request_.session_id());
  try {
    persist(false, [&] { return connection_.heartbeat(request, patience_.call_timeout); });
  } catch (const Refused&) {
    is_member_ = false;
    throw Refused(refusal.reason(), "another process joined under this worker's name: give each its own (--name)",
                  std::nullopt);
  }
}

// The server has had the next word for long. A worker may have to wait for as long as others compute: only a server
// that does not answer, or has lost the stream, is not waited for.
std::optional<std::string> Client::examine(std::uint64_t sequence) {
  v1::HeartbeatRequest request;
  request.set_session_id(request_.session_id());
  try {
    const auto answer = connection_.heartbeat(request, patience_.call_timeout);
    if (answer.incarnation() != joined_.incarnation()) return "the server was restarted, and nothing has come";
    const bool is_applied = sequence != 0 && answer.last_applied_sequence() == sequence;
    if (is_applied && std::exchange(said_applied_, is_applied)) return "the verdict was lost: nothing has come";
    said_applied_ = is_applied;
    return std::nullopt;
  } catch (const Torn& error) {
    return std::string("no heartbeat (") + error.what() + "), and nothing has come";
  } catch (const Refused& refusal) {
    return std::string(refusal.what()) + ", and nothing has come";
  }
}

// Sleep between two calls. No stream keeps the session alive meanwhile, so a long pause has Heartbeats.
void Client::nap(Seconds duration) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + duration;
  auto beat_at = Clock::now() + patience_.heartbeat_interval;
  for (auto now = Clock::now(); now < end; now = Clock::now()) {
    check_stop();
    if (is_member_ && now >= beat_at) {
      examine(0);
      beat_at = Clock::now() + patience_.heartbeat_interval;
    }
    std::this_thread::sleep_for(std::min<Seconds>(end - now, kSlice));
  }
  check_stop();
}

}  // namespace gemps
