#include "cli/opened.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "base/ids.h"
#include "domain/utf8.h"
#include "inspect/jobs.h"

namespace mycojobs {
Result<Opened> open_store(const Invocation& call, bool with_agent) {
  Opened opened;
  MJ_TRY(session, open_session(call.parts, call.settings, with_agent));
  opened.session = std::move(session);
  MJ_TRY(store, opened.session.stores->open());
  opened.store = std::move(store);
  return opened;
}

void leave_at_stop_signals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stops, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
}

Result<Opened> open_to_answer(const Invocation& call) {
  leave_at_stop_signals();
  return open_store(call, false);
}

void reopen(const Invocation& call, Opened& opened, bool with_agent) {
  if (!call.settings.redis.empty() || opened.session.embedded) return;
  auto again = open_session(call.parts, call.settings, with_agent);
  if (!again) return;
  auto store = again->stores->open();
  if (!store) return;
  opened.store = std::move(*store);
  opened.session = std::move(*again);
}

Id context_of(const Invocation& call) { return call.settings.contexts.at(0); }

Result<Id> id_flag(const Invocation& call, std::string_view flag, Id otherwise) {
  if (!call.has(flag)) return otherwise;
  std::uint64_t id = 0;
  if (!parse_u64(call.get(flag), id) || id == 0 || id > UINT32_MAX)
    return fail(Code::invalid,
                fmt::format("--{}: {} is no id: a whole number from 1 to 4294967295", flag, shown(call.get(flag))));
  return static_cast<Id>(id);
}

Result<service::Caller> who_asks(const Invocation& call) {
  const service::Caller self{context_of(call), kDefaultCaller, WayIn::command, true};
  if (!call.has("actor")) return self;
  MJ_TRY(actor, id_flag(call, "actor", kDefaultCaller));
  return service::as_named(self, actor, "actor");
}

Error as_typed(const Invocation& call, Error error) {
  if (error.code == Code::conflict) error.code = Code::invalid;
  const std::size_t end = error.message.find(':');
  if (end == std::string::npos) return error;
  std::string flag = error.message.substr(0, end);
  std::replace(flag.begin(), flag.end(), '_', '-');
  if (flag == "idempotency-key" && !call.has(flag)) flag = "key";
  if (call.has(flag)) error.message.replace(0, end, "--" + flag);
  return error;
}

Result<std::string> job_argument(const Invocation& call) { return parse_job_key(call.arguments.at(0), kDefaultCaller); }

}  // namespace mycojobs
