// Client's transfers: what goes over streams.
//
// What may be known after a break of a commit, and what is then done:
//
//   the verdict came             the delta is applied: the rest of the parameters is pulled, from where it was torn
//   no verdict came              a Heartbeat tells the last applied sequence: if it is this one, its header alone
//   brings
//                                the stored verdict; if not, the identical bytes are sent again, on a new stream
//   the session was lost, or     joining again tells the last applied sequence; then pull, because the snapshot is
//   gone; the server restarted         the delta is dropped unless it was applied refused, with RetryInfo      wait
//   that long, then the identical bytes again refused as stale             pull, and drop the delta: a gradient of
//   other parameters must not be applied
#include <algorithm>
#include <utility>

#include "client.hpp"
#include "crc32c.hpp"
#include "frames.hpp"
#include "status.hpp"

namespace gemps {
namespace {

constexpr auto kInitialize = "/gemps.v1.ParameterServerService/Initialize";
constexpr auto kPull = "/gemps.v1.ParameterServerService/Pull";
constexpr auto kCommit = "/gemps.v1.ParameterServerService/Commit";

// commit.proto: payloads up to this travel whole, in the header's message, without waiting for proceed.
constexpr std::uint64_t kWholeLimit = 64U << 10;

bool same_version(const v1::Version& one, const v1::Version& other) {
  return one.incarnation() == other.incarnation() && one.clock() == other.clock();
}

// How a stream ended that brought no footer.
[[noreturn]] void throw_end(Stream& stream) {
  const grpc::Status status = stream.finish();
  if (!status.ok()) throw_failure(status);
  throw Torn("the stream ended without a footer");
}

v1::Footer make_footer(const PayloadFormat& format, std::uint64_t chunk_count, std::uint32_t checksum) {
  v1::Footer footer;
  footer.set_byte_count(format.byte_count());
  footer.set_chunk_count(chunk_count);
  footer.set_crc32c(checksum);
  return footer;
}

// Sends a payload's chunks, the first with the fields of `message`, the last with the footer. Each is encoded into the
// message that carries it, and its checksum taken while it is in the cache. Returns the payload's; nothing: the call
// has ended before.
template <class Message>
std::optional<std::uint32_t> send_chunks(Stream& stream, const PayloadFormat& format, const PayloadView& payload,
                                         std::uint64_t chunk_bytes, Message message, bool is_last) {
  const std::uint64_t size = format.byte_count();
  const std::uint64_t chunk_count = format.count_chunks(chunk_bytes);
  std::uint32_t checksum = 0;
  std::uint64_t begin = 0;
  do {
    const std::uint64_t end = format.chunk_end(begin, chunk_bytes);
    auto data = make_chunk_data(end - begin);
    encode_range(format, payload, begin, end, data.get());
    checksum = crc32c({data.get(), end - begin}, checksum);
    if (end == size) *message.mutable_footer() = make_footer(format, chunk_count, checksum);
    const auto frame = size == 0 ? make_frame(message)
                                 : make_frame(message, Message::kChunkFieldNumber, begin, std::move(data), end - begin);
    if (!stream.write(frame, is_last && end == size)) return std::nullopt;
    message.Clear();
    begin = end;
  } while (begin < size);
  return checksum;
}

}  // namespace

// Parameters on their way in. It lives through all attempts of a transfer: what has arrived stays, and a resumed pull
// goes on behind it.
class Client::Receiver {
 public:
  Receiver(const PayloadFormat& format, Tensors& into) : format_(format), reader_(format, into) {}

  [[nodiscard]] const std::optional<v1::Version>& version() const noexcept { return version_; }
  [[nodiscard]] std::uint64_t received() const noexcept { return reader_.received(); }

  void reset() noexcept {
    version_.reset();
    reader_.reset();
  }

  void announce(const v1::ParametersHeader& header) {
    if (header.layout_digest() != format_.digest()) {
      throw ServerMisbehaved("the server sends parameters of another layout than this worker joined with");
    }
    if (header.byte_count() != format_.byte_count() || header.wire_type() != format_.wire_type() ||
        header.has_shared_memory()) {
      throw ServerMisbehaved("the server sends other parameters than were asked for");
    }
    if (header.offset() != received() || (version_ && !same_version(*version_, header.version()))) {
      throw ServerMisbehaved("the server continues with another version or offset than requested");
    }
    version_ = header.version();
    reader_.next_stream();
    is_announced_ = true;
  }

