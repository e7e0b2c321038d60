#include "api/auth/sessions.h"

#include <sodium.h>

#include <algorithm>

#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"

namespace mycojobs::api {
namespace {

constexpr std::string_view kSessionPrefix = "mjs_";
constexpr std::size_t kRandomBytes = 32, kMaxSessionTokenBytes = 128, kMaxChallengeBytes = 200;

}  // namespace

Sessions::Sessions(const Clock& clock, SessionLimits limits)
    : clock_(clock), limits_(limits), secret_(random_bytes(crypto_auth_KEYBYTES)) {}

std::string Sessions::mac(std::string_view text) const {
  std::string out(crypto_auth_BYTES, '\0');
  ::crypto_auth(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(text.data()),
                text.size(), reinterpret_cast<const unsigned char*>(secret_.data()));
  return to_hex(out);
}

// Format: RANDOM.UNTIL.MAC, with the expiry time in milliseconds since boot.
Sessions::Challenge Sessions::challenge() const {
  const std::string random_until =
      random_hex(kRandomBytes) + '.' + std::to_string(clock_.boot_ms() + limits_.challenge_ms);
  return {random_until + '.' + mac(random_until), clock_.unix_ms() + limits_.challenge_ms};
}

std::optional<std::uint64_t> Sessions::until_of(const std::string& challenge) const {
  const auto second = challenge.rfind('.');
  if (challenge.size() > kMaxChallengeBytes || second == std::string::npos) return std::nullopt;
  const std::string random_until = challenge.substr(0, second), given = challenge.substr(second + 1),
                    wanted = mac(random_until);
  if (given.size() != wanted.size() || ::sodium_memcmp(given.data(), wanted.data(), wanted.size()) != 0)
    return std::nullopt;
  std::uint64_t until = 0;
  if (!parse_u64(std::string_view(random_until).substr(random_until.find('.') + 1), until)) return std::nullopt;
  return until;
}

Result<void> Sessions::check(const std::string& challenge) const {
  const auto until = until_of(challenge);
  if (!until) return fail(Code::denied, "challenge: was not issued by this server: request another");
  if (*until <= clock_.boot_ms()) return fail(Code::denied, "challenge: is too old: ask for another");
  const std::lock_guard lock(mutex_);
  if (used_.contains(challenge)) return fail(Code::denied, "challenge: was used before: ask for another");
  return {};
}

Result<void> Sessions::consume_challenge(const std::string& challenge, Id actor) {
  MJ_CHECK(check(challenge));
  const std::uint64_t now = clock_.boot_ms();
  const std::lock_guard lock(mutex_);
  std::erase_if(used_, [now](const auto& each) { return each.second.until_boot_ms <= now; });
  const auto own =
      std::count_if(used_.begin(), used_.end(), [actor](const auto& each) { return each.second.actor == actor; });
  if (static_cast<std::size_t>(own) >= limits_.used_by_actor)
    return fail(Code::unavailable, "actor " + std::to_string(actor) + " has logged in " + std::to_string(own) +
                                       " times within a minute: keep a session, or try again in a minute");
  if (used_.size() >= limits_.used) return fail(Code::unavailable, "too many have logged in: try again in a minute");
  if (!used_.emplace(challenge, UsedChallenge{now + limits_.challenge_ms, actor}).second)
    return fail(Code::denied, "challenge: was used before: ask for another");
  return {};
}

void Sessions::evict_oldest_session(Id actor) {
  const std::uint64_t now = clock_.boot_ms();
  std::erase_if(sessions_, [now](const auto& each) { return each.second.until_boot_ms <= now; });
  const auto drop_oldest = [&](auto wanted, std::size_t max) {
    const auto count = std::count_if(sessions_.begin(), sessions_.end(), wanted);
    if (static_cast<std::size_t>(count) < max) return;
    auto oldest = sessions_.end();
    for (auto each = sessions_.begin(); each != sessions_.end(); ++each) {
      if (wanted(*each) && (oldest == sessions_.end() || each->second.number < oldest->second.number)) oldest = each;
    }
    if (oldest != sessions_.end()) sessions_.erase(oldest);
  };
  drop_oldest([actor](const auto& each) { return each.second.actor == actor; }, limits_.of_actor);
  drop_oldest([](const auto&) { return true; }, limits_.all);
}

Sessions::NewSession Sessions::begin(Id actor, const std::string& key) {
  NewSession begun{std::string(kSessionPrefix) + random_hex(kRandomBytes), clock_.unix_ms() + limits_.session_ms};
  const std::lock_guard lock(mutex_);
  evict_oldest_session(actor);
  sessions_[sha256_hex(begun.token)] = {actor, key, clock_.boot_ms() + limits_.session_ms, ++pending_report_};
  return begun;
}

bool Sessions::is_token(std::string_view token) { return token.starts_with(kSessionPrefix); }

std::optional<Sessions::Session> Sessions::find(std::string_view token) const {
  if (!is_token(token) || token.size() > kMaxSessionTokenBytes) return std::nullopt;
  const std::string id = sha256_hex(token);
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.until_boot_ms <= clock_.boot_ms()) return std::nullopt;
  return Session{id, found->second.actor, found->second.key};
}

bool Sessions::is_valid_session(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(id);
  return found != sessions_.end() && found->second.until_boot_ms > clock_.boot_ms();
}

void Sessions::end(const std::string& id) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(id);
}

}  // namespace mycojobs::api
