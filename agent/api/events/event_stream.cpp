#include "api/events/event_stream.h"

#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "flows/flow_progress.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::uint64_t kFactsOfACommit = 1000;  // exceeds the number of facts that one commit appends
constexpr std::uint32_t kRecent = 200, kActive = 1000;
constexpr std::size_t kMaxSent = 10000;
// Fields of facts that all readers of the context may see. Payloads and results are not sent; methods return them.
constexpr const char* kShown[] = {"status", "detail", "error", "actor", "comment", "trigger", "target", "verb", "flow"};

std::string event(std::string_view name, const std::string& id, const json& data) {
  return "event: " + std::string(name) + "\nid: " + id + "\ndata: " + dump_json(data) + "\n\n";
}

json context_params(Id context) { return {{"context_id", context}}; }

Result<std::uint64_t> number_of(const std::map<std::string, std::string>& query, const char* name, bool needed) {
  const auto found = query.find(name);
  if (found == query.end()) {
    if (!needed) return 0;
    return fail(Code::invalid, std::string(name) + ": is missing");
  }
  std::uint64_t number = 0;
  if (!parse_u64(found->second, number) || number == 0 || number > UINT32_MAX)
    return fail(Code::invalid, std::string(name) + ": give a whole number from 1 to 4294967295");
  return number;
}

// Parses the key of the job and the position in its log, and checks the caller's right to read the job.
Result<void> read_job_request(Services& services, const HttpRequest& from, EventRequest& request) {
  const json params{{"context_id", request.context}, {"id", from.query.at("job")}};
  MJ_TRY(call, MethodCall::begin(services, params, request.caller));
  auto key = call.job_key();
  if (!key) return fail(key.error(), "job");
  request.job = std::move(*key);
  const auto given = from.query.find("after");
  const std::string last = given != from.query.end() ? given->second : from.header("last-event-id");
  if (!last.empty() && !parse_u64(last, request.after_seq))
    return fail(Code::invalid, "Last-Event-ID: give the id of an event of this stream");
  MJ_CHECK(
      call.record_refusal(service::inspect_job(call.request_context_of(), call.store(), Action::read, request.job)));
  return {};
}

}  // namespace

Result<EventRequest> read_event_request(Services& services, const HttpRequest& from, const RpcCaller& caller) {
  for (const auto& [name, value] : from.query) {
    if (name != "context" && name != "flow" && name != "job" && name != "after" && name != "overview")
      return fail(Code::invalid, name.substr(0, 40) + ": there are context, flow, job, overview and after");
  }
  EventRequest request;
  MJ_TRY(context, number_of(from.query, "context", services.settings.contexts.empty()));
  MJ_TRY(flow, number_of(from.query, "flow", false));
  request.context = static_cast<Id>(context == 0 ? services.settings.contexts.front() : context);
  request.flow = static_cast<Id>(flow);
  request.caller = caller;
  request.overview = from.query.contains("overview");
  if (request.overview && (request.flow != 0 || from.query.contains("job")))
    return fail(Code::invalid, "overview: cannot be combined with flow or job: use one of them");
  if (from.query.contains("job")) {
    if (request.flow != 0) return fail(Code::invalid, "job: is given beside flow: give one or the other");
    MJ_CHECK(read_job_request(services, from, request));
    return request;
  }
  const auto given = from.query.find("after");
  const std::string last = given != from.query.end() ? given->second : from.header("last-event-id");
  if (!last.empty() && !request.overview) {
    std::uint64_t number = 0;
    if (!parse_u64(last.substr(0, request.flow == 0 ? last.find('.') : std::string::npos), number))
      return fail(Code::invalid, "Last-Event-ID: give the id of an event of this stream");
    (request.flow == 0 ? request.since_ms : request.after_revision) = number;
  }
  const json params = context_params(request.context);
  MJ_TRY(call, MethodCall::begin(services, params, caller));
  if (request.flow == 0) {
    MJ_CHECK(call.record_refusal(service::check_permission(call.request_context_of(), call.store(), Action::read)));
    return request;
  }
  MJ_CHECK(call.record_refusal(service::read_flow(call.request_context_of(), call.store(), request.flow)));
  return request;
}

std::string EventStream::id_of(std::uint64_t at_ms, Id flow, std::uint64_t revision) const {
  if (request_.flow != 0) return std::to_string(revision);
  return std::to_string(at_ms) + '.' + std::to_string(flow) + '.' + std::to_string(revision);
}

bool EventStream::heartbeat() { return check_read_permission() && sink_.send(": heartbeat\n\n"); }

// Returns false if the stream must end. If the store is only unavailable, the client receives a comment, and the stream
// reads again after the next hint.
bool EventStream::send_error(const Error& error) {
  if (error.code == Code::unavailable) return sink_.send(": " + dump_json(json(error.message)) + "\n\n");
  (void)sink_.send("event: gone\ndata: " + dump_json({{"message", error.message}}) + "\n\n");
  return false;
}

