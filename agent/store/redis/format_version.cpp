#include "store/redis/format_version.h"

#include "base/version.h"

namespace mycojobs {

Result<void> agree_on_format(Id context, Link& link, std::uint32_t supported_format) {
  auto result = link.run(scripts::agree_on_format, Arguments{}.add(std::uint64_t{supported_format}).add(kVersion));
  if (result) return {};
  constexpr std::string_view kNewer = "redis: MJFORMAT ";  // redis_error() has no row for this word
  const std::string& message = result.error().message;
  if (!message.starts_with(kNewer)) return tl::unexpected<Error>(result.error());
  return fail(Code::denied, "context " + std::to_string(context) + ": its store has format " +
                                message.substr(kNewer.size()) + ", and this is mycojobs " + kVersion +
                                ", which supports formats up to " + std::to_string(supported_format) +
                                ": nothing was changed; install that version or a newer version");
}

}  // namespace mycojobs
