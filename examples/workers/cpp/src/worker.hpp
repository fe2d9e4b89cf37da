// A worker, from Join to the end of the run. train() is the one rule for failures (worker.proto): whatever fails, and
// is not final, the worker waits, joins again with the same session id, pulls, and goes on with a new gradient on a new
// stream. At most one delta is lost that way, and none is applied twice.
//
// session.hpp makes the calls, failure.hpp reads refusals and says how long to wait; a Task computes.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "session.hpp"

namespace gemps {

// Blocks SIGINT and SIGTERM in this thread and in those that it starts, so that work() gets them. Call it first.
inline sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Until the run is finished. `interval` is the time between two lines about the training.
inline void train(Session& session, Task& task, const char* name, Seconds interval) {
  Backoff backoff;
  unsigned long steps = 0;
  auto told = Clock::now();
  for (;;) {
    try {
      session.begin();
      backoff.answered();
      std::printf("%s: joined with rank %u\n", name, session.joined.rank());
      while (!session.is_finished) {
        const Step step = task.step(session.model);
        const auto staleness = static_cast<unsigned long>(session.commit(step).staleness());
        backoff.applied();
        ++steps;
        if (Clock::now() - told < interval) continue;
        std::printf("%s: step %lu, loss %.4f, staleness %lu\n", name, steps, step.loss, staleness);
        told = Clock::now();
      }
      break;
    } catch (const Failure& failure) {
      while (session.has_left) pause();  // After a signal, until the process ends.
      if (failure.remedy == Remedy::kFinished) break;
      const Seconds wait = backoff.after(failure);
      std::printf("%s: %s; joining again in %.1f s\n", name, failure.what(), wait.count());
      std::this_thread::sleep_for(wait);
    }
  }
  std::printf("%s: the run is finished: %lu steps\n", name, steps);
}

// Trains until the run is finished; the exit status. SIGINT and SIGTERM leave the run and end the process.
inline int work(Task& task, const Connection& connection, const std::string& name, Seconds interval) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // Never destroyed: the thread below has it until the process ends. A signal handler could call next to nothing.
  Session& session = *new Session(connection, name, task);
  std::thread([&session] {
    const sigset_t signals = block_signals();
    int signal = 0;
    sigwait(&signals, &signal);
    session.leave("interrupted");
    std::_Exit(128 + signal);
  }).detach();
  try {
    train(session, task, name.c_str(), interval);
  } catch (const Failure& failure) {
    session.leave("failed");
    std::fprintf(stderr, "%s: %s\n", name.c_str(), failure.what());
    return failure.remedy == Remedy::kFinal ? 2 : 1;
  }
  session.leave("finished");
  if (session.version.clock() > 0) std::printf("%s: %s\n", name.c_str(), task.evaluate(session.model).c_str());
  return 0;
}

}  // namespace gemps
