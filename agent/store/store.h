// The store: records, queues, claims and logs of all contexts, on Redis 7 or newer. The tests replace Redis by an
// imitation in the process, below the store (store/redis/redis_link.h); one contract suite tests both (tests/contract).
// Protocol: docs/protocol.md. Each subject has a class and a header of its own. The protocol of jobs is implemented by
// scripts/*.lua, in which each call is one atomic step; store/keys.toml describes the keys.
//
// Thread-safety: a Store and a Waiter are each used by one thread; only Waiter::wake() may be called from any thread. A
// StoreFactory is thread-safe.
//
// Errors: unavailable (the server cannot be reached; the call may have been executed, and every call here may be
// repeated), stale_claim, conflict, not_found, invalid, denied (password; rights of a claim), unsupported (server too
// old; `databases` too small). Times are compared by the store's own clock only, never by the clock of this host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "store/claim_store.h"
#include "store/flow_store.h"
#include "store/journal_store.h"
#include "store/lease_store.h"
#include "store/message_store.h"
#include "store/notice_store.h"
#include "store/objects/object_store.h"
#include "store/packages/lock_file_store.h"
#include "store/prerequisite_store.h"
#include "store/queue_store.h"
#include "store/record_store.h"
#include "store/redis/forbidden_commands.h"
#include "store/redis/redis_claims.h"
#include "store/runner_store.h"
#include "store/submit_store.h"
#include "store/ticket_key_store.h"
#include "store/transfer_store.h"
#include "store/uploads/upload_store.h"
#include "store/workflow_store.h"

namespace mycojobs {

struct RedisStoreConfig;
class StoreConnection;

// Properties and settings of a Redis server.
struct StoreServerInfo {
  std::string product, version, run_id;  // "redis" "7.0.15"
  std::uint32_t databases = 0;
  // Databases with keys, with the id of their context (0: none is stored). Those that the user must not select are left
  // out.
  std::vector<std::pair<std::uint32_t, Id>> used_databases;
  std::vector<ForbiddenCommand> forbidden_commands;
  std::string appendonly, appendfsync, maxmemory_policy;  // empty if the server does not permit reading the value
  bool persistence_error = false, cluster = false, replica = false;
};

// All subjects over one connection for each context. A function that uses one subject takes a reference to its class.
class Store final : public RedisClaims,
                    public LeaseStore,
                    public PrerequisiteStore,
                    public NoticeStore,
                    public SubmitStore,
                    public QueueStore,
                    public RunnerStore,
                    public JournalStore,
                    public RecordStore,
                    public MessageStore,
                    public TransferStore,
                    public LockFileStore,
                    public UploadStore,
                    public TicketKeyStore {
 public:
  // Does not connect. An invalid URL is the error of each call.
  explicit Store(const RedisStoreConfig&);
  explicit Store(std::unique_ptr<StoreConnection>);
  ~Store() override;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Returns the properties of the server of this context. Context 0 stands for the server of all contexts without a
  // server of their own.
  Result<StoreServerInfo> server_info(Id context);
  Result<StoreServerInfo> server_info() { return server_info(0); }
  // Returns the contexts that have keys on the default server, and that this configuration finds there.
  Result<std::vector<Id>> find_contexts();
  // Returns the number of the database that the context uses on its server.
  std::uint32_t database_number(Id context) const;
  Result<std::uint64_t> now_ms();  // the store's clock

 private:
  // Destroyed before the base classes, which refer to it. Their destructors must not use the connection.
  std::unique_ptr<StoreConnection> connection_;
};

// Result of Waiter::wait().
struct WaitResult {
  bool has_work = false;                // at least one of the queues may have an entry, so the caller should claim
  std::vector<Id> contexts;             // contexts of these entries; empty with has_work: any context
  std::vector<Id> announced_contexts;   // members of `contexts` with an announced job, which may be due soon
  std::vector<std::string> hints;       // payloads published on the topic: message keys, "cancel:<job key>"
  bool reconnected = false;             // hints may have been lost, so the caller should read topic_pending()
  bool has_unreachable_server = false;  // the connection to a server has failed and was not restored
};

// Waits for work. wait() does not remove entries from queues, so that no job can be lost between wait() and claim().
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns after timeout_ms, for a hint, a wake() and, if for_work, an entry since the last wait for work ended.
  virtual Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) = 0;
  // Sets the paused queues of the context. From the next wait() on, entries of these queues do not end a wait.
  virtual void set_paused(Id context, const std::vector<std::string>& queues) = 0;
  // Reports the first claim from a context after wait() has named it. If other agents often claim the entries first,
  // the waiter reacts later to new entries, so that not every job wakes all agents.
  virtual void on_claimed(Id /*context*/, bool /*has_found_entries*/) {}
  // Ends the present or the next wait(). May be called from any thread, also from a signal thread.
  virtual void wake() = 0;
};

// Receives the hints of a subscription. The functions are called by a thread of the store. They must not block, call a
// store, or create or destroy a subscription.
class HintListener {
 public:
  virtual void on_message(std::string_view channel, std::string_view text) = 0;
  // A watched key was changed, in the database of any context of the same server.
  virtual void on_key_changed(std::string_view key) = 0;
  // The result of HintSubscription::is_complete() has changed. After a change to true, hints may have been missed.
  virtual void on_subscription_changed(bool is_complete) = 0;

 protected:
  ~HintListener() = default;
};

// A subscription to hints. After its destruction no function of the listener is called.
class HintSubscription {
 public:
  virtual ~HintSubscription() = default;
  // Returns whether every hint is received. It is false while the server cannot be reached, and if the server or the
  // rights of its user do not permit watching the keys; the caller should poll. Thread-safe.
  virtual bool is_complete() const = 0;
};

struct HintTopics {
  std::vector<std::string> channels, keys;
};

class StoreFactory {
 public:
  virtual ~StoreFactory() = default;
  virtual Result<std::unique_ptr<Store>> open() = 0;
  // Opens a store for interactive read-only clients: calls to a server that does not answer fail sooner.
  virtual Result<std::unique_ptr<Store>> open_reader() { return open(); }
  virtual Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                                      const std::string& topic) = 0;
  // Subscribes to the server of a context. All subscriptions of the factory share one connection and one thread for
  // each server. Errors: invalid (a URL), unavailable (the thread cannot be created). A server that cannot be reached
  // is not an error.
  virtual Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics&, HintListener&) = 0;
  // Like subscribe(), over a connection and a thread that serve transfers of artifacts only: their long messages do not
  // delay hints.
  virtual Result<std::unique_ptr<HintSubscription>> subscribe_transfers(Id context,
                                                                        const std::vector<std::string>& channels,
                                                                        HintListener& listener) {
    return subscribe(context, {channels, {}}, listener);
  }
  // Returns a name of the server of a context, which is the same for all contexts of the server.
  virtual std::string server_name(Id /*context*/) const { return {}; }
  virtual Result<std::unique_ptr<ObjectStore>> open_objects() = 0;
  virtual Result<std::unique_ptr<FlowStore>> open_flows() = 0;
  virtual Result<std::unique_ptr<WorkflowStore>> open_workflows() = 0;
};

}  // namespace mycojobs
