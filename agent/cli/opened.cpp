#include "cli/opened.h"

#include <csignal>

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

Result<std::string> job_argument(const Invocation& call) { return parse_job_key(call.arguments.at(0), kDefaultCaller); }

}  // namespace mycojobs
