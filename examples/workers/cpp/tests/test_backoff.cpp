#include "backoff.hpp"

#include <string>
#include <vector>

#include "check.hpp"

namespace {

using gemps::Backoff;
using gemps::Refused;
using gemps::Seconds;

// A backoff that does not sleep: what it would have slept, and what it reported.
struct Watched {
  explicit Watched(Seconds limit = Seconds(300))
      : backoff(
            "host:1", limit, [this](const std::string& text) { reported.push_back(text); },
            [this](Seconds nap) { naps.push_back(nap); }) {}

  std::vector<std::string> reported;
  std::vector<Seconds> naps;
  Backoff backoff;
};

}  // namespace

TEST("backoff", "pauses grow to two seconds, and begin anew after a success") {
  Watched watched;
  for (int i = 0; i < 10; ++i) watched.backoff.failed("refused");
  CHECK(watched.naps.front() >= Seconds(0.05) && watched.naps.front() <= Seconds(0.15));
  CHECK(watched.naps.back() >= Seconds(1) && watched.naps.back() <= Seconds(3));
  watched.backoff.succeeded();
  watched.backoff.failed("refused");
  CHECK(watched.naps.back() <= Seconds(0.15));
}

TEST("backoff", "trouble is reported once, and its end") {
  Watched watched;
  for (int i = 0; i < 3; ++i) watched.backoff.failed("refused");
  CHECK(watched.reported.size() == 1);
  watched.backoff.succeeded();
  watched.backoff.succeeded();
  CHECK(watched.reported.size() == 2);
}

TEST("backoff", "it gives up when nothing has succeeded for too long") {
  Watched watched(Seconds(0));
  CHECK(check::throws<gemps::ServerUnavailable>([&] { watched.backoff.failed("refused"); }));
}

TEST("backoff", "a refusal is repeated only where it says when, and not before") {
  Watched watched;
  CHECK(check::throws<Refused>([&] { watched.backoff.wait_as_asked(Refused("BAD_VALUE", "no", std::nullopt)); }));
  CHECK(watched.naps.empty());
  for (int i = 0; i < 20; ++i) watched.backoff.wait_as_asked(Refused("WAITING_ROOM", "full", Seconds(2)));
  for (const Seconds nap : watched.naps) CHECK(nap >= Seconds(2) && nap <= Seconds(2.5));
}

TEST("backoff", "a server that says when it is back is not asked before") {
  Watched watched;
  watched.backoff.failed("draining", Seconds(5));
  CHECK(watched.naps.back() >= Seconds(5));
}