  void take(grpc::ByteBuffer& message, const ChunkPlace& chunk) {
    or_reset([&] {
      reader_.begin_chunk(chunk.offset, chunk.size);
      for_each_piece(message, chunk, [this](std::span<const std::byte> piece) { reader_.feed(piece); });
      reader_.end_chunk();
    });
  }

  void finish(const v1::Footer& footer) {
    or_reset([&] { reader_.finish(footer); });
  }

  // The next stream has to announce anew.
  void next_stream() noexcept { is_announced_ = false; }

 private:
  // Damage may lie anywhere in what has arrived: there is nothing to resume then.
  template <class Part>
  void or_reset(Part part) {
    if (!is_announced_) throw ServerMisbehaved("the server sent parameters without their header");
    try {
      part();
    } catch (const Torn&) {
      reset();
      throw;
    }
  }

  const PayloadFormat& format_;
  PayloadReader reader_;
  std::optional<v1::Version> version_;
  bool is_announced_ = false;
};

// One delta on its way: the same bytes in every attempt, because what they are made of does not change meanwhile.
class Client::Outgoing {
 public:
  Outgoing(const PayloadFormat& format, const PayloadView& payload, v1::CommitHeader header)
      : format_(format), payload_(payload), header_(std::move(header)) {}

  [[nodiscard]] std::uint64_t sequence() const noexcept { return header_.sequence(); }
  [[nodiscard]] bool is_whole() const noexcept { return format_.byte_count() <= kWholeLimit; }

  // What an attempt begins with: of a small commit all of it, of a large one the header. Every attempt but the first
  // carries the checksum in the header; the first one of a large commit computes it while it sends.
  grpc::ByteBuffer first_message() {
    if (!is_whole()) return std::exchange(is_first_, false) ? header_message() : question();
    const std::size_t size = format_.byte_count();
    auto data = make_chunk_data(size);
    encode_range(format_, payload_, 0, size, data.get());
    header_.set_payload_crc32c(crc32c({data.get(), size}));
    v1::CommitRequest message;
    *message.mutable_header() = header_;
    *message.mutable_footer() = make_footer(format_, size == 0 ? 0 : 1, header_.payload_crc32c());
    if (size == 0) return make_frame(message);
    return make_frame(message, v1::CommitRequest::kChunkFieldNumber, 0, std::move(data), size);
  }

  // The chunks and the footer, after the server's proceed. Where the call ends before, its end tells why.
  void send_rest(Stream& stream, std::uint64_t chunk_bytes) {
    const auto checksum = send_chunks<v1::CommitRequest>(stream, format_, payload_, chunk_bytes, {}, false);
    if (checksum) header_.set_payload_crc32c(*checksum);
  }

  // The header alone: it brings the stored verdict of a commit that was applied.
  grpc::ByteBuffer question() {
    remember_checksum();
    return header_message();
  }

  // To be called before the tensors may change that the payload is made of.
  void remember_checksum() {
    if (header_.has_payload_crc32c()) return;
    std::vector<std::byte> chunk;
    std::uint32_t checksum = 0;
    for (std::uint64_t begin = 0; begin < format_.byte_count();) {
      const std::uint64_t end = format_.chunk_end(begin, kWholeLimit);
      chunk.resize(end - begin);
      encode_range(format_, payload_, begin, end, chunk.data());
      checksum = crc32c(chunk, checksum);
      begin = end;
    }
    header_.set_payload_crc32c(checksum);
  }

 private:
  [[nodiscard]] grpc::ByteBuffer header_message() const {
    v1::CommitRequest message;
    *message.mutable_header() = header_;
    return make_frame(message);
  }

