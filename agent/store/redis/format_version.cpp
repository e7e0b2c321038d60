#include "store/redis/format_version.h"

#include "base/version.h"

namespace mycojobs {

Result<void> agree_on_format(Id context, Link& link, std::uint32_t own) {
  auto agreed = link.run(scripts::agree_on_format, Arguments{}.add(std::uint64_t{own}).add(kVersion));
  if (agreed) return {};
  constexpr std::string_view kNewer = "redis: MJFORMAT ";  // redis_error() has no row for this word
  const std::string& why = agreed.error().message;
  if (!why.starts_with(kNewer)) return tl::unexpected<Error>(agreed.error());
  return fail(Code::denied, "context " + std::to_string(context) + ": its store has format " +
                                why.substr(kNewer.size()) + ", and this is mycojobs " + kVersion +
                                ", which supports formats up to " + std::to_string(own) +
                                ": nothing was changed; install that version or a newer version");
}

}  // namespace mycojobs
