#include "store/redis/redis_sentinel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop_thread.h"
#include "base/parse.h"
#include "model/codec.h"
#include "store/redis/redis_connection.h"
#include "text/split.h"

namespace mycojobs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kSwitchChannel = "+switch-master";

// Reads the password for the sentinels: the first line of a file that only this user can read.
Result<std::string> read_sentinel_password(const std::string& path) {
  const auto reject = [&](std::string_view reason, Code code) {
    return fail(code, "redis_sentinel.password_file: " + path + ": " + std::string(reason));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return reject(errno_text(errno), errno == ENOENT ? Code::not_found : Code::io);
  if (!S_ISREG(info.st_mode)) return reject("is not a file", Code::invalid);
  // systemd provides credentials with a group entry for the user of the service.
  if ((info.st_mode & S_IRWXO) != 0) return reject("other users can read it: chmod 600", Code::denied);
  std::string text(4096, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  if (count < 0) return reject(errno_text(errno), Code::io);
  text.resize(static_cast<std::size_t>(count));
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  if (text.empty()) return reject("has no password in its first line", Code::invalid);
  return text;
}

// The certificate of a sentinel has the host of its address. The name of redis_tls.server_name is that of the servers,
// and the sentinels often announce their IP addresses.
std::shared_ptr<TlsContext> make_sentinel_tls(const std::shared_ptr<TlsContext>& tls) {
  TlsSettings settings = tls ? tls->settings() : TlsSettings();
  settings.server_name.clear();
  return std::make_shared<TlsContext>(std::move(settings));
}

bool has_equal_settings(const std::shared_ptr<TlsContext>& a, const std::shared_ptr<TlsContext>& b) {
  const TlsSettings defaults;
  return (a ? a->settings() : defaults) == (b ? b->settings() : defaults);
}

std::uint32_t remaining_ms(Deadline deadline) {
  const auto remaining = std::chrono::duration_cast<milliseconds>(deadline - Deadline::clock::now()).count();
  return static_cast<std::uint32_t>(std::max<std::int64_t>(remaining, 0));
}

// Shortens the error of a connection for a list of several errors: without the address, which the list names, and
// without the remedy for a single server.
std::string brief_reason(const Error& error, const RedisEndpoint& server) {
  std::string_view text = error.message;
  const std::string address = server.redacted_url();
  for (const std::string& prefix :
       {"cannot connect to Redis at " + address + ": ", "Redis at " + address + ": ", std::string("redis: ")}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  if (const std::string suffix = " at " + address; text.ends_with(suffix)) text.remove_suffix(suffix.size());
  const bool is_login_error =
      text.starts_with("NOAUTH") || text.starts_with("WRONGPASS") || text.starts_with("ERR AUTH");
  if (error.code == Code::unavailable || is_login_error) text = text.substr(0, text.find(" ("));
  return std::string(text) + (is_login_error ? " (see redis_sentinel.user and redis_sentinel.password_file)" : "");
}

// All groups of the process. A group exists as long as a connection or its options refer to it.
struct GroupRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<SentinelGroup>> groups;
};
GroupRegistry& group_registry() {
  static GroupRegistry registry;
  return registry;
}

}  // namespace

Result<void> check_sentinel_settings(const SentinelSettings& settings) {
  if (!settings.password_file.empty()) MJ_CHECK(read_sentinel_password(settings.password_file));
  return {};
}

ReplicationState parse_replication_state(std::string_view info) {
  ReplicationState state;
  state.is_master = find_info_field(info, "role") == "master";
  if (!state.is_master) {
    const auto master = parse_redis_address(find_info_field(info, "master_host"), find_info_field(info, "master_port"));
    if (master) state.master = master->text();
  }
  state.replication_id = find_info_field(info, "master_replid");
  state.previous_replication_id = find_info_field(info, "master_replid2");
  return state;
}

WatchedSocket::~WatchedSocket() { group_->remove_socket(fd_); }

// Subscribes to all sentinels of a group. Each iteration connects to the sentinels that are due, and sends the PINGs
// that are due; each wait processes the messages that arrive.
class SentinelGroup::Monitor : public TimedLoop {
 public:
  explicit Monitor(SentinelGroup& group) : group_(group), subscriptions_(group.endpoint_.sentinels.size()) {
    // A command that ends at once needs no subscription.
    for (Subscription& subscription : subscriptions_) subscription.due_at = steady_clock::now() + kStartDelay;
    thread_.emplace(*this, "sentinels");
  }
  const Result<void>& started() const { return thread_->started(); }

  std::uint64_t run_once();
  void wait_until_due(std::uint64_t ms);

 private:
  static constexpr milliseconds kStartDelay{1000}, kPingInterval{5000}, kReplyTimeout{5000};
  static constexpr std::uint32_t kConnectTimeoutMs = 1000;

  struct Subscription {
    std::unique_ptr<RedisConnection> connection;  // null: not connected
    bool has_state = false;                       // the state of the master was received
    bool is_reply_pending = false;                // a reply is due at due_at
    unsigned failures = 0;
    steady_clock::time_point due_at;  // time of the next attempt to connect, of the next PING, or of a missing reply
  };
  void subscribe(std::size_t index);
  void continue_subscription(Subscription&);
  Result<void> process_messages(std::size_t index);
  void drop(Subscription&);

  SentinelGroup& group_;
  std::vector<Subscription> subscriptions_;
  std::optional<LoopThread<Monitor>> thread_;  // destroyed first
};

std::uint64_t SentinelGroup::Monitor::run_once() {
  for (std::size_t i = 0; i < subscriptions_.size() && !stopped(); ++i) {
    Subscription& subscription = subscriptions_[i];
    if (steady_clock::now() < subscription.due_at) continue;
    if (subscription.connection == nullptr) {
      subscribe(i);
    } else {
      continue_subscription(subscription);
    }
  }
  auto next = steady_clock::now() + kPingInterval;
  for (const Subscription& subscription : subscriptions_) next = std::min(next, subscription.due_at);
  const auto wait = std::chrono::ceil<milliseconds>(next - steady_clock::now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(wait, 0));
}

// Requests the state and subscribes with commands that the sentinel executes together, so that no change is missed.
void SentinelGroup::Monitor::subscribe(std::size_t index) {
  Subscription& subscription = subscriptions_[index];
  auto connection = group_.open_sentinel(index, kConnectTimeoutMs);
  if (!connection) {
    log(LogLevel::debug, "store", "{}", connection.error().message);
    return drop(subscription);
  }
  subscription.connection = std::move(*connection);
  subscription.has_state = false;
  subscription.is_reply_pending = true;
  subscription.due_at = steady_clock::now() + kReplyTimeout;
  std::vector<Arguments> commands;
  commands.emplace_back(Arguments{"SENTINEL", "MASTER"}).add(group_.endpoint_.master_name);
  commands.emplace_back(Arguments{"SUBSCRIBE", kSwitchChannel});
  if (!subscription.connection->send_all(commands)) drop(subscription);
}

void SentinelGroup::Monitor::continue_subscription(Subscription& subscription) {
  if (subscription.is_reply_pending || !subscription.connection->send({"PING"})) return drop(subscription);
  subscription.is_reply_pending = true;
  subscription.due_at = steady_clock::now() + kReplyTimeout;
}

void SentinelGroup::Monitor::drop(Subscription& subscription) {
  constexpr unsigned kMaxDoublings = 4;
  subscription.connection.reset();
  subscription.due_at = steady_clock::now() + milliseconds(1000 << std::min(subscription.failures, kMaxDoublings));
  ++subscription.failures;
}

void SentinelGroup::Monitor::wait_until_due(std::uint64_t ms) {
  std::vector<pollfd> fds{{wakeup_fd(), POLLIN, 0}};
  std::vector<std::size_t> owners;
  for (std::size_t i = 0; i < subscriptions_.size(); ++i) {
    if (subscriptions_[i].connection == nullptr) continue;
    fds.push_back({subscriptions_[i].connection->fd(), POLLIN, 0});
    owners.push_back(i);
    if (subscriptions_[i].connection->has_buffered_input()) ms = 0;
  }
  ::poll(fds.data(), fds.size(), static_cast<int>(ms));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    Subscription& subscription = subscriptions_[owners[i]];
    if (fds[i + 1].revents == 0 && !subscription.connection->has_buffered_input()) continue;
    auto received = subscription.connection->read_some();
    if (received) received = process_messages(owners[i]);
    if (!received) drop(subscription);
  }
  clear_wakeup();
}

