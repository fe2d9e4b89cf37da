// The channel to the server, with TLS and a token where the operator gave this worker a folder of credentials.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

namespace gemps {

// Empty if there is no such file.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class Connection {
 public:
  // `folder` is what `gemps certs` makes: ca.crt and perhaps client.crt with client.key, and token. Empty: no TLS.
  Connection(const std::string& server, const std::filesystem::path& folder)
      : token_(folder.empty() ? "" : folder / "token") {
    if (server.find(':') == std::string::npos) throw std::invalid_argument(server + " is no address: write HOST:PORT");
    auto credentials = grpc::InsecureChannelCredentials();
    if (!folder.empty()) {
      const std::string ca = read_file(folder / "ca.crt");
      if (ca.empty()) throw std::invalid_argument("--credentials: no ca.crt in " + folder.string());
      credentials = grpc::SslCredentials({ca, read_file(folder / "client.key"), read_file(folder / "client.crt")});
    }
    grpc::ChannelArguments arguments;
    // Commits may wait for hours. A ping a minute keeps their connection alive, and finds out when the server is gone.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // gRPC's own pauses between attempts to connect grow to two minutes.
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
    channel = grpc::CreateCustomChannel(server, credentials, arguments);
  }

  // The context of a call, with a deadline unless `seconds` is 0. The token is read anew: the operator may replace it.
  [[nodiscard]] std::unique_ptr<grpc::ClientContext> context(int seconds = 0) const {
    auto context = std::make_unique<grpc::ClientContext>();
    const std::string token = read_file(token_);
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token.substr(0, token.find('\n')));
    if (seconds > 0) context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    return context;
  }

  std::shared_ptr<grpc::Channel> channel;

 private:
  const std::filesystem::path token_;
};

}  // namespace gemps
