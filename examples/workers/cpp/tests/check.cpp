#include "check.hpp"

#include <iostream>
#include <utility>
#include <vector>

namespace check {
namespace {

struct Test {
  std::string group;
  std::string sentence;
  std::function<void()> body;
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

int failures = 0;

}  // namespace

Registration::Registration(const char* group, const char* sentence, std::function<void()> body) {
  tests().push_back({group, sentence, std::move(body)});
}

void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::cerr << file << ":" << line << ": " << what << "\n";
}

}  // namespace check

// All tests of the group that is named, of all groups where none is; fails where there are none.
int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  int ran = 0;
  for (const auto& test : check::tests()) {
    if (!wanted.empty() && test.group != wanted) continue;
    ++ran;
    const int before = check::failures;
    try {
      test.body();
    } catch (const std::exception& error) {
      check::fail(test.group.c_str(), 0, error.what());
    }
    std::cout << (check::failures == before ? "ok      " : "FAILED  ") << test.group << ": " << test.sentence << "\n";
  }
  return ran > 0 && check::failures == 0 ? 0 : 1;
}
