#include "transport/local.h"

#include "domain/codec.h"

namespace mycojobs {

Result<std::vector<Delivery>> LocalTransport::receive(const std::string& topic) {
  std::vector<Delivery> out;
  for (Id context : contexts_) {
    MJ_TRY(waiting, store_.topic_pending(context, topic));
    for (std::string& key : waiting) out.push_back({context, std::move(key)});
  }
  return out;
}

Result<void> LocalTransport::send(const Message& message, const std::string& topic) {
  if (message.id == 0 || message.caller_id == 0) return fail(Code::invalid, "message: id or caller_id is missing");
  const Id context = message.target_context != 0 ? message.target_context : message.context_id;
  return store_.topic_send(context, topic, redis_key(message), encode(message));
}

}  // namespace mycojobs
