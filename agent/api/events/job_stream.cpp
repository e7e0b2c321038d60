#include "api/events/job_stream.h"

#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "model/codec.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxLinesBatch = 500;
std::string event(std::string_view name, std::uint64_t id, const json& data) {
  return "event: " + std::string(name) + "\nid: " + std::to_string(id) + "\ndata: " + dump_json(data) + "\n\n";
}

}  // namespace

// The state is read before the log: if the state is an end, the log is then complete.
Result<JobStream::Page> JobStream::read() const {
  const json params{{"context_id", request_.context}};
  MJ_TRY(call, MethodCall::begin(services_, params, request_.caller));
  MJ_TRY(job, call.record_refusal(
                  service::inspect_job(call.request_context_of(), call.store(), Action::read, request_.job)));
  MJ_TRY(log, call.store().logs(request_.context, request_.job, after_, kMaxLinesBatch, 0));
  return Page{std::move(job), std::move(log)};
}

JobStream::ReadResult JobStream::say_error(const Error& error) {
  // If the store is unavailable, nothing is sent, and the next poll sends all changes.
  if (error.code == Code::unavailable) return sink_.open() ? ReadResult::nothing : ReadResult::over;
  (void)sink_.send("event: gone\ndata: " + dump_json({{"message", error.message}}) + "\n\n");
  return ReadResult::over;
}

JobStream::ReadResult JobStream::read_next() {
  bool sent = false;
  while (true) {
    auto page = read();  // releases the store, so that a slow client does not block other calls
    if (!page) return say_error(page.error());
    for (const Log& line : page->log.lines) {
      json data = to_json(line);
      data["context"] = request_.context;
      data["job"] = request_.job;
      if (!sink_.send(event("log", line.seq, data))) return ReadResult::over;
      after_ = line.seq;
      sent = true;
    }
    if (page->log.lines.size() >= kMaxLinesBatch) continue;
    json state = status_of(page->job, request_.job);
    state["context"] = request_.context;
    const std::string text = dump_json(state);
    if (text == state_) return sent ? ReadResult::sent : ReadResult::nothing;
    state_ = text;
    return sink_.send(event("job", after_, state)) ? ReadResult::sent : ReadResult::over;
  }
}

}  // namespace mycojobs::api
