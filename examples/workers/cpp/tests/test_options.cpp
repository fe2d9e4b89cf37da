#include "options.hpp"

#include <cstdlib>
#include <vector>

#include "check.hpp"
#include "errors.hpp"

namespace {

gemps::Options parsed(const std::vector<const char*>& arguments) { return gemps::parse_options(arguments); }

}  // namespace

TEST("options", "flags go before the environment, with a space or an equals sign") {
  setenv("GEMPS_SERVER", "from-environment:1", 1);
  setenv("GEMPS_WORKER_NAME", "w", 1);
  CHECK(parsed({}).server == "from-environment:1" && parsed({}).name == "w");
  CHECK(parsed({"--server", "flag:2"}).server == "flag:2");
  CHECK(parsed({"--server=flag:3", "--name=n"}).name == "n");
  unsetenv("GEMPS_SERVER");
  unsetenv("GEMPS_WORKER_NAME");
  CHECK(parsed({}).server == "localhost:50051" && !parsed({}).name.empty());
}

TEST("options", "wire types and numbers are read") {
  const auto options = parsed({"--delta-wire-type", "bfloat16", "--parameter-wire-type=float32", "--commits", "7"});
  CHECK(options.delta_wire_types == std::vector{gemps::v1::WIRE_TYPE_BFLOAT16});
  CHECK(options.parameter_wire_types == std::vector{gemps::v1::WIRE_TYPE_FLOAT32});
  CHECK(options.commits == 7 && !options.log_interval);
  CHECK(parsed({"--log-interval", "0.25"}).log_interval == 0.25);
}

TEST("options", "what is not understood is wrong usage") {
  for (const std::vector<const char*>& wrong : {std::vector<const char*>{"--sever", "x:1"},
                                                {"digits"},
                                                {"--server"},
                                                {"--commits", "0"},
                                                {"--commits", "7x"},
                                                {"--log-interval", "-1"},
                                                {"--delta-wire-type", "float8"}}) {
    CHECK(check::throws<gemps::UsageError>([&] { parsed(wrong); }));
  }
}
