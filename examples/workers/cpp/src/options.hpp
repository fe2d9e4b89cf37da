// The command line and the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gemps/v1/transfer.pb.h"

namespace gemps {

extern const char* const kUsage;

struct Options {
  bool help = false;
  std::string server = "localhost:50051";
  std::string name;                    // of the worker
  std::string task = "digits.json";    // file of `gemps export-task digits`
  std::string conformance;             // file of the conformance kit's task
  std::uint64_t parameters = 0;        // train nothing, commit so many
  std::optional<double> log_interval;  // seconds between two lines of progress
  std::uint64_t commits = 0;           // leave after so many; 0: when the run is finished
  std::vector<v1::WireType> delta_wire_types{v1::WIRE_TYPE_FLOAT32};
  std::vector<v1::WireType> parameter_wire_types{v1::WIRE_TYPE_FLOAT32};
};

// Flags go before the environment. Throws UsageError.
Options parse_options(std::span<const char* const> arguments);

}  // namespace gemps