Result<void> EventStream::check_right() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::begin(services_, params, request_.caller));
  if (request_.flow == 0)
    return call.record_refusal(service::check_permission(call.request_context_of(), call.store(), Action::read));
  MJ_CHECK(call.record_refusal(service::read_flow(call.request_context_of(), call.store(), request_.flow)));
  return {};
}

// Checks that the caller may still read, and that the flow exists. Checks at most once a second, since each check is a
// round trip to the store.
bool EventStream::check_read_permission() {
  constexpr std::chrono::seconds kFresh{1};
  const auto now = std::chrono::steady_clock::now();
  if (now - asked_ < kFresh) return true;
  if (auto may = check_right(); !may) return send_error(may.error());
  asked_ = now;
  return true;
}

Result<std::uint64_t> EventStream::store_now() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::begin(services_, params, request_.caller));
  MJ_TRY(flows, call.flows());
  return flows->now_ms(request_.context);
}

bool EventStream::begin() {
  if (!sink_.send("retry: 1000\n\n")) return false;
  if (request_.flow != 0) return catch_up(request_.flow, request_.after_revision.value_or(UINT64_MAX));
  if (request_.since_ms) {
    since_ms_ = *request_.since_ms;
    return skip_to_recent();
  }
  const auto now = store_now();
  if (!now) return send_error(now.error());
  since_ms_ = *now;
  // Sets the client's Last-Event-ID, so that a client that reconnects before the first event misses nothing.
  return sink_.send("id: " + id_of(*now, 0, 0) + "\n\n");
}

Result<std::set<Id>> EventStream::recent_flows() {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::begin(services_, params, request_.caller));
  MJ_TRY(flows, call.flows());
  MJ_TRY(active, flows->active(request_.context, 0, kActive));
  MJ_TRY(recent, flows->list(request_.context, "", 0, kRecent));
  std::set<Id> ids(active.begin(), active.end());
  for (const FlowSummary& row : recent) {
    if (!row.record.empty()) ids.insert(row.flow);
  }
  return ids;
}

bool EventStream::skip_to_recent() {
  const auto ids = recent_flows();
  if (!ids) return send_error(ids.error());
  for (const Id flow : *ids) {
    const auto sent = sent_.find(flow);
    if (!catch_up(flow, sent == sent_.end() ? 0 : sent->second)) return false;
  }
  return true;
}

bool EventStream::follow(const std::deque<std::pair<Id, std::uint64_t>>& moved, bool recheck_all) {
  if (!check_read_permission()) return false;
  if (recheck_all && request_.flow == 0 && !skip_to_recent()) return false;
  if (recheck_all && request_.flow != 0) return catch_up(request_.flow, sent_[request_.flow]);
  for (const auto& [flow, revision] : moved) {
    const auto sent = sent_.find(flow);
    if (sent != sent_.end() && sent->second >= revision) continue;
    const std::uint64_t after = sent != sent_.end()          ? sent->second
                                : revision > kFactsOfACommit ? revision - kFactsOfACommit
                                                             : 0;
    if (!catch_up(flow, after)) return false;
  }
  return true;
}

Result<EventStream::Page> EventStream::read_page(Id flow, std::uint64_t after) {
  const json params = context_params(request_.context);
  MJ_TRY(call, MethodCall::begin(services_, params, request_.caller));
  MJ_TRY(flows, call.flows());
  MJ_TRY(read, flows->read(request_.context, flow, after));
  Page page;
  page.gone = read.record.empty();
  if (page.gone) return page;
  auto run = load_run(*flows, request_.context, flow, call.runs());
  for (const RunFact& fact : read.facts) {
    page.last = fact.revision;
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
    const auto carried = parse_json(fact.more.empty() ? "{}" : fact.more);
    for (const char* name : kShown) {
      if (carried && carried->is_object() && carried->contains(name)) data[name] = (*carried)[name];
    }
    page.events.push_back(event("fact", id_of(fact.at_ms, flow, fact.revision), data));
  }
  if (run) call.runs().cache_run(request_.context, flow, std::move(*run));
  page.more = read.more && !read.facts.empty();
  if (page.more) return page;
  page.last = read.revision;
  const Flow record = decode<Flow>(read.record).record;
  page.events.push_back(event("flow", id_of(read.now_ms, flow, read.revision),
                              {{"context", request_.context},
                               {"flow", flow},
                               {"revision", read.revision},
                               {"status", to_string(record.status)},
                               {"detail", record.detail},
                               {"error", record.error}}));
  return page;
}

bool EventStream::catch_up(Id flow, std::uint64_t after) {
  for (bool more = true; more;) {
    auto page = read_page(flow, after);  // releases the store, so that a slow client does not block other calls
    if (!page) return send_error(page.error());
    if (page->gone) return request_.flow == 0 || send_error({Code::not_found, "the flow was deleted"});
    for (const std::string& text : page->events) {
      if (!sink_.send(text)) return false;
    }
    after = page->last;
    more = page->more;
  }
  if (sent_.size() >= kMaxSent) sent_.clear();
  sent_[flow] = after;
  return true;
}

}  // namespace mycojobs::api
