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

std::string Sessions::compute_mac(std::string_view text) const {
  std::string out(crypto_auth_BYTES, '\0');
  ::crypto_auth(reinterpret_cast<unsigned char*>(out.data()), reinterpret_cast<const unsigned char*>(text.data()),
                text.size(), reinterpret_cast<const unsigned char*>(secret_.data()));
  return to_hex(out);
}

// Format: RANDOM.UNTIL.MAC, with the expiry time in milliseconds since boot.
Sessions::Challenge Sessions::create_challenge() const {
  const std::string signed_part =
      random_hex(kRandomBytes) + '.' + std::to_string(clock_.boot_ms() + limits_.challenge_ms);
  return {signed_part + '.' + compute_mac(signed_part), clock_.unix_ms() + limits_.challenge_ms};
}

std::optional<std::uint64_t> Sessions::parse_expiry(const std::string& challenge) const {
  const auto second = challenge.rfind('.');
  if (challenge.size() > kMaxChallengeBytes || second == std::string::npos) return std::nullopt;
  const std::string signed_part = challenge.substr(0, second), received_mac = challenge.substr(second + 1),
                    expected_mac = compute_mac(signed_part);
  if (received_mac.size() != expected_mac.size() ||
      ::sodium_memcmp(received_mac.data(), expected_mac.data(), expected_mac.size()) != 0)
    return std::nullopt;
  std::uint64_t expires_ms = 0;
  if (!parse_u64(std::string_view(signed_part).substr(signed_part.find('.') + 1), expires_ms)) return std::nullopt;
  return expires_ms;
}

Result<void> Sessions::check_challenge(const std::string& challenge) const {
  const auto expires_ms = parse_expiry(challenge);
  if (!expires_ms) return fail(Code::denied, "challenge: was not issued by this server: request another");
  if (*expires_ms <= clock_.boot_ms()) return fail(Code::denied, "challenge: is too old: ask for another");
  const std::lock_guard lock(mutex_);
  if (used_challenges_.contains(challenge)) return fail(Code::denied, "challenge: was used before: ask for another");
  return {};
}

Result<void> Sessions::consume_challenge(const std::string& challenge, Id actor) {
  MJ_CHECK(check_challenge(challenge));
  const std::uint64_t now = clock_.boot_ms();
  const std::lock_guard lock(mutex_);
  std::erase_if(used_challenges_, [now](const auto& entry) { return entry.second.expires_boot_ms <= now; });
  const auto used_count = std::count_if(used_challenges_.begin(), used_challenges_.end(),
                                        [actor](const auto& entry) { return entry.second.actor == actor; });
  if (static_cast<std::size_t>(used_count) >= limits_.max_used_per_actor)
    return fail(Code::unavailable, "actor " + std::to_string(actor) + " has logged in " + std::to_string(used_count) +
                                       " times within a minute: keep a session, or try again in a minute");
  if (used_challenges_.size() >= limits_.max_used_challenges)
    return fail(Code::unavailable, "too many have logged in: try again in a minute");
  if (!used_challenges_.emplace(challenge, UsedChallenge{now + limits_.challenge_ms, actor}).second)
    return fail(Code::denied, "challenge: was used before: ask for another");
  return {};
}

void Sessions::evict_oldest_session(Id actor) {
  const std::uint64_t now = clock_.boot_ms();
  std::erase_if(sessions_, [now](const auto& entry) { return entry.second.expires_boot_ms <= now; });
  const auto evict_oldest = [&](auto matches, std::size_t max) {
    const auto count = std::count_if(sessions_.begin(), sessions_.end(), matches);
    if (static_cast<std::size_t>(count) < max) return;
    auto oldest = sessions_.end();
    for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
      if (matches(*it) && (oldest == sessions_.end() || it->second.number < oldest->second.number)) oldest = it;
    }
    if (oldest != sessions_.end()) sessions_.erase(oldest);
  };
  evict_oldest([actor](const auto& entry) { return entry.second.actor == actor; }, limits_.max_per_actor);
  evict_oldest([](const auto&) { return true; }, limits_.max_sessions);
}

Sessions::NewSession Sessions::create_session(Id actor, const std::string& key) {
  NewSession session{std::string(kSessionPrefix) + random_hex(kRandomBytes), clock_.unix_ms() + limits_.session_ms};
  const std::lock_guard lock(mutex_);
  evict_oldest_session(actor);
  sessions_[sha256_hex(session.token)] = {actor, key, clock_.boot_ms() + limits_.session_ms, ++last_number_};
  return session;
}

bool Sessions::is_session_token(std::string_view token) { return token.starts_with(kSessionPrefix); }

std::optional<Sessions::Session> Sessions::find(std::string_view token) const {
  if (!is_session_token(token) || token.size() > kMaxSessionTokenBytes) return std::nullopt;
  const std::string id = sha256_hex(token);
  const std::lock_guard lock(mutex_);
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second.expires_boot_ms <= clock_.boot_ms()) return std::nullopt;
  return Session{id, it->second.actor, it->second.key};
}

bool Sessions::is_valid_session(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = sessions_.find(id);
  return it != sessions_.end() && it->second.expires_boot_ms > clock_.boot_ms();
}

void Sessions::end_session(const std::string& id) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(id);
}

}  // namespace mycojobs::api
