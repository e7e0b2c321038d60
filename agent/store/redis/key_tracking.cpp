#include "store/redis/key_tracking.h"

#include <utility>

namespace mycojobs {
namespace {

Result<std::optional<Error>> find_refusal(Result<Reply> reply, const RedisConnection& connection) {
  if (reply) return std::optional<Error>();
  if (!connection.connected()) return tl::unexpected<Error>(std::move(reply).error());
  return std::optional<Error>(std::move(reply).error());
}

}  // namespace

Result<std::optional<Error>> track_keys(RedisConnection& connection, const std::set<std::string>& names) {
  auto reply = connection.command({"CLIENT", "ID"});
  if (reply) {
    Arguments track{"CLIENT", "TRACKING", "ON", "REDIRECT"};
    track.add(reply->number()).add("BCAST");
    // The server rejects prefixes of which one begins with another. In the order of the set, such a prefix comes first.
    const std::string* prefix = nullptr;
    for (const std::string& name : names) {
      if (prefix != nullptr && name.starts_with(*prefix)) continue;
      prefix = &name;
      track.add("PREFIX").add(name);
    }
    reply = connection.command(track);
  }
  return find_refusal(std::move(reply), connection);
}

Result<std::optional<Error>> track_read_keys(RedisConnection& reader, RedisConnection& receiver) {
  auto id = receiver.command({"CLIENT", "ID"});
  if (!id) return find_refusal(std::move(id), receiver);
  Arguments track{"CLIENT", "TRACKING", "ON", "REDIRECT"};
  track.add(id->number());
  return find_refusal(reader.command(track), reader);
}

}  // namespace mycojobs
