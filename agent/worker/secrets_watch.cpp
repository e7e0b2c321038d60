#include "worker/secrets_watch.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/turns.h"

namespace mycojobs {

class SecretsWatch::Look final : public TurnTaker {
 public:
  // Without places there is nothing to wait for.
  Look(const SecretPlaces& places, Id context, const Clock& clock)
      : clock_(clock), context_(context), secrets_(places, context) {
    if (places.empty()) {
      found_ = secrets_.look();
    } else {
      thread_.emplace(*this, "secrets " + std::to_string(context));
    }
  }
  std::uint64_t turn() {
    constexpr std::uint64_t kSlowMs = 1000;
    const std::uint64_t began = clock_.boot_ms();
    auto found = secrets_.look();
    if (const std::uint64_t took = clock_.boot_ms() - began; took >= kSlowMs)
      log(LogLevel::warn, "worker", "context {}: a look at its secrets took {} ms: see to the disk of secrets_dir",
          context_, took);
    const std::lock_guard lock(mutex_);
    found_ = std::move(found);
    return kLookMs;
  }
  std::shared_ptr<const FoundSecrets> found() {
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  const Clock& clock_;
  Id context_;
  Secrets secrets_;  // the thread's
  std::mutex mutex_;
  std::shared_ptr<const FoundSecrets> found_;
  std::optional<TurnThread<Look>> thread_;
};

SecretsWatch::SecretsWatch(const SecretPlaces& places, const std::vector<Id>& contexts, const Clock& clock) {
  for (const Id context : contexts) looks_.emplace(context, std::make_unique<Look>(places, context, clock));
}

SecretsWatch::~SecretsWatch() {
  for (const auto& [context, look] : looks_) look->stop();  // all before the first is waited for
}

std::shared_ptr<const FoundSecrets> SecretsWatch::of(Id context) const { return looks_.at(context)->found(); }

bool SecretsWatch::has(Id context, const std::vector<SecretValue>& given) const {
  const auto found = of(context);
  return !found || found->has(given);  // whoever has some was given them by a look
}

}  // namespace mycojobs
