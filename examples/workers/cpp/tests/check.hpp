// Just so much of a test framework as these tests need: TEST(group, "a sentence") { CHECK(...); }
#pragma once

#include <functional>
#include <string>

namespace check {

struct Registration {
  Registration(const char* group, const char* sentence, std::function<void()> body);
};

void fail(const char* file, int line, const std::string& what);

template <class Expected, class Body>
bool throws(Body body) {
  try {
    body();
  } catch (const Expected&) {
    return true;
  }
  return false;
}

}  // namespace check

#define CHECK_JOIN_(one, other) one##other
#define CHECK_NAME_(one, other) CHECK_JOIN_(one, other)
#define TEST(group, sentence)                                                                                   \
  static void CHECK_NAME_(body_, __LINE__)();                                                                   \
  static const check::Registration CHECK_NAME_(test_, __LINE__)(group, sentence, CHECK_NAME_(body_, __LINE__)); \
  static void CHECK_NAME_(body_, __LINE__)()
#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, #condition))
