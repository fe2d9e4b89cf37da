// SIGINT and SIGTERM: the first asks the worker to leave, a second one ends it at once.
#pragma once

namespace gemps {

void install_stop_handlers();

// The signal that came; 0: none.
int stop_signal() noexcept;

// Throws Interrupted once one has come.
void check_stop();

}  // namespace gemps
