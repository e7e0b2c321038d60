// Logins by signed challenges. A client signs a challenge with the key of an actor and receives a token for a session.
//
//   create_challenge() -> the client signs -> consume_challenge() -> create_session()
//   The session ends when it expires, by end_session(), or when a newer session replaces it.
//
// A challenge is not stored. It contains its expiry time and a MAC with a secret of this process, so requests for
// challenges use no memory. Used challenges are stored until they expire, so that each signature is accepted only once.
// All state is in memory: after a restart, and on another server, clients must log in again. The server checks for each
// call that the key still belongs to the actor. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs::api {

struct SessionLimits {
  std::uint64_t challenge_ms = 60'000;       // validity of a challenge
  std::uint64_t session_ms = 12 * 3600'000;  // validity of a session; its use does not extend it
  // Sessions of one actor and of all actors. A new session replaces the oldest session.
  std::size_t max_per_actor = 32, max_sessions = 10'000;
  // Used challenges of one actor and of all actors. An actor alone cannot exhaust the limit of all actors.
  std::size_t max_used_per_actor = 300, max_used_challenges = 100'000;
};

class Sessions {
 public:
  explicit Sessions(const Clock&, SessionLimits = {});

  struct Challenge {
    std::string text;
    std::uint64_t expires_ms = 0;  // Unix time
  };
  Challenge create_challenge() const;
  // Error `denied`: the challenge was not made by this process, has expired, or was used.
  Result<void> check_challenge(const std::string& challenge) const;
  // Same as check_challenge(), and marks the challenge as used by the actor: of several calls with one challenge only
  // one succeeds. Error `unavailable`: the actor, or all actors together, have used too many challenges.
  Result<void> consume_challenge(const std::string& challenge, Id actor);

  struct NewSession {
    std::string token;  // only its hash is stored
    std::uint64_t expires_ms = 0;
  };
  // Creates a session. REQUIRES: the signature of the actor by `key` was verified, and consume_challenge() has
  // succeeded.
  NewSession create_session(Id actor, const std::string& key);
  struct Session {
    std::string id;  // SHA-256 of the token
    Id actor = 0;
    std::string key;  // public key of the login
  };
  static bool is_session_token(std::string_view);             // has the prefix of session tokens
  std::optional<Session> find(std::string_view token) const;  // no value: unknown or expired
  bool is_valid_session(const std::string& id) const;         // the session exists and has not expired
  void end_session(const std::string& id);

 private:
  struct StoredSession {
    Id actor = 0;
    std::string key;
    std::uint64_t expires_boot_ms = 0, number = 0;
  };
  std::string compute_mac(std::string_view) const;
  std::optional<std::uint64_t> parse_expiry(const std::string& challenge) const;  // no value: not made by this process
  void evict_oldest_session(Id actor);                                            // REQUIRES: the lock is held

  const Clock& clock_;
  SessionLimits limits_;
  std::string secret_;
  mutable std::mutex mutex_;
  struct UsedChallenge {
    std::uint64_t expires_boot_ms = 0;
    Id actor = 0;
  };
  std::map<std::string, UsedChallenge> used_challenges_;  // by challenge
  std::map<std::string, StoredSession> sessions_;         // by id
  std::uint64_t last_number_ = 0;
};

}  // namespace mycojobs::api
