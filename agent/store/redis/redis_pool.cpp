#include "store/redis/redis_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mycojobs {
namespace {

using std::chrono::steady_clock;

// A process with calls to many databases keeps up to this number of connections, so that frequently used databases
// rarely need a SELECT. A connection is added each time after kSelectsPerConnection selections.
constexpr std::size_t kMaxSpareConnections = 16;
constexpr std::size_t kSelectsPerConnection = 64;

RedisConnection::Options make_identity(RedisConnection::Options options) {
  options.database = 0;
  options.reconnects = false;
  return options;
}

class PooledLink final : public Link {
 public:
  PooledLink(std::shared_ptr<RedisPool> pool, Id context, const RedisConnection::Options& options,
             PrepareContext prepare)
      : pool_(std::move(pool)),
        context_(context),
        database_(options.database),
        timeouts_{options.connect_timeout_ms, options.command_timeout_ms},
        prepare_(std::move(prepare)) {}

  ~PooledLink() override { discard_begun(); }
  PooledLink(const PooledLink&) = delete;
  PooledLink& operator=(const PooledLink&) = delete;

  Result<Reply> command(const Arguments& arguments, std::uint32_t extra_ms) override {
    return call([&](RedisConnection& connection) { return connection.command(arguments, extra_ms); });
  }
  Result<Reply> command_pair(const Arguments& first, const Arguments& second, std::uint32_t extra_ms) override {
    return call([&](RedisConnection& connection) { return connection.command_pair(first, second, extra_ms); });
  }
  Result<Reply> run(const Script& script, const Arguments& arguments) override {
    return call([&](RedisConnection& connection) { return connection.run(script, arguments); });
  }
  std::optional<int> begin(const Script& script, const Arguments& arguments) override {
    discard_begun();
    auto connection = pool_->try_borrow(database_, timeouts_);
    if (connection == nullptr) return std::nullopt;
    std::optional<int> fd;
    if (is_prepared(connection->server_run_id())) fd = connection->begin(script, arguments);
    if (!fd) {
      pool_->give_back(std::move(connection));
      return std::nullopt;
    }
    begun_ = std::move(connection);
    return fd;
  }
  Result<Reply> finish(const Script& script, const Arguments& arguments) override {
    if (begun_ == nullptr) return run(script, arguments);
    auto reply = begun_->finish(script, arguments);
    if (reply && run_id_ != begun_->server_run_id()) run_id_ = begun_->server_run_id();
    pool_->give_back(std::move(begun_));
    return reply;
  }
  const std::string& server_run_id() const override { return run_id_; }
  bool has_been_connected() const override { return was_connected_; }
  std::optional<TlsState> tls_state() const override { return pool_->tls_state(); }

 private:
  template <class Call>
  Result<Reply> call(const Call& make_call) {
    discard_begun();
    MJ_TRY(connection, pool_->borrow(database_, timeouts_));
    auto prepared = prepare(*connection);
    Result<Reply> reply = prepared ? make_call(*connection) : tl::unexpected<Error>(std::move(prepared).error());
    pool_->give_back(std::move(connection));
    return reply;
  }
  bool is_prepared(const std::string& run_id) const { return !prepare_ || pool_->is_prepared(context_, run_id); }
  Result<void> prepare(RedisConnection& connection) {
    const std::string& run_id = connection.server_run_id();
    if (!is_prepared(run_id)) {
      MJ_CHECK(prepare_(connection));
      pool_->mark_prepared(context_, run_id);
    }
    if (run_id_ != run_id) run_id_ = run_id;
    was_connected_ = true;
    return {};
  }
  // The reply of a call without finish() would be taken for the reply of the next call.
  void discard_begun() {
    if (begun_ == nullptr) return;
    begun_->close_after_error();
    pool_->give_back(std::move(begun_));
  }

  std::shared_ptr<RedisPool> pool_;
  Id context_;
  std::uint32_t database_;
  RedisPool::Timeouts timeouts_;
  PrepareContext prepare_;
  std::string run_id_;
  bool was_connected_ = false;
  std::unique_ptr<RedisConnection> begun_;  // connection of begin() until finish()
};

}  // namespace