Result<void> SentinelGroup::Monitor::process_messages(std::size_t index) {
  Subscription& subscription = subscriptions_[index];
  for (;;) {
    MJ_TRY(reply, subscription.connection->next_reply());
    if (!reply) return {};
    if (!subscription.has_state) {
      subscription.has_state = true;
      const Fields master_fields = reply->fields();
      std::uint64_t epoch = 0;
      const auto master = parse_redis_address(field_of(master_fields, "ip"), field_of(master_fields, "port"));
      if (master && parse_u64(field_of(master_fields, "config-epoch"), epoch))
        group_.on_sentinel_state(index, epoch, *master);
    } else if (reply->is_error()) {
      return tl::unexpected<Error>(redis_error(reply->text()));
    } else if (reply->at(0).text() == "message") {
      // "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT"
      const auto words = split_words(reply->at(2).text());
      const auto master = words.size() == 5 ? parse_redis_address(words[3], words[4]) : std::nullopt;
      if (master && words[0] == group_.endpoint_.master_name) group_.on_announcement(index, *master);
    } else {  // the confirmation of SUBSCRIBE, or the reply to PING
      subscription.is_reply_pending = false;
      subscription.failures = 0;
      subscription.due_at = steady_clock::now() + kPingInterval;
    }
  }
}

