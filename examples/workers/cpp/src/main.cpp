// The command: trains handwritten digits.
#include <iostream>
#include <map>

#include "digits.hpp"
#include "worker.hpp"

static constexpr auto kUsage = R"(usage: gemps-worker [--task digits.json] [options]
Trains handwritten digits through a gemps parameter server until the run is finished.

  --task FILE             what gemps export-task digits wrote
  --server HOST:PORT      where gemps serve listens (GEMPS_SERVER; default localhost:50051)
  --name NAME             this worker's name, its own in the run (GEMPS_WORKER_NAME; default: cpp and the process)
  --credentials FOLDER    certificates and token, as gemps certs makes them (GEMPS_CLIENT_CREDENTIALS; default: no TLS)
  --log-interval SECONDS  between two lines about the training; 0: a line for each step (default 5)
Exit status: 0 the run is finished, 1 failure, 2 wrong usage or a final refusal, 130 SIGINT, 143 SIGTERM.
)";

static std::string from_environment(const char* variable, const std::string& otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

int main(int argc, char** argv) {
  gemps::block_signals();
  std::map<std::string, std::string> options{
      {"--task", "digits.json"},
      {"--server", from_environment("GEMPS_SERVER", "localhost:50051")},
      {"--name", from_environment("GEMPS_WORKER_NAME", "cpp-" + std::to_string(getpid()))},
      {"--credentials", from_environment("GEMPS_CLIENT_CREDENTIALS", "")},
      {"--log-interval", "5"}};
  try {
    for (int i = 1; i < argc; i += 2) {
      if (options.count(argv[i]) == 0 || i + 1 == argc) throw std::invalid_argument(kUsage);
      options[argv[i]] = argv[i + 1];
    }
    gemps::Digits digits(nlohmann::json::parse(gemps::read_file(options["--task"])));
    const gemps::Connection connection(options["--server"], options["--credentials"]);
    return gemps::work(digits, connection, options["--name"], gemps::Seconds(std::stod(options["--log-interval"])));
  } catch (const nlohmann::json::exception& error) {
    std::cerr << options["--task"] << ": " << error.what() << "; gemps export-task digits writes such a file\n";
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
  }
  return 2;
}