RedisPool::RedisPool(RedisConnection::Options identity, std::shared_ptr<Metrics> metrics,
                     std::chrono::milliseconds max_idle)
    : identity_(make_identity(std::move(identity))),
      sentinels_(identity_.endpoint.uses_sentinels()
                     ? SentinelGroup::find(identity_.endpoint, identity_.tls, identity_.sentinel)
                     : nullptr),
      metrics_(std::move(metrics)),
      max_idle_(max_idle) {}
RedisPool::~RedisPool() = default;

Result<std::unique_ptr<RedisConnection>> RedisPool::borrow(std::uint32_t database, Timeouts timeouts) {
  std::unique_ptr<RedisConnection> connection = pop_usable(database);
  if (connection == nullptr) connection = create_connection();
  connection->set_timeouts(timeouts.connect_ms, timeouts.command_ms);
  if (auto ready = make_ready(*connection, database); !ready) {
    // After a rejected SELECT, a new connection still has database 0, and would serve no other database.
    if (connection->database() == 0 && database != 0) connection->close();
    give_back(std::move(connection));
    return tl::unexpected<Error>(std::move(ready).error());
  }
  return connection;
}

std::unique_ptr<RedisConnection> RedisPool::try_borrow(std::uint32_t database, Timeouts timeouts) {
  {
    const std::lock_guard lock(mutex_);
    if (!abandoned_.empty()) return nullptr;
  }
  auto connection = pop_idle(database, false);
  if (connection == nullptr) return nullptr;
  connection->set_timeouts(timeouts.connect_ms, timeouts.command_ms);
  if (connection->is_usable()) return connection;
  connection->close();
  give_back(std::move(connection));
  return nullptr;
}

// Removes an idle connection from the pool: the most recently used one with the right database, or else, if the caller
// can select the database, the least recently used of the spare connections. Connections beyond these expire. Every
// connection begins with database 0, which its user may not be permitted to select, so connections of database 0 keep
// it.
std::unique_ptr<RedisConnection> RedisPool::pop_idle(std::uint32_t database, bool may_select) {
  const std::lock_guard lock(mutex_);
  auto match = std::find_if(idle_.rbegin(), idle_.rend(),
                            [&](const IdleConnection& idle) { return idle.connection->database() == database; });
  auto found = match == idle_.rend() ? idle_.end() : std::prev(match.base());
  if (found == idle_.end()) {
    if (!may_select || database == 0) return nullptr;
    if (open_connections_ < kMaxSpareConnections && selects_ >= kSelectsPerConnection) return nullptr;
    const std::size_t spare = std::min(idle_.size(), kMaxSpareConnections);
    found = std::find_if(idle_.end() - static_cast<std::ptrdiff_t>(spare), idle_.end(),
                         [](const IdleConnection& idle) { return idle.connection->database() != 0; });
    if (found == idle_.end()) return nullptr;
    ++selects_;
  }
  auto connection = std::move(found->connection);
  idle_.erase(found);
  return connection;
}

std::unique_ptr<RedisConnection> RedisPool::pop_usable(std::uint32_t database) {
  for (;;) {
    auto connection = pop_idle(database, true);
    if (connection == nullptr || connection->is_usable()) return connection;
    connection->close();
    give_back(std::move(connection));
  }
}

std::unique_ptr<RedisConnection> RedisPool::create_connection() {
  RedisConnection::Options options = identity_;
  {
    const std::lock_guard lock(mutex_);
    options.was_connected = was_connected_;
    selects_ = 0;
    ++open_connections_;
  }
  return std::make_unique<RedisConnection>(std::move(options));
}

Result<void> RedisPool::make_ready(RedisConnection& connection, std::uint32_t database) {
  if (!connection.connected()) {
    MJ_CHECK(connection.connect());
    on_connected(connection);
  }
  MJ_CHECK(kill_abandoned(connection));
  return connection.database() == database ? Result<void>() : connection.select(database);
}

