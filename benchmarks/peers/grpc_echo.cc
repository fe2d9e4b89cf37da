// The limit that gRPC itself sets (benchmarks/peers/grpc_echo_cpp.py builds and starts this): raw bytes, no protobuf, no
// checksum, no mathematics. A step is BYTES bytes in chunks to the server, which keeps the slices as gRPC made them and
// sends them back when the last has come.
//
//   grpc_echo server BYTES CHUNK READY_FILE      serves until SIGTERM; writes {"address": "127.0.0.1:PORT"}
//   grpc_echo client BYTES CHUNK ADDRESS WARM_UP says "ready", reads "START END" (seconds of CLOCK_MONOTONIC), makes
//                                                steps until END, prints the seconds that each took
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kMiB = 1 << 20;
constexpr char kMethod[] = "/gemps.bench.Echo/Exchange";

// The server's limits are those of server/gem_server/service/listener.py.
void ForServer(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(4 * kMiB);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument("grpc.http2.max_frame_size", 16 * kMiB - 1);
  builder.AddChannelArgument("grpc.http2.lookahead_bytes", 4 * kMiB);
  builder.AddChannelArgument("grpc.http2.bdp_probe", 0);
}

// Those of worker/gem_worker/client/channel.py.
grpc::ChannelArguments ForClient() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(4 * kMiB);
  arguments.SetInt("grpc.http2.max_frame_size", 16 * kMiB - 1);
  arguments.SetInt("grpc.http2.lookahead_bytes", 16 * kMiB);
  arguments.SetInt("grpc.http2.bdp_probe", 0);
  arguments.SetInt("grpc.enable_http_proxy", 0);
  return arguments;
}

class Echo : public grpc::ServerGenericBidiReactor {
 public:
  explicit Echo(size_t bytes) : bytes_(bytes) { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    received_ += incoming_.Length();
    kept_.emplace_back();
    kept_.back().Swap(&incoming_);
    if (received_ < bytes_) {
      StartRead(&incoming_);
      return;
    }
    next_ = 0;
    StartWrite(&kept_[next_]);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (++next_ < kept_.size()) {
      StartWrite(&kept_[next_]);
    } else {
      kept_.clear();
      received_ = 0;
      StartRead(&incoming_);
    }
  }

  void OnDone() override { delete this; }

 private:
  const size_t bytes_;
  size_t received_ = 0;
  size_t next_ = 0;
  grpc::ByteBuffer incoming_;
  std::vector<grpc::ByteBuffer> kept_;
};

class Service : public grpc::CallbackGenericService {
 public:
  explicit Service(size_t bytes) : bytes_(bytes) {}

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Echo(bytes_); }

  const size_t bytes_;
};

int Serve(size_t bytes, const std::string& ready_file) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);  // before gRPC makes its threads, which inherit it
  Service service(bytes);
  grpc::ServerBuilder builder;
  int port = 0;
  ForServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::cerr << "cannot listen on 127.0.0.1\n";
    return 1;
  }
  const std::string unfinished = ready_file + ".part";
  std::FILE* file = std::fopen(unfinished.c_str(), "w");
  if (file == nullptr) {
    std::cerr << "cannot write " << unfinished << "\n";
    return 1;
  }
  std::fprintf(file, "{\"address\": \"127.0.0.1:%d\"}", port);
  std::fclose(file);
  std::rename(unfinished.c_str(), ready_file.c_str());
  int signal = 0;
  sigwait(&signals, &signal);
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}

double Now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// One call, driven from one thread by a completion queue: reads and writes of a step are both under way.
class Caller {
 public:
  Caller(const std::string& address, size_t bytes, size_t chunk)
      : out_(bytes, 1),
        in_(bytes, 0),
        chunk_(chunk),
        stub_(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), ForClient())),
        call_(stub_.PrepareCall(&context_, kMethod, &queue_)) {
    call_->StartCall(kStarted);
    Await(kStarted);
  }

  void Step() {
    size_t sent = 0;
    size_t received = 0;
    Write(sent);
    call_->Read(&incoming_, kRead);
    while (received < in_.size()) {
      if (Next() == kWritten) {
        if (sent < out_.size()) Write(sent);
        continue;
      }
      std::vector<grpc::Slice> slices;
      if (!incoming_.Dump(&slices).ok()) Fail("a message that cannot be read");
      for (const grpc::Slice& slice : slices) {
        std::memcpy(in_.data() + received, slice.begin(), slice.size());
        received += slice.size();
      }
      if (received < in_.size()) call_->Read(&incoming_, kRead);
    }
  }

  void End() {
    call_->WritesDone(kWritten);
    Await(kWritten);
    grpc::Status status;
    call_->Finish(&status, kFinished);
    Await(kFinished);
  }

 private:
  // grpc::Slice copies what it is made of: the one copy that a message costs the sender in our clients, too.
  void Write(size_t& sent) {
    const size_t size = std::min(chunk_, out_.size() - sent);
    grpc::Slice slice(out_.data() + sent, size);
    sent += size;
    call_->Write(grpc::ByteBuffer(&slice, 1), kWritten);
  }

  void* Next() {
    void* tag = nullptr;
    bool ok = false;
    if (!queue_.Next(&tag, &ok) || !ok) Fail("the call broke");
    return tag;
  }

  void Await(void* wanted) {
    while (Next() != wanted) {
    }
  }

  [[noreturn]] static void Fail(const char* what) {
    std::cerr << what << "\n";
    std::exit(1);
  }

  static inline void* const kStarted = reinterpret_cast<void*>(1);
  static inline void* const kWritten = reinterpret_cast<void*>(2);
  static inline void* const kRead = reinterpret_cast<void*>(3);
  static inline void* const kFinished = reinterpret_cast<void*>(4);

  std::vector<char> out_;
  std::vector<char> in_;
  const size_t chunk_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer incoming_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

int Call(const std::string& address, size_t bytes, size_t chunk, int warm_up) {
  Caller caller(address, bytes, chunk);
  for (int step = 0; step < warm_up; ++step) caller.Step();
  std::cout << "ready" << std::endl;
  double start = 0;
  double end = 0;
  if (!(std::cin >> start >> end)) return 1;
  std::this_thread::sleep_for(std::chrono::duration<double>(start - Now()));
  std::vector<double> took;
  for (double before = Now(); took.empty() || before < end;) {
    caller.Step();
    const double after = Now();
    took.push_back(after - before);
    before = after;
  }
  for (const double one : took) std::printf("%.9f ", one);
  std::printf("\n");
  std::fflush(stdout);
  std::string word;
  std::cin >> word;  // stays, with its memory, until all have finished
  caller.End();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments, arguments + count);
  if (count == 5 && words[1] == "server") return Serve(std::stoull(words[2]), words[4]);
  if (count == 6 && words[1] == "client") {
    return Call(words[4], std::stoull(words[2]), std::stoull(words[3]), std::stoi(words[5]));
  }
  std::cerr << "usage: grpc_echo server BYTES CHUNK READY_FILE | client BYTES CHUNK ADDRESS WARM_UP\n";
  return 2;
}
