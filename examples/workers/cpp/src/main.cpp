// A gemps worker in C++: joins a server, trains until the run is finished, and leaves.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "client.hpp"
#include "digits.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "quadratic.hpp"
#include "stop.hpp"
#include "wire_types.hpp"

namespace gemps {
namespace {

constexpr int kMostSkippedInARow = 100;

std::vector<v1::WireType> spoken(const nlohmann::json& names) {
  std::vector<v1::WireType> types;
  for (const auto& name : names) {
    if (const auto type = wire_type_of(name.get<std::string>())) types.push_back(*type);
  }
  if (types.empty()) throw NotSpoken("none of the wire types " + names.dump() + " is spoken here");
  return types;
}

// The task of the conformance kit, which settles the wire types, too.
std::unique_ptr<Task> conformance_task(Options& options) {
  try {
    std::ifstream stream(options.conformance);
    if (!stream) throw UsageError("it cannot be read");
    const auto json = nlohmann::json::parse(stream);
    options.delta_wire_types = spoken(json.at("delta_wire_types"));
    options.parameter_wire_types = spoken(json.at("parameter_wire_types"));
    return std::make_unique<Quadratic>(Layout::from_json(json.at("layout")));
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("GEMPS_CONFORMANCE names " + options.conformance + ", which is no task: " + error.what());
  }
}

std::unique_ptr<Task> make_task(Options& options) {
  if (!options.conformance.empty()) return conformance_task(options);
  if (options.parameters > 0) return std::make_unique<NoCompute>(options.parameters);
  return std::make_unique<Digits>(options.task);
}

class Trainer {
 public:
  Trainer(const Options& options, Task& task, Client& client, Progress& progress)
      : options_(options),
        task_(task),
        client_(client),
        progress_(progress),
        tensors_(task.layout()),
        gradient_(tensors_.parameters.size()) {}

  void run() {
    const auto& membership = client_.join();
    progress_.joined(membership, task_.name());
    if (client_.is_finished()) return;
    task_.first_parameters(membership.settings().seed(), tensors_);
    task_.begin(membership.settings().seed(), membership.rank());
    bring_parameters(membership.has_parameters());
    try {
      while (!client_.is_finished() && (options_.commits == 0 || progress_.applied() < options_.commits)) {
        check_stop();
        step();
      }
    } catch (const RunFinished&) {
      // The last delta was not applied.
    }
  }

  [[nodiscard]] std::string result() { return has_parameters_ ? task_.evaluate(tensors_.parameters) : ""; }

 private:
  // Until there are some: upload what this worker has, where the server has none. It may be restarted, empty, at any
  // time.
  void bring_parameters(bool has_parameters) {
    for (;; has_parameters = false) {
      if (!has_parameters) client_.initialize(tensors_);
      try {
        client_.pull(tensors_);
        has_parameters_ = true;
        return;
      } catch (const Refused& refusal) {
        if (refusal.reason() != "NOT_INITIALIZED") throw;
      }
    }
  }

  void step() {
    const Step step = task_.compute(tensors_.parameters, gradient_);
    if (!all_finite(gradient_)) {
      progress_.skipped();
      if (++skipped_in_a_row_ >= kMostSkippedInARow) {
        throw Diverged("a hundred gradients in a row were not finite: start again with a smaller --eta");
      }
      return;
    }
    skipped_in_a_row_ = 0;
    const auto buffers = std::span(tensors_.rest).first(task_.layout().buffer_bytes());
    try {
      progress_.step(step, client_.commit({gradient_, buffers, step.loss, step.samples}, tensors_));
    } catch (const Refused& refusal) {
      if (refusal.reason() != "NOT_INITIALIZED") throw;
      bring_parameters(false);
    }
  }

  const Options& options_;
  Task& task_;
  Client& client_;
  Progress& progress_;
  Tensors tensors_;
  std::vector<float> gradient_;
  bool has_parameters_ = false;
  int skipped_in_a_row_ = 0;
};

int work(Options options) {
  const auto task = make_task(options);
  Progress progress(options.name, options.log_interval);
  Client client(options.server, task->layout(),
                {options.name, options.delta_wire_types, options.parameter_wire_types, task->steps_per_epoch()},
                [&progress](const std::string& what) { progress.event(what); });
  Trainer trainer(options, *task, client, progress);
  try {
    trainer.run();
  } catch (const Interrupted&) {
    client.leave("interrupted");
    progress.ended("interrupted", "");
    return 128 + stop_signal();
  } catch (const std::exception& error) {
    client.leave(error.what());
    throw;
  }
  const bool is_finished = client.is_finished();
  client.leave(is_finished ? "finished" : "has made its commits");
  progress.ended(is_finished ? "the run is finished" : "done", trainer.result());
  return 0;
}

int main_of(std::span<const char* const> arguments) {
  const Options options = parse_options(arguments);
  if (options.help) {
    std::cout << kUsage;
    return 0;
  }
  install_stop_handlers();
  return work(options);
}

}  // namespace
}  // namespace gemps

int main(int argc, char** argv) {
  try {
    return gemps::main_of(std::span<const char* const>(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const gemps::NotSpoken& error) {
    std::cerr << "gemps-worker: " << error.what() << std::endl;
    return 3;
  } catch (const gemps::UsageError& error) {
    std::cerr << "gemps-worker: " << error.what() << std::endl;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "gemps-worker: " << error.what() << std::endl;
    return 1;
  }
}
