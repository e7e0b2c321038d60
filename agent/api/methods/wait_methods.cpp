// The methods jobs.wait and flows.wait: one call waits for several jobs or flows.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"
#include "api/methods/job_methods.h"
#include "api/methods/wait_methods.h"
#include "inspect/job_view.h"

namespace mycojobs::api {
namespace wait_methods {

using nlohmann::json;

constexpr std::uint32_t kMinPauseMs = 10, kMaxPauseMs = 250;
constexpr std::uint64_t kPauseFactor = 10;  // pause after a poll, in durations of the poll

std::string element_path(const char* list, std::size_t i) { return std::string(list) + '[' + std::to_string(i) + ']'; }

// Calls poll() until it returns ended jobs or flows, or until the deadline. Pauses grow with the duration of poll(), so
// that a call with many ids uses the store at most a tenth of the time.
template <class Poll>
Result<json> poll_until_ended(MethodCall& call, Poll&& poll) {
  const auto now = [&call] { return call.services().clock.boot_ms(); };
  const std::uint64_t deadline = get_wait_deadline(call);
  std::uint64_t min_pause = kMinPauseMs;
  while (true) {
    const std::uint64_t poll_start = now();
    Result<json> ended = poll();
    const std::uint64_t poll_end = now();
    if (!ended || !ended->empty() || poll_end >= deadline) return ended;
    const std::uint64_t pause = std::max(min_pause, (poll_end - poll_start) * kPauseFactor);
    MJ_CHECK(call.release_backend_and_sleep(static_cast<std::uint32_t>(std::min(pause, deadline - poll_end))));
    min_pause = std::min<std::uint64_t>(min_pause * 2, kMaxPauseMs);
  }
}

Result<json> wait_for_jobs(MethodCall& call) {
  const json& list = call.params().at("jobs");
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_string()) return fail(Code::invalid, element_path("jobs", i) + ": must be a text \"CALLER:ID\"");
    auto key = parse_job_key(list[i].get<std::string>(), call.actor());
    if (!key) return fail(key.error(), element_path("jobs", i));
    keys.push_back(std::move(*key));
  }
  return poll_until_ended(call, [&call, &keys]() -> Result<json> {
    json ended = json::array();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto job = service::inspect_job(call.request_context(), call.store(), Action::read, keys[i]);
      if (!job) return fail(job.error(), element_path("jobs", i));
      json state = job_state_to_json(*job, keys[i]);
      if (state.at("ended") == true) ended.push_back(std::move(state));
    }
    return ended;
  });
}

Result<json> wait_for_flows(MethodCall& call) {
  const json& list = call.params().at("flows");
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_unsigned() || list[i] == 0U || list[i] > UINT32_MAX)
      return fail(Code::invalid, element_path("flows", i) + ": must be a flow's id");
  }
  return poll_until_ended(call, [&call, &list]() -> Result<json> {
    json ended = json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto flow = service::read_flow(call.request_context(), call.store(), list[i].get<Id>());
      if (!flow) return fail(flow.error(), element_path("flows", i));
      json result = flow_result_to_json(*flow);
      if (result.at("ended") == true) ended.push_back(std::move(result));
    }
    return ended;
  });
}

}  // namespace wait_methods

std::uint64_t get_wait_deadline(const MethodCall& call) {
  return call.services().clock.boot_ms() + call.number("wait_ms");
}

void add_wait_methods(Services& services, std::vector<Method>& methods) {
  using namespace wait_methods;
  bind_methods(services, {{"jobs.wait", wait_for_jobs}, {"flows.wait", wait_for_flows}}, methods);
}

}  // namespace mycojobs::api
