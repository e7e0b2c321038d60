#include "store/transfer_store.h"

#include "base/parse.h"
#include "store/keys.h"
#include "store/redis/store_connection.h"

namespace mycojobs {
namespace {

constexpr std::size_t kProcessIdDigits = 32;

std::string channel_prefix(std::uint32_t database) { return kTransferChannel + std::to_string(database) + ':'; }

}  // namespace

std::string transfer_channel(std::uint32_t database, const FileHolder& holder) {
  return channel_prefix(database) + to_string(holder);
}

std::string transfer_channel(std::uint32_t database, const std::string& process_id) {
  return channel_prefix(database) + "to:" + process_id;
}

bool is_receiver_channel(std::uint32_t database, std::string_view channel) {
  const std::string prefix = channel_prefix(database) + "to:";
  return channel.starts_with(prefix) && is_hex(channel.substr(prefix.size()), kProcessIdDigits);
}

Result<std::uint64_t> TransferStore::publish_transfer(Id context, const std::string& channel,
                                                      std::string_view message) {
  MJ_TRY(reply, connection_.command(context, {"PUBLISH", channel, message}));
  return reply.number();
}

}  // namespace mycojobs
