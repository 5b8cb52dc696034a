#include "runtime/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace adder {
namespace {

Result<std::unique_ptr<int>> Half(int n) {
  if (n % 2 != 0) return Error(Code::kInvalidArgument, "%d is odd", n);
  return std::make_unique<int>(n / 2);
}

Status Quarter(int n, int* out) {
  ADDER_ASSIGN_OR_RETURN(const auto half, Half(n));
  ADDER_ASSIGN_OR_RETURN(const auto quarter, Half(*half));
  *out = *quarter;
  return {};
}

TEST(Status, CarriesCodeAndMessageThroughCallers) {
  int out = 0;
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  const Status status = Annotate(Quarter(6, &out), "layer 3");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "layer 3: 3 is odd");
}

}  // namespace
}  // namespace adder
