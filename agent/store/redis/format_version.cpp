#include "store/redis/format_version.h"

#include "base/parse.h"
#include "base/version.h"

namespace mycojobs {

Result<void> agree_on_format(Id context, Link& link, SupportedFormats supported) {
  auto result =
      link.run(scripts::agree_on_format,
               Arguments{}.add(std::uint64_t{supported.oldest}).add(std::uint64_t{supported.newest}).add(kVersion));
  if (result) return {};
  constexpr std::string_view kMismatch = "redis: MJFORMAT ";  // redis_error() has no row for this word
  const std::string& message = result.error().message;
  if (!message.starts_with(kMismatch)) return tl::unexpected<Error>(result.error());
  const std::string stored = message.substr(kMismatch.size());  // "1 of mycojobs 0.1.0"
  std::uint64_t stored_format = 0;
  (void)parse_u64(stored.substr(0, stored.find(' ')), stored_format);
  const bool is_older = stored_format < supported.oldest;
  return fail(Code::denied, "context " + std::to_string(context) + ": its store has format " + stored +
                                ", and this is mycojobs " + kVersion + ", which supports formats " +
                                (is_older ? "from " + std::to_string(supported.oldest)
                                          : "up to " + std::to_string(supported.newest)) +
                                ": nothing was changed; " +
                                (is_older ? "end its jobs with that version, then use an empty database"
                                          : "install that version or a newer version"));
}

}  // namespace mycojobs
