#include "store/ticket_key_store.h"

#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {

Result<void> TicketKeyStore::store_ticket_key(Id context, const std::string& public_key, std::uint64_t ttl_ms) {
  MJ_CHECK(connection_.command(context, {"SET", kTicketKeyKey + public_key, "1", "PX", std::to_string(ttl_ms)}));
  return {};
}

Result<bool> TicketKeyStore::has_ticket_key(Id context, const std::string& public_key) {
  MJ_TRY(reply, connection_.command(context, {"EXISTS", kTicketKeyKey + public_key}));
  return reply.number() == 1;
}

}  // namespace mycojobs
