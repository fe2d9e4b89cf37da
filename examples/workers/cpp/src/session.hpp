// A worker's session with the server: the calls of worker.proto.
//
// begin() is the first half of the one rule for failures: Join, Initialize if the server has no parameters, Pull. After
// it commit() sends one gradient after the other, all on one stream, and takes the parameters that come back. Each
// throws a Failure if its call fails. After one that is not final call begin() again: it drops the stream, learns from
// Join which sequence was applied last, and pulls. So nothing is ever repeated, and a delta whose commit failed is
// given up.
//
// One thread calls begin() and commit(). leave() may come from another one; then calls of the first one fail.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <string>

#include "connection.hpp"
#include "gemps/v1/worker.grpc.pb.h"
#include "transfer.hpp"

namespace gemps {

class Session {
 public:
  Session(Connection connection, const std::string& name, const Task& task)
      : model(task.first), connection_(std::move(connection)), stub_(v1::WorkerService::NewStub(connection_.channel)) {
    std::random_device random;  // On Linux a cryptographic source.
    std::string& id = *request_.mutable_session_id();
    while (id.size() < 16) id += static_cast<char>(random());
    request_.set_worker_name(name);
    // Equal in all containers of a machine, so that the server can number the machine's workers.
    request_.set_host_id(read_file("/proc/sys/kernel/random/boot_id").substr(0, 36));
    *request_.mutable_layout() = task.layout;
    request_.set_steps_per_epoch(task.steps_per_epoch);
    request_.set_agent("gemps-cpp/0.2.0");
  }

  // Join, Initialize if needed, Pull. If the run is finished, Join alone.
  void begin() {
    if (commits_ != nullptr) context_->TryCancel();
    commits_.reset();
    check(stub_->Join(connection_.context(60).get(), request_, &joined));
    last_applied_ = joined.last_applied_sequence();
    next_eta_ = joined.next_eta();
    is_finished = joined.run_state() == v1::RUN_STATE_FINISHED;
    if (is_finished) return;
    if (!joined.has_parameters()) initialize();
    v1::PullRequest request;
    request.set_session_id(request_.session_id());
    const auto context = connection_.context();
    const auto call = stub_->Pull(context.get(), request);
    const auto next = [&call] { return read<v1::PullResponse>(*call); };
    version = receive(next(), next, joined.layout_digest(), model);
    check(call->Finish());
  }

  // Sends a gradient, and takes the parameters that come back with the verdict.
  v1::Verdict commit(const Step& step) {
    if (commits_ == nullptr) {
      context_ = connection_.context();
      commits_ = stub_->Commit(context_.get());
    }
    const auto next = [this] { return read<v1::CommitResponse>(*commits_); };
    const std::string payload = payload_of(step.gradient);
    v1::CommitRequest request;
    v1::CommitHeader& header = *request.mutable_header();
    header.set_session_id(request_.session_id());
    header.set_sequence(last_applied_ + 1);
    *header.mutable_base_version() = version;
    header.set_wire_type(v1::WIRE_TYPE_FLOAT32);
    header.set_byte_count(payload.size());
    header.set_loss(step.loss);
    header.set_samples(step.samples);
    header.set_scale(static_cast<float>(-next_eta_));  // The server multiplies: the delta is -eta times the gradient.
    if (payload.size() <= kWholeBytes) {
      request.set_chunk(payload);
      request.mutable_footer()->set_crc32c(crc32c(payload));
      commits_->Write(request);
    } else {
      commits_->Write(request);
      if (next().proceed().sequence() != header.sequence()) throw Failure(Remedy::kBug, "the server said no proceed");
      write_payload<v1::CommitRequest>(*commits_, payload);
    }
    const v1::CommitResponse reply = next();
    const v1::Verdict& verdict = reply.verdict();
    if (verdict.sequence() != header.sequence()) throw Failure(Remedy::kBug, "the server gave no verdict");
    version = receive(reply, next, joined.layout_digest(), model);
    last_applied_ = verdict.sequence();
    next_eta_ = verdict.next_eta();
    is_finished = verdict.run_state() == v1::RUN_STATE_FINISHED;
    return verdict;
  }

  // Ends the session. Throws nothing: that of a worker that is gone the server ends by itself.
  void leave(const std::string& reason) {
    has_left = true;
    v1::LeaveRequest request;
    request.set_session_id(request_.session_id());
    request.set_reason(reason);
    v1::LeaveResponse response;
    (void)stub_->Leave(connection_.context(20).get(), request, &response);
  }

  std::atomic<bool> has_left = false;  // set by leave()
  bool is_finished = false;
  v1::JoinResponse joined;
  // The newest parameters, and their version; before the first pull, at clock 0, those that Initialize would upload.
  Model model;
  v1::Version version;

 private:
  // Payloads up to this size go whole, in the message of their header (commit.proto).
  static constexpr std::size_t kWholeBytes = 64 * 1024;

  // The next message of a stream; throws what it ended with if there is none.
  template <class Message, class Call>
  static Message read(Call& call) {
    Message message;
    if (call.Read(&message)) return message;
    check(call.Finish());
    throw Failure(Remedy::kRejoin, "the stream ended before its transfer did");
  }

  // Sends chunks, and the footer. When the call has ended it takes no more; why it ended, the call's status says.
  template <class Message, class Call>
  void write_payload(Call& call, const std::string& payload) {
    Message message;
    for (std::size_t at = 0; at < payload.size(); at += joined.chunk_bytes()) {
      message.set_chunk(payload.substr(at, joined.chunk_bytes()));
      if (!call.Write(message)) return;
    }
    message.clear_chunk();
    message.mutable_footer()->set_crc32c(crc32c(payload));
    call.Write(message);
  }

  // Whether this upload is accepted or another worker's was first: Pull follows.
  void initialize() {
    v1::InitializeResponse response;
    const auto context = connection_.context();
    const auto call = stub_->Initialize(context.get(), &response);
    const std::string payload = payload_of(model);
    v1::InitializeRequest message;
    message.mutable_header()->set_session_id(request_.session_id());
    message.mutable_header()->set_byte_count(payload.size());
    call->Write(message);
    write_payload<v1::InitializeRequest>(*call, payload);
    call->WritesDone();
    check(call->Finish());
  }

  const Connection connection_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  v1::JoinRequest request_;
  std::uint64_t last_applied_ = 0;
  double next_eta_ = 0;
  // The Commit call, if one is open.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::CommitRequest, v1::CommitResponse>> commits_;
};

}  // namespace gemps
