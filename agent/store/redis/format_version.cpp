#include "store/redis/format_version.h"

#include "base/parse.h"
#include "base/version.h"

namespace mycojobs {

namespace {

constexpr std::string_view kOtherContextText = ": its database belongs to context ";
constexpr std::string_view kOtherFormatText = ": its store has format ";

// Describes a database of another context. `stored`: the id of that context, and the word "record" if the database has
// its record and no stored id.
tl::unexpected<Error> other_context_error(Id context, const std::string& stored) {
  const std::string own_id = std::to_string(context);
  const std::string other_id = stored.substr(0, stored.find(' '));
  const bool is_record = stored.size() > other_id.size();
  return fail(Code::denied,
              "context " + own_id + std::string(kOtherContextText) + other_id +
                  (is_record ? ", whose record context:" + other_id + " it has, and not context:" + own_id : "") +
                  ", and a database holds one context: nothing was changed; set contexts." + own_id +
                  ".redis or contexts." + other_id + ".redis to another server or database" +
                  (is_record ? ", or delete the record if it was written by mistake" : ""));
}

}  // namespace

Result<void> agree_on_format(Id context, Link& link, SupportedFormats supported) {
  auto result = link.run(scripts::agree_on_format, Arguments{}
                                                       .add(std::uint64_t{supported.oldest})
                                                       .add(std::uint64_t{supported.newest})
                                                       .add(kVersion)
                                                       .add(std::uint64_t{context}));
  if (result) return {};
  constexpr std::string_view kOtherContext = "redis: MJCONTEXT ";  // redis_error() has no row for this word
  if (result.error().message.starts_with(kOtherContext))
    return other_context_error(context, result.error().message.substr(kOtherContext.size()));
  constexpr std::string_view kMismatch = "redis: MJFORMAT ";  // redis_error() has no row for this word
  const std::string& message = result.error().message;
  if (!message.starts_with(kMismatch)) return tl::unexpected<Error>(result.error());
  const std::string stored = message.substr(kMismatch.size());  // "1 of mycojobs 0.1.0"
  std::uint64_t stored_format = 0;
  (void)parse_u64(stored.substr(0, stored.find(' ')), stored_format);
  const bool is_older = stored_format < supported.oldest;
  return fail(Code::denied, "context " + std::to_string(context) + std::string(kOtherFormatText) + stored +
                                ", and this is mycojobs " + kVersion + ", which supports formats " +
                                (is_older ? "from " + std::to_string(supported.oldest)
                                          : "up to " + std::to_string(supported.newest)) +
                                ": nothing was changed; " +
                                (is_older ? "end its jobs with that version, then use an empty database"
                                          : "install that version or a newer version"));
}

bool is_other_context_error(const Error& error) {
  return error.code == Code::denied && error.message.find(kOtherContextText) != std::string::npos;
}

bool is_rejected_database_error(const Error& error) {
  return is_other_context_error(error) ||
         (error.code == Code::denied && error.message.find(kOtherFormatText) != std::string::npos);
}

}  // namespace mycojobs
