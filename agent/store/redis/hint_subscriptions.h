// Subscriptions to the hints of Redis servers: messages on channels, and changes of keys. All subscriptions to a server
// share one connection and one thread. Changes of keys are reported by CLIENT TRACKING in the mode BCAST, which covers
// all databases of the server.
//
// If a connection fails, the thread connects again after 250 ms, then every 500 ms.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "store/redis/redis_connection.h"
#include "store/store.h"

namespace mycojobs {

// Thread-safe.
class HintSubscriptions {
 public:
  // The results of StoreFactory::subscribe(), on the server of the options.
  Result<std::unique_ptr<HintSubscription>> subscribe(RedisConnection::Options, const HintTopics&, HintListener&);

 private:
  class Server;
  class Subscription;

  std::mutex mutex_;
  std::vector<std::weak_ptr<Server>> servers_;  // a server is destroyed with its last subscription
};

}  // namespace mycojobs
