// The table of requests and the validation of parameters against it.
#include "service/request_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "model/enums.h"
#include "service/job_service.h"
#include "service/request_params.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

template <class Enum>
std::string join_names() {
  std::string names;
  for (const std::string_view name : enum_names<Enum>()) names += (names.empty() ? "" : " ") + std::string(name);
  return names;
}

std::string find_problem(std::string_view request, const json& params) {
  const auto problem = validate_params(*find_request(request), params);
  return problem ? problem->message : "";
}

TEST(RequestTable, RowsAreUniqueAndComplete) {
  std::set<std::string_view> names;
  for (const Request& request : requests()) {
    EXPECT_TRUE(names.insert(request.name).second) << request.name << " is in the table twice";
    EXPECT_FALSE(request.help.empty()) << request.name;
    EXPECT_NE(request.result.find(": "), std::string_view::npos) << request.name;
    std::set<std::string_view> params;
    for (const Param& param : request.params) {
      SCOPED_TRACE(std::string(request.name) + ' ' + std::string(param.name));
      EXPECT_TRUE(params.insert(param.name).second);
      EXPECT_TRUE(is_param_type(param.type));
      EXPECT_FALSE(param.help.empty());
      EXPECT_TRUE(param.choices.empty() || param.type == "text");
      EXPECT_FALSE(param.required && param.default_value);
      const json type = get_type_schema(param.type);
      const bool is_number = type.is_object() && type.at("type") == "integer";
      const bool is_list = type.is_object() && type.at("type") == "array";
      EXPECT_TRUE(is_number || (!param.default_value && !param.server_max));
      EXPECT_TRUE(is_number || is_list || (!param.min && !param.max));
      EXPECT_FALSE(param.max && param.server_max);
      if (!param.default_value) continue;
      EXPECT_EQ(find_problem(request.name, {{std::string(param.name), *param.default_value}}).find("must be"),
                std::string::npos);
    }
  }
}

TEST(RequestTable, ChoicesAreTheValuesOfTheModel) {
  const auto list_choices = [](const char* request, const char* param) {
    return std::string(find_param(*find_request(request), param)->choices);
  };
  EXPECT_EQ(list_choices("job.list", "status"), join_names<JobStatus>());
  EXPECT_EQ(list_choices("flow.list", "status"), join_names<FlowStatus>());
  EXPECT_EQ(list_choices("runner.create", "type"), join_names<RunnerType>());
  EXPECT_EQ(list_choices("message.create", "message_type"), join_names<MessageType>());
}

TEST(RequestParams, AreValidatedByTheRow) {
  EXPECT_EQ(find_problem("job.list", json::object()), "");
  EXPECT_EQ(find_problem("job.list", {{"limit", 0}}), "limit: must be a whole number, 1 or more, not 0");
  EXPECT_EQ(find_problem("job.list", {{"limit", 5000}}), "") << "a server reduces it";
  EXPECT_EQ(find_problem("workflow.cells", {{"workflow", "w"}, {"limit", 10001}}),
            "limit: must be a whole number from 1 to 10000, not 10001");
  EXPECT_EQ(find_problem("job.list", {{"limit", UINT64_MAX}}), "");
  EXPECT_EQ(find_problem("job.create", {{"retries", 256}}), "retries: must be a whole number from 0 to 255, not 256");
  EXPECT_EQ(find_problem("job.create", {{"priority", -101}}),
            "priority: must be a whole number from -100 to 100, not -101");
  EXPECT_EQ(find_problem("job.create", {{"concurrency_limit", 5'000'000'000}}),
            "concurrency_limit: must be a whole number from 1 to 4294967295, not 5000000000");
  EXPECT_EQ(find_problem("job.get", {{"id", true}}), "id: must be an id, or a text \"CALLER:ID\", not true");
  EXPECT_EQ(find_problem("workflow.timeline", {{"workflow", "w"}, {"before", 0}}), "") << "the latest facts";
  EXPECT_THAT(find_problem("job.list", {{"status", "lost"}}), HasSubstr("\"lost\" is not one of: dispatched "));
  EXPECT_THAT(find_problem("job.list", {{"status", "started error"}}), HasSubstr("\"started error\" is not one of: "));
  EXPECT_THAT(find_problem("job.list", {{"status", ""}}), HasSubstr("\"\" is not one of: "));
  EXPECT_EQ(find_problem("runner.update", {{"id", 1}, {"type", ""}}), "") << "it removes the field";
  EXPECT_EQ(find_problem("job.list", {{"status", 1}}).find("status: must be one of: dispatched "), 0U);
  EXPECT_EQ(find_problem("jobs.wait", {{"jobs", json::array()}}),
            "jobs: must be a list of texts with 1 to 1000 entries");
  EXPECT_EQ(find_problem("jobs.wait", {{"jobs", nullptr}}), "jobs: is missing");
  EXPECT_EQ(find_problem("job.get", {{"id", 1}, {"x", 1}}), "x: job.get does not have this parameter");
}

TEST(RequestParams, DefaultsAreThoseOfTheRow) {
  const json values{{"status", "started"}, {"since_ms", 7}, {"caller_id", 12}, {"name", nullptr}};
  const RequestParams params(*find_request("job.list"), values);
  EXPECT_EQ(params.number("limit"), 50U);
  EXPECT_EQ(params.optional_text("name"), std::nullopt);
  const JobFilter filter = parse_job_filter(params);
  EXPECT_EQ(filter.status, JobStatus::started);
  EXPECT_EQ(filter.since_ms, 7U);
  EXPECT_EQ(filter.caller, Id{12});
  EXPECT_EQ(filter.name, "");
}

}  // namespace
}  // namespace mycojobs::service
