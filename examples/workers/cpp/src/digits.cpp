#include "digits.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <sstream>
#include <utility>

#include "errors.hpp"

namespace gemps {
namespace {

// The model and the batches of `gemps work --task digits`.
constexpr std::size_t kHidden = 64;
constexpr std::size_t kBatch = 32;

Digits::Samples samples_from(const nlohmann::json& part, std::size_t features, std::size_t classes, float maximum) {
  Digits::Samples samples;
  samples.features = features;
  for (const auto& row : part.at("inputs")) {
    if (row.size() != features) throw UsageError("a row of other than " + std::to_string(features) + " numbers");
    for (const auto& pixel : row) samples.inputs.push_back(pixel.get<float>() / maximum);
  }
  samples.labels = part.at("labels").get<std::vector<std::size_t>>();
  if (samples.labels.empty() || samples.labels.size() * features != samples.inputs.size()) {
    throw UsageError("not as many labels as rows, or none");
  }
  if (*std::max_element(samples.labels.begin(), samples.labels.end()) >= classes) {
    throw UsageError("a label that is no class");
  }
  return samples;
}

}  // namespace

Digits::Digits(const std::filesystem::path& file) : Digits(read(file)) {}

Digits::Digits(File file)
    : train_(std::move(file.train)),
      held_out_(std::move(file.held_out)),
      model_(file.features, kHidden, file.classes) {}

Digits::File Digits::read(const std::filesystem::path& path) {
  try {
    std::ifstream stream(path);
    if (!stream) throw UsageError("it cannot be read");
    const auto json = nlohmann::json::parse(stream);
    const auto features = json.at("features").get<std::size_t>();
    const auto classes = json.at("classes").get<std::size_t>();
    const auto maximum = json.at("maximum").get<float>();
    return {features, classes, samples_from(json.at("train"), features, classes, maximum),
            samples_from(json.at("held_out"), features, classes, maximum)};
  } catch (const std::exception& error) {
    throw UsageError("the task " + path.string() + " cannot be used (" + error.what() +
                     "): make one with gemps export-task digits");
  }
}

std::uint64_t Digits::steps_per_epoch() const { return std::max<std::uint64_t>(1, train_.labels.size() / kBatch); }

void Digits::first_parameters(std::uint64_t seed, Tensors& into) const {
  model_.first_parameters(seed, into.parameters);
}

void Digits::begin(std::uint64_t seed, std::uint32_t rank) {
  seed_ = seed;
  rank_ = rank;
  epoch_ = 0;
  shuffle();
}

// This worker's own order of all samples, another one in each pass.
void Digits::shuffle() {
  const std::array<std::uint64_t, 4> words{seed_ & 0xFFFF'FFFF, seed_ >> 32, rank_, epoch_};
  std::seed_seq sequence(words.begin(), words.end());
  std::mt19937 random(sequence);
  order_.resize(train_.labels.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::shuffle(order_.begin(), order_.end(), random);
  next_ = 0;
}

Step Digits::compute(std::span<const float> parameters, std::span<float> gradient) {
  const std::size_t batch = std::min(kBatch, order_.size());
  // Samples left over come in another pass: its order differs.
  if (next_ + batch > order_.size()) {
    ++epoch_;
    shuffle();
  }
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  const float weight = 1.0F / static_cast<float>(batch);
  double loss = 0;
  for (std::size_t i = 0; i < batch; ++i) {
    const std::size_t number = order_[next_++];
    loss += weight * model_.add_gradient(parameters, train_.input(number), train_.labels[number], weight, gradient);
  }
  return {loss, batch};
}

std::string Digits::evaluate(std::span<const float> parameters) {
  std::size_t right = 0;
  for (std::size_t i = 0; i < held_out_.labels.size(); ++i) {
    right += model_.classify(parameters, held_out_.input(i)) == held_out_.labels[i] ? 1 : 0;
  }
  std::ostringstream text;
  text.precision(4);
  text << std::fixed << "held-out accuracy "
       << static_cast<double>(right) / static_cast<double>(held_out_.labels.size()) << " of " << held_out_.labels.size()
       << " samples";
  return text.str();
}

}  // namespace gemps
