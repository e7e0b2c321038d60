// The fields of an end are those of agent/model/fields.toml, which a retry and the next end delete.
#include "store/job_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "model/job_field_sets.h"

namespace mycojobs {
namespace {

TEST(EndFields, AreTheFieldsThatARetryDeletes) {
  const JobEnd end{JobStatus::error, "x", "x", "x", {{"x", "x"}}, "x", "x", "x", "x", "x", {"x"}, "x"};
  std::vector<std::string> names;
  for (const auto& [name, value] : end_fields(end)) names.push_back(name);
  std::vector<std::string> expected{"status", "detail"};
  expected.insert(expected.end(), std::begin(kJobEndFields), std::end(kJobEndFields));
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace mycojobs
