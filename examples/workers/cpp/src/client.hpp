// A worker's side of gemps.v1 as blocking calls: joining, the first parameters, pulls, and exactly one commit for one
// delta, whatever breaks on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backoff.hpp"
#include "connection.hpp"
#include "payload.hpp"

namespace gemps {

// Who joins, and with what.
struct Membership {
  std::string worker_name;
  std::vector<v1::WireType> delta_wire_types;      // best first
  std::vector<v1::WireType> parameter_wire_types;  // best first
  std::uint64_t steps_per_epoch = 0;               // 0: unknown
};

// One step's work: the server applies -eta * gradient, with the bytes of the BUFFERs beside it.
struct Delta {
  std::span<const float> gradient;
  std::span<const std::byte> buffers;
  std::optional<double> loss;
  std::uint64_t samples = 0;
};

// What became of a delta. `verdict` is unset when it was applied but its verdict was lost with a restart, or when it
// was dropped: then it was a gradient of parameters that the server no longer knows us to hold.
struct Outcome {
  bool is_applied = false;
  std::optional<v1::Verdict> verdict;
};

// One session. For one thread. All functions throw ServerUnavailable, Refused, ServerMisbehaved and Interrupted.
class Client {
 public:
  using Notify = std::function<void(const std::string&)>;

  Client(const std::string& address, const Layout& layout, Membership membership, Notify notify);

  // Become a worker of the run; waits for the server.
  const v1::JoinResponse& join();

  // Upload the first parameters. False: another upload won, which is as good, because everybody pulls next.
  bool initialize(const Tensors& first);

  // The newest parameters.
  void pull(Tensors& into);

  // Commit one delta, and get fresh parameters. `into` is written only once the server has the delta, or has lost what
  // the delta was computed at. Throws RunFinished.
  Outcome commit(const Delta& delta, Tensors& into);

  // Say goodbye, once. A server that does not hear it finds out by itself.
  void leave(const std::string& reason) noexcept;

  [[nodiscard]] const v1::JoinResponse& joined() const noexcept { return joined_; }
  // As the server said last.
  [[nodiscard]] bool is_finished() const noexcept { return run_state_ == v1::RUN_STATE_FINISHED; }
  [[nodiscard]] double next_eta() const noexcept { return next_eta_; }

 private:
  class Receiver;
  class Outgoing;
  struct Reply;

  void join_again(const std::string& why);
  void join_until_answered();
  void check_membership() const;
  void heartbeat();
  void confirm_superseded(const Refused& refusal);
  std::optional<std::string> examine(std::uint64_t sequence);
  void nap(Seconds duration);
  void torn(const Torn& why);
  template <class Call>
  auto persist(bool bounded, Call call);

  v1::InitializeOutcome upload(const Tensors& first);
  void receive_pull(Receiver& receiver);
  void bring(Receiver& receiver);
  void bring_anew(Tensors& into);

  Outcome settle(Outgoing& outgoing, Tensors& into);
  void exchange(Outgoing& outgoing, Reply& reply, bool header_only);
  Outcome applied(Reply& reply, bool is_torn);
  void recover(const Refused& refusal);

  const Layout& layout_;
  Membership membership_;
  Notify notify_;
  Patience patience_;
  Connection connection_;
  Backoff backoff_;
  v1::JoinRequest request_;

  bool is_member_ = false;
  v1::JoinResponse joined_;
  v1::RunState run_state_ = v1::RUN_STATE_WAITING;
  double next_eta_ = 0;
  std::uint64_t last_applied_ = 0;
  // The version that the server keeps for this session, and that `into` holds. Unset when that is in doubt: then only a
  // pull continues.
  std::optional<v1::Version> held_;
  // Made by Join: a delta, and parameters.
  std::optional<PayloadFormat> delta_format_;
  std::optional<PayloadFormat> reply_format_;

  std::unique_ptr<Stream> stream_;
  // The watch over the commit on the stream: what awaits its verdict, and whether a Heartbeat said it is applied.
  std::uint64_t awaited_ = 0;
  bool said_applied_ = false;
};

}  // namespace gemps
