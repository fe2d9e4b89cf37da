#include "stop.hpp"

#include <csignal>

#include "errors.hpp"

namespace gemps {
namespace {

volatile std::sig_atomic_t received = 0;

void remember(int signal) { received = signal; }

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() noexcept { return received; }

void check_stop() {
  if (received != 0) throw Interrupted();
}

}  // namespace gemps