// A connection to another server than before is the first after a restart or a failover. The idle connections lead to
// the former server.
void RedisPool::on_connected(const RedisConnection& connection) {
  const std::string& run_id = connection.server_run_id();
  Connections removed;  // closed after the lock is released
  const std::lock_guard lock(mutex_);
  was_connected_ = true;
  run_id_ = run_id;
  newest_tls_state_ = connection.tls_state();
  for (std::size_t i = idle_.size(); i-- > 0;) {
    if (idle_[i].connection->server_run_id() != run_id) remove_idle(i, removed);
  }
  update_gauge();
}

// Every caller kills all clients that are abandoned at this time, also if another thread does so, since that thread may
// not have finished. On another server, the ids belong to other clients.
Result<void> RedisPool::kill_abandoned(RedisConnection& connection) {
  std::vector<RedisConnection::AbandonedClient> clients;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_.empty()) return {};
    clients = abandoned_;
  }
  for (const auto& client : clients) {
    // Without INFO the run_id is empty, and the id may belong to a client of a later start of the server.
    if (!client.run_id.empty() && client.run_id == connection.server_run_id())
      MJ_CHECK(connection.kill_client(client.id));
    const std::lock_guard lock(mutex_);
    std::erase_if(abandoned_,
                  [&](const auto& other) { return other.id == client.id && other.run_id == client.run_id; });
  }
  return {};
}

void RedisPool::give_back(std::unique_ptr<RedisConnection> connection) {
  Connections removed;  // closed after the lock is released
  const auto now = steady_clock::now();
  const std::lock_guard lock(mutex_);
  if (connection->connected() && connection->server_run_id() != run_id_) {  // the connection leads to the former server
    --open_connections_;
    removed.push_back(std::move(connection));
  } else if (connection->connected()) {
    idle_.push_back({std::move(connection), now});
  } else {
    auto abandoned = connection->consume_abandoned();
    --open_connections_;
    removed.push_back(std::move(connection));
    if (abandoned.id != 0) {
      abandoned_.push_back(std::move(abandoned));
      while (!idle_.empty()) remove_idle(idle_.size() - 1, removed);
    }
  }
  while (!idle_.empty() && now - idle_.front().since > max_idle_) remove_idle(0, removed);
  update_gauge();
}

void RedisPool::remove_idle(std::size_t index, Connections& removed) {
  const auto entry = idle_.begin() + static_cast<std::ptrdiff_t>(index);
  removed.push_back(std::move(entry->connection));
  idle_.erase(entry);
  --open_connections_;
}

void RedisPool::update_gauge() const {
  if (metrics_->is_enabled())
    metrics_->set(Metric::redis_connections, {identity_.endpoint.redacted_url()},
                  static_cast<double>(open_connections_));
}

bool RedisPool::is_prepared(Id context, const std::string& run_id) const {
  const std::lock_guard lock(mutex_);
  const auto entry = prepared_.find(context);
  return entry != prepared_.end() && entry->second == run_id;
}

void RedisPool::mark_prepared(Id context, const std::string& run_id) {
  const std::lock_guard lock(mutex_);
  prepared_[context] = run_id;
}

std::optional<TlsState> RedisPool::tls_state() const {
  const std::lock_guard lock(mutex_);
  return newest_tls_state_;
}

std::size_t RedisPool::open_connections() const {
  const std::lock_guard lock(mutex_);
  return open_connections_;
}

std::shared_ptr<RedisPool> RedisPools::find_or_create(const RedisConnection::Options& options,
                                                      const std::shared_ptr<Metrics>& metrics) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& candidate) {
    return candidate.endpoint == options.endpoint && candidate.tls == options.tls &&
           candidate.client_name == options.client_name;
  });
  if (entry != entries_.end()) return entry->pool;
  return entries_
      .emplace_back(
          Entry{options.endpoint, options.tls, options.client_name, std::make_shared<RedisPool>(options, metrics)})
      .pool;
}

std::unique_ptr<Link> make_pooled_link(std::shared_ptr<RedisPool> pool, Id context,
                                       const RedisConnection::Options& options, PrepareContext prepare) {
  return std::make_unique<PooledLink>(std::move(pool), context, options, std::move(prepare));
}

}  // namespace mycojobs
