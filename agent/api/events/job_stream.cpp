#include "api/events/job_stream.h"

#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "model/codec.h"
#include "store/redis/format_version.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxLinesPerPage = 500;

std::string format_event(std::string_view name, std::uint64_t id, const json& data) {
  return "event: " + std::string(name) + "\nid: " + std::to_string(id) + "\ndata: " + dump_json(data) + "\n\n";
}

}  // namespace

// The state is read before the log: if the state is an end, the log is then complete.
Result<JobStream::Page> JobStream::read() const {
  const json params{{"context_id", request_.context}};
  MJ_TRY(call, MethodCall::create(services_, params, request_.caller));
  MJ_TRY(job,
         call.report_if_denied(service::inspect_job(call.request_context(), call.store(), Action::read, request_.job)));
  MJ_TRY(stored, services_.logs.load(call.store(), request_.context, request_.job, last_seq_, kMaxLinesPerPage, 0));
  call.release_backend();  // disks and other hosts can be slow
  return Page{std::move(job), services_.logs.complete(std::move(stored))};
}

JobStream::ReadResult JobStream::send_error(const Error& error) {
  // If the store is unavailable, nothing is sent, and the next poll sends all changes.
  if (error.code == Code::unavailable) return sink_.is_open() ? ReadResult::unchanged : ReadResult::ended;
  (void)sink_.send("event: gone\ndata: " + dump_json({{"message", describe_to_client(error)}}) + "\n\n");
  return ReadResult::ended;
}

JobStream::ReadResult JobStream::poll() {
  bool sent = false;
  while (true) {
    auto page = read();  // releases the store, so that a slow client does not block other calls
    if (!page) return send_error(page.error());
    for (const Log& line : page->log.lines) {
      json data = to_json(line);
      data["context"] = request_.context;
      data["job"] = request_.job;
      if (!sink_.send(format_event("log", line.seq, data))) return ReadResult::ended;
      last_seq_ = line.seq;
      sent = true;
    }
    if (page->log.lines.size() >= kMaxLinesPerPage) continue;
    json state = job_state_to_json(page->job, request_.job);
    state["context"] = request_.context;
    const std::string text = dump_json(state);
    if (text == last_state_) return sent ? ReadResult::sent : ReadResult::unchanged;
    last_state_ = text;
    return sink_.send(format_event("job", last_seq_, state)) ? ReadResult::sent : ReadResult::ended;
  }
}

}  // namespace mycojobs::api
