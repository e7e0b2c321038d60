#include "store/redis/format_version.h"

#include <chrono>
#include <map>
#include <mutex>

#include "base/log.h"
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

Result<void> agree_on_format(Id context, Link& link, std::uint32_t database, SupportedFormats supported) {
  auto result = link.run(scripts::agree_on_format, Arguments{}
                                                       .add(std::uint64_t{supported.oldest})
                                                       .add(std::uint64_t{supported.newest})
                                                       .add(kVersion)
                                                       .add(std::uint64_t{context})
                                                       .add(std::uint64_t{database}));
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

std::string describe_to_client(const Error& error) {
  // The code is not compared, since it may be that of an operation that failed for this reason.
  if (error.message.find(kOtherContextText) == std::string::npos &&
      error.message.find(kOtherFormatText) == std::string::npos)
    return error.message;
  constexpr std::size_t kMaxMessages = 1000;
  static std::mutex mutex;
  static std::map<std::string, std::chrono::steady_clock::time_point> logged;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex);
  if (logged.size() >= kMaxMessages) logged.clear();
  const auto [entry, is_new] = logged.try_emplace(error.message, now);
  if (is_new || now - entry->second >= std::chrono::minutes(1)) {
    entry->second = now;
    log(LogLevel::error, "store", "{}", error.message);
  }
  return "the database of this context cannot be used: see the log of the server";
}

}  // namespace mycojobs
