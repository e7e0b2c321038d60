#include "service/queue_service.h"

#include <algorithm>

#include "text/utf8.h"

namespace mycojobs::service {

Result<std::string> resolve_queue_key(std::string_view text, const std::vector<QueueInfo>& queues) {
  if (is_script_type(text)) return queue_key(text);
  if (text.starts_with("queue:") && is_script_type(text.substr(6))) return std::string(text);
  const bool exists =
      std::any_of(queues.begin(), queues.end(), [text](const QueueInfo& info) { return info.queue == text; });
  if (exists) return std::string(text);
  return fail(Code::invalid, "queue: " + excerpt(text) +
                                 " is not a queue: give python, queue:python or a key from `mycojobs queue list`");
}

Result<std::vector<QueueInfo>> list_queues(const RequestContext& caller, Store& store) {
  MJ_CHECK(check_permission(caller, store, Action::read, {.name = "queues"}));
  return store.queues(caller.context);
}

Result<PausedQueue> pause_queue(const RequestContext& caller, Store& store, std::string_view queue, bool paused) {
  MJ_CHECK(check_permission(caller, store, Action::administer, {.name = "queues"}));
  MJ_TRY(queues, store.queues(caller.context));
  MJ_TRY(key, resolve_queue_key(queue, queues));
  MJ_TRY(is_changed, store.set_queue_paused(caller.context, key, paused));
  return PausedQueue{std::move(key), is_changed};
}

Result<std::vector<DeadLetter>> dead_letters(const RequestContext& caller, Store& store, std::size_t max) {
  MJ_CHECK(check_permission(caller, store, Action::read, {.name = "dead letters"}));
  return store.dead_letters(caller.context, max);
}

Result<void> settle_dead_letter(const RequestContext& caller, Store& store, const std::string& letter, bool requeue) {
  MJ_CHECK(check_permission(caller, store, Action::administer, {.name = "dead letters"}));
  return store.resolve_dead_letter(caller.context, letter, requeue);
}

}  // namespace mycojobs::service