std::shared_ptr<SentinelGroup> SentinelGroup::find(const RedisEndpoint& endpoint,
                                                   const std::shared_ptr<TlsContext>& tls,
                                                   const SentinelSettings& settings) {
  RedisEndpoint key = endpoint.server();
  GroupRegistry& registry = group_registry();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.groups, [](const auto& group) { return group.expired(); });
  for (const auto& entry : registry.groups) {
    auto group = entry.lock();
    if (group && group->endpoint_ == key && group->settings_ == settings && has_equal_settings(group->tls_, tls))
      return group;
  }
  std::shared_ptr<SentinelGroup> group(new SentinelGroup(std::move(key), tls, settings));
  registry.groups.push_back(group);
  return group;
}

SentinelGroup::SentinelGroup(RedisEndpoint endpoint, std::shared_ptr<TlsContext> tls, SentinelSettings settings)
    : endpoint_(std::move(endpoint)),
      tls_(std::move(tls)),
      sentinel_tls_(make_sentinel_tls(tls_)),
      settings_(std::move(settings)) {}
SentinelGroup::~SentinelGroup() = default;

Result<std::unique_ptr<RedisConnection>> SentinelGroup::open_sentinel(std::size_t index,
                                                                      std::uint32_t timeout_ms) const {
  RedisConnection::Options options;
  options.endpoint = endpoint_.with_address(endpoint_.sentinels[index]);
  options.endpoint.user = settings_.user;
  options.is_sentinel = true;
  options.tls = sentinel_tls_;
  options.connect_timeout_ms = options.command_timeout_ms = std::max(timeout_ms, 1U);
  const RedisEndpoint address = options.endpoint;
  const auto name_sentinel = [&](Error error) {
    const std::string reason = brief_reason(error, address);
    return fail(error.code, "sentinel " + address.redacted_url() + ": " + reason);
  };
  if (!settings_.password_file.empty()) {
    auto password = read_sentinel_password(settings_.password_file);
    if (!password) return name_sentinel(std::move(password).error());
    options.endpoint.password = std::move(*password);
  }
  auto connection = std::make_unique<RedisConnection>(std::move(options));
  if (auto connected = connection->connect(); !connected) return name_sentinel(std::move(connected).error());
  return connection;
}

Result<RedisAddress> SentinelGroup::ask_master(RedisConnection& sentinel) const {
  const std::string name = "sentinel " + sentinel.options().endpoint.redacted_url();
  auto reply = sentinel.command(Arguments{"SENTINEL", "GET-MASTER-ADDR-BY-NAME"}.add(endpoint_.master_name));
  if (!reply) return fail(reply.error().code, name + ": " + brief_reason(reply.error(), sentinel.options().endpoint));
  if (reply->is_nil()) {
    std::string known_names;
    const auto masters = sentinel.command({"SENTINEL", "MASTERS"});
    for (std::size_t i = 0; masters && i < masters->size(); ++i)
      known_names += (i == 0 ? "; it knows " : ", ") + std::string(field_of(masters->at(i).fields(), "name"));
    return fail(Code::invalid, name + ": it knows no master " + endpoint_.master_name + known_names);
  }
  auto master = parse_redis_address(reply->at(0).text(), reply->at(1).text());
  if (!master) return fail(Code::unavailable, name + ": it announces no address of " + endpoint_.master_name);
  return *master;
}

Result<RedisAddress> SentinelGroup::ask_sentinel(std::size_t index, Deadline limit) const {
  MJ_TRY(sentinel, open_sentinel(index, remaining_ms(limit)));
  return ask_master(*sentinel);
}

std::vector<std::size_t> SentinelGroup::sentinel_order() {
  const std::lock_guard lock(mutex_);
  std::vector<std::size_t> order{preferred_};
  for (std::size_t i = 0; i < endpoint_.sentinels.size(); ++i) {
    if (i != preferred_) order.push_back(i);
  }
  return order;
}

std::uint64_t SentinelGroup::generation() {
  const std::lock_guard lock(mutex_);
  return generation_;
}

