#include "api/events/event_stream.h"

#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "flows/flow_progress.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "store/redis/format_version.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFactsPerCommit = 1000;  // exceeds the number of facts that one commit appends
constexpr std::uint32_t kMaxRecentFlows = 200, kMaxActiveFlows = 1000;
constexpr std::size_t kMaxTrackedFlows = 10000;
// Fields of facts that all readers of the context may see. Payloads and results are not sent; methods return them.
constexpr const char* kPublicFields[] = {"status",  "detail", "error", "actor", "comment",
                                         "trigger", "target", "verb",  "flow"};

std::string format_event(std::string_view name, const std::string& id, const json& data) {
  return "event: " + std::string(name) + "\nid: " + id + "\ndata: " + dump_json(data) + "\n\n";
}

json context_params(Id context) { return {{"context_id", context}}; }

Result<std::uint64_t> parse_id_param(const std::map<std::string, std::string>& query, const char* name,
                                     bool is_required) {
  const auto it = query.find(name);
  if (it == query.end()) {
    if (!is_required) return 0;
    return fail(Code::invalid, std::string(name) + ": is missing");
  }
  std::uint64_t number = 0;
  if (!parse_u64(it->second, number) || number == 0 || number > UINT32_MAX)
    return fail(Code::invalid, std::string(name) + ": give a whole number from 1 to 4294967295");
  return number;
}

// Returns the id of the event after which the stream resumes; empty: the stream is new.
std::string get_resume_id(const HttpRequest& http_request) {
  const auto it = http_request.query.find("after");
  return it != http_request.query.end() ? it->second : http_request.header("last-event-id");
}

// Parses the key of the job and the position in its log, and checks the caller's right to read the job.
Result<void> parse_job_request(Services& services, const HttpRequest& http_request, EventRequest& request) {
  const json params{{"context_id", request.context}, {"id", http_request.query.at("job")}};
  MJ_TRY(call, MethodCall::create(services, params, request.caller));
  auto key = call.job_key();
  if (!key) return fail(key.error(), "job");
  request.job = std::move(*key);
  const std::string event_id = get_resume_id(http_request);
  if (!event_id.empty() && !parse_u64(event_id, request.after_seq))
    return fail(Code::invalid, "Last-Event-ID: give the id of an event of this stream");
  MJ_CHECK(
      call.report_if_denied(service::inspect_job(call.request_context(), call.store(), Action::read, request.job)));
  return {};
}

}  // namespace

Result<EventRequest> parse_event_request(Services& services, const HttpRequest& http_request, const RpcCaller& caller) {
  for (const auto& [name, value] : http_request.query) {
    if (name != "context" && name != "flow" && name != "job" && name != "after" && name != "overview")
      return fail(Code::invalid, name.substr(0, 40) + ": there are context, flow, job, overview and after");
  }
  EventRequest request;
  MJ_TRY(context, parse_id_param(http_request.query, "context", services.settings.contexts.empty()));
  MJ_TRY(flow, parse_id_param(http_request.query, "flow", false));
  request.context = static_cast<Id>(context == 0 ? services.settings.contexts.front() : context);
  request.flow = static_cast<Id>(flow);
  request.caller = caller;
  request.overview = http_request.query.contains("overview");
  if (request.overview && (request.flow != 0 || http_request.query.contains("job")))
    return fail(Code::invalid, "overview: cannot be combined with flow or job: use one of them");
  if (http_request.query.contains("job")) {
    if (request.flow != 0) return fail(Code::invalid, "job: is given beside flow: give one or the other");
    MJ_CHECK(parse_job_request(services, http_request, request));
    return request;
  }
  const std::string event_id = get_resume_id(http_request);
  if (!event_id.empty() && !request.overview) {
    std::uint64_t number = 0;
    if (!parse_u64(event_id.substr(0, request.flow == 0 ? event_id.find('.') : std::string::npos), number))
      return fail(Code::invalid, "Last-Event-ID: give the id of an event of this stream");
    (request.flow == 0 ? request.since_ms : request.after_revision) = number;
  }
  const json params = context_params(request.context);
  MJ_TRY(call, MethodCall::create(services, params, caller));
  if (request.flow == 0) {
    MJ_CHECK(call.report_if_denied(service::check_permission(call.request_context(), call.store(), Action::read)));
    return request;
  }
  MJ_CHECK(call.report_if_denied(service::read_flow(call.request_context(), call.store(), request.flow)));
  return request;
}

std::string EventStream::format_event_id(std::uint64_t at_ms, Id flow, std::uint64_t revision) const {
  if (request_.flow != 0) return std::to_string(revision);
  return std::to_string(at_ms) + '.' + std::to_string(flow) + '.' + std::to_string(revision);
}

bool EventStream::heartbeat() { return has_read_permission() && sink_.send(": heartbeat\n\n"); }

// Returns false if the stream must end. While the store is unavailable, the client receives a comment, and the stream
// reads again after the next hint.
bool EventStream::send_error(const Error& error) {
  if (error.code == Code::unavailable) return sink_.send(": " + dump_json(json(describe_to_client(error))) + "\n\n");
  (void)sink_.send("event: gone\ndata: " + dump_json({{"message", describe_to_client(error)}}) + "\n\n");
  return false;
}

Result<void> EventStream::check_permission() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::create(services_, params, request_.caller));
  if (request_.flow == 0)
    return call.report_if_denied(service::check_permission(call.request_context(), call.store(), Action::read));
  MJ_CHECK(call.report_if_denied(service::read_flow(call.request_context(), call.store(), request_.flow)));
  return {};
}

