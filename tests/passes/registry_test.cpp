// The table of passes: names, refusals, what users add.
#include <gtest/gtest.h>

#include "shadowgraph/passes/pass.h"

namespace shadowgraph {
namespace {

Pass pass_named(std::string name) {
  return {.name = std::move(name), .summary = "", .run = [](Graph&, const PassOptions&) { return PassResult{}; }};
}

TEST(PassRegistry, FindsWhatTheUserRegistered) {
  EXPECT_EQ(find_pass("registry-test"), nullptr);
  register_pass(pass_named("registry-test"));
  ASSERT_NE(find_pass("registry-test"), nullptr);
  EXPECT_EQ(find_pass("registry-test")->name, "registry-test");
  EXPECT_THROW(register_pass(pass_named("registry-test")), Error);
}

TEST(PassRegistry, RefusesWhatIsNoName) {
  for (const char* name : {"", "Upper", "1st", "under_score", "-dash", "two words"}) {
    EXPECT_THROW(register_pass(pass_named(name)), Error) << name;
  }
  EXPECT_THROW(register_pass({.name = "no-function"}), Error);
}

}  // namespace
}  // namespace shadowgraph
