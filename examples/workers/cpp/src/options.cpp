#include "options.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "errors.hpp"
#include "wire_types.hpp"

namespace gemps {

const char* const kUsage = R"(usage: gemps-worker [OPTION]...

Joins a gemps server, trains a perceptron on digits until the run is finished, and exits 0.

  --server HOST:PORT          the server; else GEMPS_SERVER, else localhost:50051
  --name NAME                 this worker's name, its own; else GEMPS_WORKER_NAME, else host and process
  --task FILE                 what `gemps export-task digits` wrote; else digits.json
  --delta-wire-type TYPE      how deltas travel: float32 or bfloat16
  --parameter-wire-type TYPE  how parameters travel: the same
  --commits N                 leave after N commits, though the run continues
  --parameters N              train nothing: commit N parameters again and again, and tell how fast that was
  --log-interval SECONDS      between two lines of progress; else 5, and 0.5 on a terminal; 0: every step
  --help

Exit codes: 0 the run is finished, 1 an error, 2 wrong usage, 3 the conformance kit asks for what this worker does not
speak, 130 and 143 after SIGINT and SIGTERM.
)";

namespace {

std::string from_environment(const char* variable, std::string fallback) {
  const char* const value = std::getenv(variable);  // NOLINT: nothing changes the environment
  return value != nullptr && *value != '\0' ? value : std::move(fallback);
}

std::string default_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return std::string(host.data()) + "-" + std::to_string(getpid());
}

std::uint64_t number(const std::string& flag, const std::string& value) {
  std::uint64_t result = 0;
  const char* const end = value.data() + value.size();
  const auto [last, error] = std::from_chars(value.data(), end, result);
  if (error != std::errc() || last != end || result == 0) {
    throw UsageError(flag + " wants a number from 1 on, not '" + value + "'");
  }
  return result;
}

double seconds(const std::string& flag, const std::string& value) {
  double result = -1;
  const char* const end = value.data() + value.size();
  const auto [last, error] = std::from_chars(value.data(), end, result);
  if (error != std::errc() || last != end || !(result >= 0)) {
    throw UsageError(flag + " wants a number of seconds, not '" + value + "'");
  }
  return result;
}

std::vector<v1::WireType> wire_type(const std::string& flag, const std::string& value) {
  const auto type = wire_type_of(value);
  if (!type) throw UsageError(flag + " wants float32 or bfloat16, not '" + value + "'");
  return {*type};
}

}  // namespace

Options parse_options(std::span<const char* const> arguments) {
  Options options;
  options.server = from_environment("GEMPS_SERVER", options.server);
  options.name = from_environment("GEMPS_WORKER_NAME", default_name());
  options.conformance = from_environment("GEMPS_CONFORMANCE", "");
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string flag = arguments[i];
    if (flag == "--help" || flag == "-h") {
      options.help = true;
      return options;
    }
    const auto equals = flag.find('=');
    std::optional<std::string> value;
    if (equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    static constexpr std::array<std::string_view, 8> kFlags{"--server",
                                                            "--name",
                                                            "--task",
                                                            "--commits",
                                                            "--parameters",
                                                            "--log-interval",
                                                            "--delta-wire-type",
                                                            "--parameter-wire-type"};
    if (std::find(kFlags.begin(), kFlags.end(), flag) == kFlags.end()) {
      throw UsageError("'" + flag + "' is no option of this worker; --help lists them");
    }
    if (!value) throw UsageError(flag + " wants a value");
    if (flag == "--server") options.server = *value;
    if (flag == "--name") options.name = *value;
    if (flag == "--task") options.task = *value;
    if (flag == "--commits") options.commits = number(flag, *value);
    if (flag == "--log-interval") options.log_interval = seconds(flag, *value);
    if (flag == "--parameters") options.parameters = number(flag, *value);
    if (flag == "--delta-wire-type") options.delta_wire_types = wire_type(flag, *value);
    if (flag == "--parameter-wire-type") options.parameter_wire_types = wire_type(flag, *value);
  }
  return options;
}

}  // namespace gemps
