// Logins by signed challenges. A client signs a challenge with the key of an actor and receives a token for a session.
//
//   challenge() -> client signs -> consume_challenge() -> begin(): session -> expired, end(), or replaced by a newer
//   session
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
  std::uint64_t session_ms = 12 * 3600'000;  // validity of a session, also if it is used
  std::size_t of_actor = 32, all = 10'000;   // sessions of one actor, and of all; a new session replaces the oldest
  std::size_t used_by_actor = 300;           // used challenges of one actor, so that it cannot fill the limit of all
  std::size_t used = 100'000;                // used challenges of all actors
};

class Sessions {
 public:
  explicit Sessions(const Clock&, SessionLimits = {});

  struct Challenge {
    std::string text;
    std::uint64_t until_ms = 0;  // Unix time
  };
  Challenge challenge() const;
  // Error `denied`: the challenge was not made by this process, has expired, or was used.
  Result<void> check(const std::string& challenge) const;
  // Same as check(), and marks the challenge as used by the actor: of several calls with one challenge only one
  // succeeds. Error `unavailable`: the actor, or all actors together, have used too many challenges.
  Result<void> consume_challenge(const std::string& challenge, Id actor);

  struct NewSession {
    std::string token;  // only its hash is stored
    std::uint64_t until_ms = 0;
  };
  // Creates a session. REQUIRES: the signature of the actor by `key` was verified, and consume_challenge() has
  // succeeded.
  NewSession begin(Id actor, const std::string& key);
  struct Session {
    std::string id;  // SHA-256 of the token
    Id actor = 0;
    std::string key;  // public key of the login
  };
  static bool is_token(std::string_view);                     // has the prefix of session tokens
  std::optional<Session> find(std::string_view token) const;  // no value: unknown or expired
  bool is_valid_session(const std::string& id) const;         // the session exists and has not expired
  void end(const std::string& id);

 private:
  struct StoredSession {
    Id actor = 0;
    std::string key;
    std::uint64_t until_boot_ms = 0, number = 0;
  };
  std::string mac(std::string_view) const;
  std::optional<std::uint64_t> until_of(const std::string& challenge) const;  // no value: not made by this process
  void evict_oldest_session(Id actor);                                        // REQUIRES: the lock is held

  const Clock& clock_;
  SessionLimits limits_;
  std::string secret_;
  mutable std::mutex mutex_;
  struct UsedChallenge {
    std::uint64_t until_boot_ms = 0;
    Id actor = 0;
  };
  std::map<std::string, UsedChallenge> used_;      // by challenge
  std::map<std::string, StoredSession> sessions_;  // by id
  std::uint64_t pending_report_ = 0;
};

}  // namespace mycojobs::api