// A sentinel may use an equal part of the remaining time, so that one that hangs leaves time for the others. A
// server may use half of it.
Result<void> SentinelGroup::connect_to_master(Deadline deadline, const ConnectCandidate& connect) {
  std::vector<RedisAddress> tried;
  std::string answers;
  std::optional<Code> code;
  const auto add_answer = [&](Code answer_code, const std::string& text) {
    answers += (answers.empty() ? "" : "; ") + text;
    if (!code || answer_code == Code::unavailable) code = answer_code;
  };
  std::size_t remaining_sentinels = endpoint_.sentinels.size();
  for (const std::size_t index : sentinel_order()) {
    const auto now = Deadline::clock::now();
    const Deadline limit = now + (deadline - now) / static_cast<int>(1 + remaining_sentinels--);
    const std::uint64_t generation_before = generation();
    const auto master = ask_sentinel(index, limit);
    if (!master) {
      add_answer(master.error().code, master.error().message);
      continue;
    }
    const std::string announces = "sentinel " + endpoint_.sentinels[index].text() + " announces " + master->text();
    if (std::find(tried.begin(), tried.end(), *master) != tried.end()) {
      add_answer(Code::unavailable, announces + ", too");
      continue;
    }
    tried.push_back(*master);
    const auto rest = deadline - Deadline::clock::now();
    const auto connected = connect({*master, generation_before}, Deadline::clock::now() + rest / 2);
    if (connected) {
      const std::lock_guard lock(mutex_);
      if (generation_ == generation_before) preferred_ = index;
      return {};
    }
    if (connected.error().code != Code::unavailable) return connected;
    add_answer(Code::unavailable, announces + ": " + brief_reason(connected.error(), endpoint_.with_address(*master)));
  }
  return fail(code.value_or(Code::unavailable),
              "no connection to the master of " + endpoint_.redacted_url() + ": " + answers);
}

std::unique_ptr<WatchedSocket> SentinelGroup::watch(int fd, const MasterCandidate& candidate) {
  start_monitor();
  auto socket = std::make_unique<WatchedSocket>(shared_from_this(), fd);
  const std::lock_guard lock(mutex_);
  sockets_[fd] = candidate.address;
  if (generation_ != candidate.generation && announced_ != candidate.address) ::shutdown(fd, SHUT_RDWR);
  return socket;
}

void SentinelGroup::remove_socket(int fd) {
  const std::lock_guard lock(mutex_);
  sockets_.erase(fd);
}

void SentinelGroup::start_monitor() {
  const std::lock_guard lock(monitor_mutex_);
  if (std::exchange(was_monitor_started_, true)) return;
  auto monitor = std::make_unique<Monitor>(*this);
  if (monitor->started()) {
    monitor_ = std::move(monitor);
    return;
  }
  was_monitor_started_ = false;
  log(LogLevel::warn, "store", "events of {} are not received: {}", endpoint_.redacted_url(),
      monitor->started().error().message);
}

void SentinelGroup::on_announcement(std::size_t index, const RedisAddress& master) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  if (announced_ != master) {  // all sentinels announce the same master
    log(LogLevel::info, "store", "sentinel {}: the master of {} is {}", endpoint_.sentinels[index].text(),
        endpoint_.master_name, master.text());
  }
  announced_ = master;
  preferred_ = index;
  for (const auto& [fd, server] : sockets_) {
    if (server != master) ::shutdown(fd, SHUT_RDWR);
  }
}

// A sentinel with an older configuration, for example after a partition of the network, is ignored.
void SentinelGroup::on_sentinel_state(std::size_t index, std::uint64_t config_epoch, const RedisAddress& master) {
  bool is_change = false;
  {
    const std::lock_guard lock(mutex_);
    if (config_epoch <= config_epoch_) return;
    config_epoch_ = config_epoch;
    is_change =
        std::any_of(sockets_.begin(), sockets_.end(), [&](const auto& entry) { return entry.second != master; });
  }
  if (is_change) on_announcement(index, master);
}

void SentinelGroup::on_demotion(const RedisAddress& address) {
  const std::lock_guard lock(mutex_);
  for (const auto& [fd, server] : sockets_) {
    if (server == address) ::shutdown(fd, SHUT_RDWR);
  }
}

void SentinelGroup::on_connected(const RedisAddress& master, const ReplicationState& state) {
  const std::lock_guard lock(mutex_);
  const auto previous_master = std::exchange(master_, master);
  const std::string previous_id = std::exchange(replication_id_, state.replication_id);
  if (previous_master && *previous_master != master) {
    log(LogLevel::info, "store", "connected to {}, the master of {}; it was {}", master.text(), endpoint_.master_name,
        previous_master->text());
  }
  if (previous_id.empty() || state.replication_id == previous_id || state.previous_replication_id == previous_id)
    return;
  log(LogLevel::warn, "store",
      "{}, the master of {}, has the unknown replication id {}; it was {}: a master that restarts from its append-only "
      "file gets another id; otherwise its data is not that of the master before",
      master.text(), endpoint_.master_name, state.replication_id, previous_id);
}

}  // namespace mycojobs
