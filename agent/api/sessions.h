// Logins by signed key: who has the key of an actor signs a challenge, and calls by a token of its own for a while.
//
//   challenge() -> signed by the key -> use() -> begin(): a session -> its time is over, end(), or it is one too many
//
// Challenges are not kept: one carries its time, and a hash under a key of this process. Kept are those that were used,
// until they are too old anyway, so that a stranger who asks for many costs nothing, and a signature counts once. All
// of it is in memory: a server that starts again, and another one, want another login. That the key is still the
// actor's is asked by the server, for each call. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "mycojobs/clock.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs::api {

struct SessionLimits {
  std::uint64_t challenge_ms = 60'000;       // to sign it in
  std::uint64_t session_ms = 12 * 3600'000;  // however much it is used
  std::size_t of_actor = 32, all = 10'000;   // more: the oldest of them goes
  std::size_t used_by_actor = 300;  // challenges within their time: who logs in all the time locks nobody else out
  std::size_t used = 100'000;       // of all actors
};

class Sessions {
 public:
  explicit Sessions(const Clock&, SessionLimits = {});

  struct Challenge {
    std::string text;
    std::uint64_t until_ms = 0;  // by the clock for people
  };
  Challenge challenge() const;
  // Error denied: it is none of ours, too old, or was used.
  Result<void> check(const std::string& challenge) const;
  // The same, and from now on that actor has used it: of several calls with one, one alone succeeds. Error
  // unavailable: too many were, by the actor or by all.
  Result<void> use(const std::string& challenge, Id actor);

  struct Begun {
    std::string token;  // is kept nowhere
    std::uint64_t until_ms = 0;
  };
  Begun begin(Id actor, const std::string& key);
  struct Session {
    std::string id;  // says nothing of the token
    Id actor = 0;
    std::string key;  // public, by which it was begun
  };
  static bool is_token(std::string_view);                     // it looks like one of a session
  std::optional<Session> find(std::string_view token) const;  // nothing: there is none, or it is over
  bool holds(const std::string& id) const;                    // it is not over
  void end(const std::string& id);

 private:
  struct Kept {
    Id actor = 0;
    std::string key;
    std::uint64_t until_boot_ms = 0, number = 0;
  };
  std::string mac(std::string_view) const;
  std::optional<std::uint64_t> until_of(const std::string& challenge) const;  // nothing: none of ours
  void make_room(Id actor);                                                   // with the lock held

  const Clock& clock_;
  SessionLimits limits_;
  std::string secret_;
  mutable std::mutex mutex_;
  struct Used {
    std::uint64_t until_boot_ms = 0;
    Id actor = 0;
  };
  std::map<std::string, Used> used_;      // challenges
  std::map<std::string, Kept> sessions_;  // by id
  std::uint64_t begun_ = 0;
};

}  // namespace mycojobs::api
