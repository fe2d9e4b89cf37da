// What can go wrong, and how each of it ends: the worker's exit codes follow from these types (main.cpp).
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace gemps {

using Seconds = std::chrono::duration<double>;

// Base of everything that ends the worker; what() is one line that names the fix where there is one.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command line, the environment or a file that it names cannot be used.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The run asks for something that the contract allows and this worker does not speak.
class NotSpoken : public Error {
 public:
  using Error::Error;
};

// The server could not be reached, or did not get one call done, for too long.
class ServerUnavailable : public Error {
 public:
  using Error::Error;
};

// The server answered what the contract does not allow.
class ServerMisbehaved : public Error {
 public:
  using Error::Error;
};

// A hundred gradients in a row were not finite.
class Diverged : public Error {
 public:
  using Error::Error;
};

// The server refused a call, and changed nothing. `reason` is a name of ErrorReason without its prefix, or that of the
// gRPC status where the refusal came without one. Without `retry_after` the same call will be refused again.
class Refused : public Error {
 public:
  Refused(std::string reason, const std::string& message, std::optional<Seconds> retry_after)
      : Error(message + " (" + reason + ")"), reason_(std::move(reason)), retry_after_(retry_after) {}

  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] std::optional<Seconds> retry_after() const noexcept { return retry_after_; }

  // The server does not know the session (any more), or was restarted: join again, under the same id.
  [[nodiscard]] bool lost_session() const noexcept {
    return reason_ == "UNKNOWN_SESSION" || reason_ == "EXPIRED_SESSION" || reason_ == "UNKNOWN_INCARNATION";
  }

 private:
  std::string reason_;
  std::optional<Seconds> retry_after_;
};

// A call broke before its end. The client repeats or resumes it: this never leaves client.hpp's functions.
// `by_server`: a server said so over a sound connection (it starts, or drains); `retry_after` if it said when to come.
class Torn : public std::runtime_error {
 public:
  explicit Torn(const std::string& why, bool by_server = false, std::optional<Seconds> retry_after = std::nullopt)
      : std::runtime_error(why), by_server_(by_server), retry_after_(retry_after) {}

  [[nodiscard]] bool by_server() const noexcept { return by_server_; }
  [[nodiscard]] std::optional<Seconds> retry_after() const noexcept { return retry_after_; }

 private:
  bool by_server_;
  std::optional<Seconds> retry_after_;
};

// The good end of a run. The delta that brought it was not applied.
class RunFinished : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the run is finished"; }
};

// SIGINT or SIGTERM arrived.
class Interrupted : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "interrupted"; }
};

}  // namespace gemps
