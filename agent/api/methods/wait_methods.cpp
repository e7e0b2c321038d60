// The methods jobs.wait and flows.wait: one call waits for several jobs or flows.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"
#include "api/methods/job_methods.h"
#include "api/methods/wait_methods.h"
#include "inspect/job_view.h"

namespace mycojobs::api {
namespace waits_methods {

using nlohmann::json;

constexpr std::size_t kMaxWaited = 1000;
constexpr std::uint32_t kMaxWaitMs = 3'600'000, kFirstPauseMs = 10, kMaxPauseMs = 250;
constexpr std::uint64_t kPauseForCheck = 10;  // pause after a poll, in durations of the poll

std::string at(const char* list, std::size_t i) { return std::string(list) + '[' + std::to_string(i) + ']'; }

// Returns a list parameter. Error `invalid`: the list is empty or too long.
Result<json> waited_for(const MethodCall& call, const char* name) {
  const json& list = call.params().at(name);
  if (list.empty() || list.size() > kMaxWaited)
    return fail(Code::invalid, std::string(name) + ": give 1 to " + std::to_string(kMaxWaited));
  return list;
}

// Calls look() repeatedly, until it returns ended jobs or flows, or until the deadline. Pauses grow with the duration
// of look(), so that a call with many ids uses the store at most a tenth of the time.
template <class Look>
Result<json> until_some(MethodCall& call, Look&& look) {
  const auto now = [&call] { return call.services().clock.boot_ms(); };
  const std::uint64_t until = end_of_wait(call);
  std::uint64_t pause = kFirstPauseMs;
  while (true) {
    const std::uint64_t began = now();
    Result<json> ended = look();
    const std::uint64_t after = now();
    if (!ended || !ended->empty() || after >= until) return ended;
    const std::uint64_t min = std::max(pause, (after - began) * kPauseForCheck);
    MJ_CHECK(call.rest(static_cast<std::uint32_t>(std::min(min, until - after))));
    pause = std::min<std::uint64_t>(pause * 2, kMaxPauseMs);
  }
}

Result<json> wait_for_jobs(MethodCall& call) {
  MJ_TRY(list, waited_for(call, "jobs"));
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) return fail(Code::invalid, at("jobs", i) + ": must be a text \"CALLER:ID\"");
    auto key = parse_job_key(list[i].get<std::string>(), call.actor());
    if (!key) return fail(key.error(), at("jobs", i));
    keys.push_back(std::move(*key));
  }
  return until_some(call, [&call, &keys]() -> Result<json> {
    json ended = json::array();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto job = service::inspect_job(call.request_context_of(), call.store(), Action::read, keys[i]);
      if (!job) return fail(job.error(), at("jobs", i));
      json state = status_of(*job, keys[i]);
      if (state.at("ended") == true) ended.push_back(std::move(state));
    }
    return ended;
  });
}

Result<json> wait_for_flows(MethodCall& call) {
  MJ_TRY(list, waited_for(call, "flows"));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_unsigned() || list[i] == 0U || list[i] > UINT32_MAX)
      return fail(Code::invalid, at("flows", i) + ": must be a flow's id");
  }
  return until_some(call, [&call, &list]() -> Result<json> {
    json ended = json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto flow = service::read_flow(call.request_context_of(), call.store(), list[i].get<Id>());
      if (!flow) return fail(flow.error(), at("flows", i));
      json result = result_of_flow(*flow);
      if (result.at("ended") == true) ended.push_back(std::move(result));
    }
    return ended;
  });
}

}  // namespace waits_methods

Param wait_param() { return {"wait_ms", "ms", "answer after this time at the latest (600000; 3600000 at most)"}; }

std::uint64_t end_of_wait(const MethodCall& call) {
  return call.services().clock.boot_ms() +
         std::min<std::uint64_t>(call.number("wait_ms", 600'000), waits_methods::kMaxWaitMs);
}

void add_wait_methods(Services& s, std::vector<Method>& all) {
  using namespace waits_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  all.push_back(method(s, "jobs.wait", "wait until one of many jobs has ended",
                       {{"jobs", "texts", "\"CALLER:ID\" of each, 1000 at most", true}, context, wait_param()},
                       "[JobState]: those that have ended; none if the wait was over first", wait_for_jobs));
  all.push_back(method(s, "flows.wait", "wait until one of many flows has ended",
                       {{"flows", "ids", "their ids, 1000 at most", true}, context, wait_param()},
                       "[FlowResult]: those that have ended; none if the wait was over first", wait_for_flows));
}

}  // namespace mycojobs::api