  const PayloadFormat& format_;
  PayloadView payload_;
  v1::CommitHeader header_;
  bool is_first_ = true;
};

// What came back for one commit so far.
struct Client::Reply {
  Receiver receiver;
  std::optional<v1::Verdict> verdict;
};

// --- the first parameters

bool Client::initialize(const Tensors& first) {
  for (;;) {
    try {
      const auto outcome = upload(first);
      backoff_.succeeded();
      return outcome == v1::INITIALIZE_OUTCOME_ACCEPTED;
    } catch (const Torn& error) {
      torn(error);
    } catch (const Refused& refusal) {
      if (refusal.reason() == "SUPERSEDED") {
        confirm_superseded(refusal);
        backoff_.failed(refusal.what());
      } else if (refusal.lost_session()) {
        join_again(refusal.what());
      } else {
        backoff_.wait_as_asked(refusal);
      }
    }
  }
}

v1::InitializeOutcome Client::upload(const Tensors& first) {
  const PayloadFormat format(layout_, v1::WIRE_TYPE_FLOAT32);
  Stream stream(connection_.channel(), kInitialize, patience_, [this] { return examine(0); });
  v1::InitializeRequest message;
  message.mutable_header()->set_session_id(request_.session_id());
  message.mutable_header()->set_byte_count(format.byte_count());
  // Where the server has parameters it says so at once, and takes no more: then the answer is there to be read.
  (void)send_chunks(stream, format, {first.parameters, 1.0F, first.rest}, joined_.chunk_bytes(), message, true);
  auto answer = stream.read(Turn::kServer);
  if (!answer) throw_end(stream);
  v1::InitializeResponse response;
  parse_frame(*answer, 0, response);
  if (response.outcome() == v1::INITIALIZE_OUTCOME_UNSPECIFIED) {
    throw ServerMisbehaved("the server answered an upload without an outcome");
  }
  return response.outcome();
}

// --- pulls

void Client::pull(Tensors& into) {
  bring_anew(into);
  backoff_.succeeded();
}

void Client::bring_anew(Tensors& into) {
  Receiver receiver(*reply_format_, into);
  bring(receiver);
}

// Parameters into the receiver, from where it is: of the version it has begun with as long as the server keeps that
// one, else from the start.
void Client::bring(Receiver& receiver) {
  held_.reset();
  for (;;) {
    const std::uint64_t before = receiver.received();
    try {
      receive_pull(receiver);
      held_ = receiver.version();
      return;
    } catch (const Torn& error) {
      if (receiver.received() > before) backoff_.moved_on();
      torn(error);
    } catch (const Refused& refusal) {
      if (refusal.reason() == "STALE_BASE" && receiver.version()) {
        receiver.reset();
      } else if (refusal.lost_session()) {
        receiver.reset();
        join_again(refusal.what());
      } else if (refusal.reason() == "SUPERSEDED") {
        confirm_superseded(refusal);
        backoff_.failed(refusal.what());
      } else if (refusal.reason() == "NOT_INITIALIZED") {
        throw;  // whatever it hints at: all workers may be waiting for this one to initialize
      } else {
        backoff_.wait_as_asked(refusal);
      }
    }
  }
}

void Client::receive_pull(Receiver& receiver) {
  v1::PullRequest request;
  request.set_session_id(request_.session_id());
  if (receiver.version()) {
    *request.mutable_resume_version() = *receiver.version();
    request.set_resume_offset(receiver.received());
  }
  receiver.next_stream();
  Stream stream(connection_.channel(), kPull, patience_, [this] { return examine(0); });
  auto turn = Turn::kServer;
  if (!stream.write(make_frame(request), true)) throw_end(stream);
  while (auto message = stream.read(turn)) {
    turn = Turn::kUs;
    v1::PullResponse fields;
    const auto chunk = parse_frame(*message, v1::PullResponse::kChunkFieldNumber, fields);
    if (fields.has_not_modified()) throw ServerMisbehaved("the server says not-modified to a pull of no version");
    if (fields.has_header()) receiver.announce(fields.header());
    if (chunk) receiver.take(*message, *chunk);
    if (fields.has_footer()) return receiver.finish(fields.footer());
  }
  throw_end(stream);
}

// --- commits

Outcome Client::commit(const Delta& delta, Tensors& into) {
  if (!held_) throw Error("pull first: a commit needs parameters that its gradient was computed at");
  v1::CommitHeader header;
  header.set_session_id(request_.session_id());
  header.set_sequence(last_applied_ + 1);
  *header.mutable_base_version() = *held_;
  header.set_wire_type(delta_format_->wire_type());
  header.set_byte_count(delta_format_->byte_count());
  header.set_samples(delta.samples);
  if (delta.loss) header.set_loss(*delta.loss);
  const PayloadFormat format = *delta_format_;  // a join on the way makes the members anew
  Outgoing outgoing(format, {delta.gradient, static_cast<float>(-next_eta_), delta.buffers}, std::move(header));
  Outcome outcome = settle(outgoing, into);
  backoff_.succeeded();
  return outcome;
}

Outcome Client::settle(Outgoing& outgoing, Tensors& into) {
  const PayloadFormat format = *reply_format_;
  bool is_applied = false;  // the server says so: the header alone brings the stored verdict
  bool is_pulled = false;   // `into` holds other parameters than before, since the session was lost
  for (;;) {
    Reply reply{Receiver(format, into), std::nullopt};
    try {
      exchange(outgoing, reply, is_applied);
      return applied(reply, false);
    } catch (const Torn& error) {
      stream_.reset();
      torn(error);
      if (reply.verdict) return applied(reply, true);
      heartbeat();
    } catch (const Refused& refusal) {
      stream_.reset();
      // Asked for the verdict of an applied commit, a restarted server may have forgotten it.
      const bool is_last_word = !refusal.retry_after() && !refusal.lost_session() &&
                                refusal.reason() != "SEQUENCE_REUSED" && refusal.reason() != "SUPERSEDED";
      if (is_pulled && is_applied && is_last_word) return {true, std::nullopt};
      recover(refusal);
    }
    if (!held_) {
      outgoing.remember_checksum();
      bring_anew(into);
      is_pulled = true;
    }
    is_applied = last_applied_ == outgoing.sequence();
    if (is_pulled && !is_applied) return {false, std::nullopt};
  }
}

void Client::exchange(Outgoing& outgoing, Reply& reply, bool header_only) {
  // A stream that broke while this worker computed took nothing with it.
  if (stream_ && !stream_->is_open()) stream_.reset();
  if (!stream_) {
    const auto ask = [this] { return examine(awaited_); };
    stream_ = std::make_unique<Stream>(connection_.channel(), kCommit, patience_, ask);
  }
  bool may_proceed = !header_only && !outgoing.is_whole();
  awaited_ = may_proceed ? 0 : outgoing.sequence();
  said_applied_ = false;
  auto turn = Turn::kServer;
  (void)stream_->write(header_only ? outgoing.question() : outgoing.first_message());
  while (auto message = stream_->read(turn)) {
    v1::CommitResponse fields;
    const auto chunk = parse_frame(*message, v1::CommitResponse::kChunkFieldNumber, fields);
    if (fields.has_proceed()) {
      if (!std::exchange(may_proceed, false) || fields.proceed().sequence() != outgoing.sequence()) {
        throw ServerMisbehaved("the server said proceed where it had nothing to wait for");
      }
      awaited_ = outgoing.sequence();
      outgoing.send_rest(*stream_, joined_.chunk_bytes());
    }
    if (fields.has_verdict()) {
      if (fields.verdict().sequence() != outgoing.sequence()) {
        throw ServerMisbehaved("the server sent a verdict on another commit");
      }
      reply.verdict = fields.verdict();
      turn = Turn::kUs;
    }
    if (fields.has_parameters()) reply.receiver.announce(fields.parameters());
    if (chunk) reply.receiver.take(*message, *chunk);
    if (fields.has_footer()) return reply.receiver.finish(fields.footer());
  }
  throw_end(*stream_);
}

// The verdict came. A reply that was torn in its parameters is completed by a pull.
Outcome Client::applied(Reply& reply, bool is_torn) {
  if (!reply.verdict) throw ServerMisbehaved("the server sent parameters without a verdict");
  // Before the pull: should that have to join again, a resumed server's count is right.
  last_applied_ = reply.verdict->sequence();
  next_eta_ = reply.verdict->next_eta();
  run_state_ = reply.verdict->run_state();
  if (is_torn) {
    bring(reply.receiver);
  } else {
    held_ = reply.receiver.version();
  }
  return {true, std::move(reply.verdict)};
}

// Do what a refusal asks for, so that the next attempt may succeed; throw it where nothing would help. What the server
// kept for us being lost by it shows as `held_` being unset.
void Client::recover(const Refused& refusal) {
  if (refusal.reason() == "RUN_FINISHED") {
    run_state_ = v1::RUN_STATE_FINISHED;
    throw RunFinished();
  }
  if (refusal.reason() == "SUPERSEDED") {
    confirm_superseded(refusal);
    backoff_.failed(refusal.what());
  } else if (refusal.lost_session() || refusal.reason() == "SEQUENCE_GAP") {
    join_again(refusal.what());
  } else if (refusal.reason() == "STALE_BASE") {
    held_.reset();
  } else {
    backoff_.wait_as_asked(refusal);
  }
}

}  // namespace gemps
