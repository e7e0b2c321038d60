#include "service/queue_service.h"

#include <algorithm>

#include "store/record_changes.h"
#include "text/utf8.h"

namespace mycojobs::service {

Result<std::string> queue_named(std::string_view text, const std::vector<QueueInfo>& known) {
  if (is_script_type(text)) return queue_key(text);
  if (text.starts_with("queue:") && is_script_type(text.substr(6))) return std::string(text);
  const bool there =
      std::any_of(known.begin(), known.end(), [text](const QueueInfo& info) { return info.queue == text; });
  if (there) return std::string(text);
  return fail(Code::invalid, "queue: " + excerpt(text) +
                                 " is not a queue: give python, queue:python or a key from `mycojobs queue list`");
}

Result<std::vector<QueueInfo>> list_queues(const RequestContext& by, Store& store) {
  MJ_CHECK(check_permission(by, store, Action::read, {.name = "queues"}));
  return store.queues(by.context);
}

Result<PausedQueue> pause_queue(const RequestContext& by, Store& store, std::string_view queue, bool paused) {
  MJ_CHECK(check_permission(by, store, Action::administer, {.name = "queues"}));
  MJ_TRY(known, store.queues(by.context));
  MJ_TRY(key, queue_named(queue, known));
  MJ_TRY(changed, set_queue_paused(store, by.context, key, paused));
  return PausedQueue{std::move(key), changed};
}

Result<std::vector<DeadLetter>> dead_letters(const RequestContext& by, Store& store, std::size_t max) {
  MJ_CHECK(check_permission(by, store, Action::read, {.name = "dead letters"}));
  return store.dead_letters(by.context, max);
}

Result<void> settle_dead_letter(const RequestContext& by, Store& store, const std::string& letter, bool requeue) {
  MJ_CHECK(check_permission(by, store, Action::administer, {.name = "dead letters"}));
  return store.resolve_dead_letter(by.context, letter, requeue);
}

}  // namespace mycojobs::service