// Checks the caller's right to read and that the flow exists. Checks at most once a second, since each check is a round
// trip to the store.
bool EventStream::has_read_permission() {
  constexpr std::chrono::seconds kCheckInterval{1};
  const auto now = std::chrono::steady_clock::now();
  if (now - permission_checked_at_ < kCheckInterval) return true;
  if (auto result = check_permission(); !result) return send_error(result.error());
  permission_checked_at_ = now;
  return true;
}

Result<std::uint64_t> EventStream::read_store_time() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::create(services_, params, request_.caller));
  MJ_TRY(flows, call.open_flow_store());
  return flows->now_ms(request_.context);
}

bool EventStream::begin() {
  if (!sink_.send("retry: 1000\n\n")) return false;
  if (request_.flow != 0) return send_new_facts(request_.flow, request_.after_revision.value_or(UINT64_MAX));
  if (request_.since_ms) {
    since_ms_ = *request_.since_ms;
    return send_recent_flows();
  }
  const auto now = read_store_time();
  if (!now) return send_error(now.error());
  since_ms_ = *now;
  // Sets the client's Last-Event-ID, so that a client that reconnects before the first event misses nothing.
  return sink_.send("id: " + format_event_id(*now, 0, 0) + "\n\n");
}

Result<std::set<Id>> EventStream::find_recent_flows() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::create(services_, params, request_.caller));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(active, flows->active_flows(request_.context, 0, kMaxActiveFlows));
  MJ_TRY(recent, flows->list(request_.context, "", 0, kMaxRecentFlows));
  std::set<Id> ids(active.begin(), active.end());
  for (const FlowSummary& row : recent) {
    if (!row.record.empty()) ids.insert(row.flow);
  }
  return ids;
}

bool EventStream::send_recent_flows() {
  const auto ids = find_recent_flows();
  if (!ids) return send_error(ids.error());
  for (const Id flow : *ids) {
    const auto it = sent_revisions_.find(flow);
    if (!send_new_facts(flow, it == sent_revisions_.end() ? 0 : it->second)) return false;
  }
  return true;
}

bool EventStream::send_changes(const std::deque<std::pair<Id, std::uint64_t>>& changes, bool recheck_all) {
  if (!has_read_permission()) return false;
  if (recheck_all && request_.flow == 0 && !send_recent_flows()) return false;
  if (recheck_all && request_.flow != 0) return send_new_facts(request_.flow, sent_revisions_[request_.flow]);
  for (const auto& [flow, revision] : changes) {
    const auto it = sent_revisions_.find(flow);
    if (it != sent_revisions_.end() && it->second >= revision) continue;
    const std::uint64_t after = it != sent_revisions_.end()     ? it->second
                                : revision > kMaxFactsPerCommit ? revision - kMaxFactsPerCommit
                                                                : 0;
    if (!send_new_facts(flow, after)) return false;
  }
  return true;
}

Result<EventStream::Page> EventStream::read_page(Id flow, std::uint64_t after) {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::create(services_, params, request_.caller));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(result, flows->read(request_.context, flow, after));
  Page page;
  page.is_deleted = result.record.empty();
  if (page.is_deleted) return page;
  auto run = load_run(*flows, request_.context, flow, call.run_cache());
  for (const RunFact& fact : result.facts) {
    page.last_revision = fact.revision;
    if (fact.at_ms < since_ms_) continue;
    json data{{"context", request_.context},
              {"flow", flow},
              {"revision", fact.revision},
              {"at_ms", fact.at_ms},
              {"kind", fact.kind}};
    if (fact.node && run && *fact.node < run->plan->nodes.size()) {
      data["node"] = run->plan->nodes[*fact.node].name;
      data["node_status"] = to_string(run->state.nodes[*fact.node].status);
      if (*fact.node < run->record.jobs.size()) data["job"] = run->record.jobs[*fact.node];
    }
    const auto details = parse_json(fact.data_json.empty() ? "{}" : fact.data_json);
    for (const char* name : kPublicFields) {
      if (details && details->is_object() && details->contains(name)) data[name] = (*details)[name];
    }
    page.events.push_back(format_event("fact", format_event_id(fact.at_ms, flow, fact.revision), data));
  }
  if (run) call.run_cache().cache_run(request_.context, flow, std::move(*run));
  page.has_more = result.has_more && !result.facts.empty();
  if (page.has_more) return page;
  page.last_revision = result.revision;
  const Flow record = decode<Flow>(result.record).record;
  page.events.push_back(format_event("flow", format_event_id(result.now_ms, flow, result.revision),
                                     {{"context", request_.context},
                                      {"flow", flow},
                                      {"revision", result.revision},
                                      {"status", to_string(record.status)},
                                      {"detail", record.detail},
                                      {"error", record.error}}));
  return page;
}

bool EventStream::send_new_facts(Id flow, std::uint64_t after) {
  for (bool has_more = true; has_more;) {
    auto page = read_page(flow, after);  // releases the store, so that a slow client does not block other calls
    if (!page) return send_error(page.error());
    if (page->is_deleted) return request_.flow == 0 || send_error({Code::not_found, "the flow was deleted"});
    for (const std::string& text : page->events) {
      if (!sink_.send(text)) return false;
    }
    after = page->last_revision;
    has_more = page->has_more;
  }
  if (sent_revisions_.size() >= kMaxTrackedFlows) sent_revisions_.clear();
  sent_revisions_[flow] = after;
  return true;
}

}  // namespace mycojobs::api
