// What the secrets of each context are, for those who must not wait for a disk: who claims jobs and begins them, and
// who has warm processes. Each context has a thread that looks: a disk that stands still under one of them is no matter
// of another's.
//
//   thread of a context: Secrets::look() --> of(context), by any thread      when the folder changes; every kLookMs
//
// While a disk stands still what was found stays in force, as while it cannot be read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "mycojobs/clock.h"
#include "worker/secrets.h"

namespace mycojobs {

class SecretsWatch {
 public:
  static constexpr std::uint64_t kLookMs = 2000;  // between looks at a folder of which the kernel reports nothing

  SecretsWatch(const SecretPlaces&, const std::vector<Id>& contexts, const Clock&);
  ~SecretsWatch();               // waits for a look that is under way
  Result<void> started() const;  // error: there is no thread for one of the contexts
  SecretsWatch(const SecretsWatch&) = delete;
  SecretsWatch& operator=(const SecretsWatch&) = delete;

  // Any thread; one of the contexts. Null: the first look is not over, so nobody knows what is a secret.
  std::shared_ptr<const FoundSecrets> of(Id context) const;
  void look_now();  // any thread: does not wait for the next look
  // Any thread. Whether they have these values still.
  bool has(Id context, const std::vector<SecretValue>&) const;

 private:
  class Look;
  std::map<Id, std::unique_ptr<Look>> looks_;
};

}  // namespace mycojobs
