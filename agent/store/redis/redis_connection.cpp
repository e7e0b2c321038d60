#include "store/redis/redis_connection.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "store/redis/forbidden_commands.h"

namespace mycojobs {
namespace {

constexpr const char* kNoAnswer = "no answer in time";
constexpr const char* kOtherProtocol = "not the Redis protocol";
// Added to an error if no connection to this server has ever been established.
constexpr const char* kNoRedis =
    " (the server is not Redis, or this port requires TLS: use rediss://, or another port)";
constexpr const char* kNoRedisWithTls =
    " (the server is not Redis, or requires a client certificate: redis_tls.cert and redis_tls.key)";

struct ServerErrorRow {
  std::string_view prefix;  // start of the server's text
  Code code;
  std::string_view remedy;
};

constexpr std::string_view kNotThisUser =
    "this Redis user has no permission: `mycojobs context acl` prints the permissions of each role; an agent, a "
    "coordinator or an operator must open a new Redis first";

constexpr std::string_view kNoCluster =
    "Redis Cluster is not supported: use a server without cluster mode, or one for each context ([contexts.N] redis = "
    "\"...\")";

constexpr std::array kServerErrors{
    ServerErrorRow{"WRONGPASS", Code::denied, "wrong user or password in the redis url"},
    ServerErrorRow{"NOAUTH", Code::denied, "the server requires a password: redis://:password@host"},
    ServerErrorRow{"ERR AUTH <password> called without", Code::denied,
                   "the server has no password: remove it from the redis url"},
    ServerErrorRow{"ERR Client sent AUTH, but no password", Code::denied,
                   "the server has no password: remove it from the redis url"},
    ServerErrorRow{"NOPERM", Code::denied, "this Redis user has no permission: see ACL SETUSER"},
    ServerErrorRow{"ERR The user executing the script can't", Code::denied, kNotThisUser},
    ServerErrorRow{"ERR ACL failure in script", Code::denied, kNotThisUser},  // text of Redis 7.2 and later
    ServerErrorRow{"DENIED", Code::denied,
                   "the server's protected mode rejects this client: set a password or a bind address"},
    ServerErrorRow{"LOADING", Code::unavailable, "the server is still reading its data"},
    ServerErrorRow{"OOM", Code::unavailable, "raise the server's maxmemory or free some"},
    ServerErrorRow{"MISCONF", Code::unavailable, "the server cannot write its data: check its log and its disk"},
    ServerErrorRow{"READONLY", Code::unavailable,
                   "this is a replica: name the master in the redis url, or use redis+sentinel://"},
    ServerErrorRow{"UNBLOCKED", Code::unavailable, "the server has become a replica"},
    ServerErrorRow{"MASTERDOWN", Code::unavailable, "this replica has lost its master"},
    ServerErrorRow{"BUSY", Code::unavailable, "a script of another client runs too long: SCRIPT KILL ends it"},
    ServerErrorRow{"NOREPLICAS", Code::unavailable, "too few replicas: see min-replicas-to-write"},
    ServerErrorRow{"ERR max number of clients", Code::unavailable, "raise the server's maxclients"},
    ServerErrorRow{"CLUSTERDOWN", Code::unsupported, kNoCluster},
    ServerErrorRow{"MOVED", Code::unsupported, kNoCluster},
    ServerErrorRow{"MJTYPE", Code::invalid, "another client wrote it: delete or rename it"},
    ServerErrorRow{"WRONGTYPE", Code::invalid, "the key has another type: delete or rename it"},
    ServerErrorRow{"MJCONFLICT", Code::conflict, ""},
    ServerErrorRow{"MJFULL", Code::too_large, ""},
    ServerErrorRow{"MJDENIED", Code::denied, ""},
    ServerErrorRow{"MJNOTFOUND", Code::not_found, ""},
    ServerErrorRow{"MJINVALID", Code::invalid, ""},
};

std::string one_line(std::string_view text) {
  // Removes the digest and line of the script at the end of its error, which are of no use to an operator.
  // Redis repeats the arguments of an unknown command, such as the password of AUTH.
  std::string out(text.substr(0, std::min({text.find(" script: "), text.find(", with args"), std::size_t{400}})));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return out;
}

}  // namespace

Error redis_error(std::string_view server_text) {
  const std::string line = one_line(server_text);
  for (const ServerErrorRow& row : kServerErrors) {
    if (!server_text.starts_with(row.prefix)) continue;
    // The errors of the project's scripts start with a word MJ..., which only selects the row of the table.
    const std::string text = line.starts_with("MJ") ? line.substr(line.find(' ') + 1) : line;
    return {row.code, "redis: " + text + (row.remedy.empty() ? "" : " (" + std::string(row.remedy) + ")")};
  }
  return {Code::internal, "redis: " + line};
}

namespace {

constexpr std::size_t kMaxCommandBytes = 256U << 20;
constexpr std::size_t kReadBytes = 32768;
// Maximum number of reads after the deadline of a reply, which read data that has already arrived. Without it, a server
// that sends faster than this client reads would extend the deadline.
constexpr int kMaxLateReads = 64;
constexpr std::size_t kMinElementBytes = 4;  // the shortest element of an array is ":1\r\n"

const redisReplyObjectFunctions& default_reply_functions() {
  static const redisReplyObjectFunctions functions = [] {
    const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(), redisReaderFree);
    return *reader->fn;
  }();
  return functions;
}

// hiredis allocates an array for the number of elements in its header, before the elements arrive. Returns null if the
// number is higher than the number that task->privdata points to. `Count` is int, or size_t in newer versions.
template <class Count>
void* create_bounded_array(const redisReadTask* task, Count elements) {
  auto& elements_left = *static_cast<std::size_t*>(task->privdata);
  if (std::cmp_greater(elements, elements_left)) return nullptr;
  elements_left -= static_cast<std::size_t>(elements);
  return default_reply_functions().createArray(task, elements);
}

// Creates a reader that accepts replies of at most `elements_left` elements. The pointer must outlive the reader.
redisReader* create_bounded_reader(std::size_t* elements_left) {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions out = default_reply_functions();
    out.createArray = &create_bounded_array;
    return out;
  }();
  redisReader* const reader = redisReaderCreate();
  reader->fn = &functions;
  reader->privdata = elements_left;
  return reader;
}

Arguments append_arguments(Arguments call, const Arguments& arguments) {
  for (std::string_view text : arguments.list()) call.add(text);
  return call;
}

// Appends a command in the protocol of Redis. Errors: too_large, internal.
Result<void> append_command(std::string& out, std::span<const std::string_view> list) {
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  std::size_t total = 0;
  for (std::string_view text : list) {
    texts.push_back(text.data() == nullptr ? "" : text.data());
    lengths.push_back(text.size());
    total += text.size() + 16;
  }
  if (total > kMaxCommandBytes) {
    return fail(Code::too_large, "redis: a command of " + std::to_string(total) + " bytes is over the limit of " +
                                     std::to_string(kMaxCommandBytes));
  }
  char* formatted = nullptr;
  // The return type is int, or long long in newer versions of hiredis.
  const auto size = redisFormatCommandArgv(&formatted, static_cast<int>(list.size()), texts.data(), lengths.data());
  if (size < 0) return fail(Code::internal, "redis: out of memory");
  const std::unique_ptr<char, void (*)(char*)> owner(formatted, redisFreeCommand);
  out.append(formatted, static_cast<std::size_t>(size));
  return {};
}

}  // namespace

std::string_view find_info_field(std::string_view info, std::string_view name) {
  std::size_t at = 0;
  while (at < info.size()) {
    const std::size_t line_end = std::min(info.find('\n', at), info.size());
    std::string_view line = info.substr(at, line_end - at);
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      line.remove_prefix(name.size() + 1);
      return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
    }
    at = line_end + 1;
  }
  return {};
}

RedisConnection::RedisConnection(Options options)
    : options_(std::move(options)),
      server_(options_.endpoint),
      reader_(nullptr, redisReaderFree),
      was_connected_(options_.was_connected) {}
RedisConnection::~RedisConnection() = default;

void RedisConnection::close() {
  client_id_ = 0;
  watched_socket_.reset();
  stream_.close();
  reader_.reset();
}

Result<void> RedisConnection::connect() {
  if (connected()) return {};
  const RedisEndpoint& endpoint = options_.endpoint;
  if (endpoint.is_tls && !options_.tls) options_.tls = std::make_shared<TlsContext>(TlsSettings());
  const Deadline deadline = deadline_after(options_.connect_timeout_ms);
  if (!endpoint.uses_sentinels()) return connect_to(endpoint, nullptr, deadline);
  if (!sentinels_) sentinels_ = SentinelGroup::find(endpoint, options_.tls, options_.sentinel);
  return sentinels_->connect_to_master(deadline, [this](const MasterCandidate& candidate, Deadline limit) {
    return connect_to(options_.endpoint.with_address(candidate.address), &candidate, limit);
  });
}

// candidate: the announcement of a sentinel; null without sentinels.
Result<void> RedisConnection::connect_to(const RedisEndpoint& server, const MasterCandidate* candidate,
                                         Deadline deadline) {
  server_ = server;
  MJ_TRY(stream, RedisStream::connect(server_, options_.tls, deadline));
  stream_ = std::move(stream);
  if (candidate != nullptr) watched_socket_ = sentinels_->watch(stream_.fd(), *candidate);
  reader_.reset(create_bounded_reader(&elements_left_));
  elements_left_ = max_elements();
  has_replied_ = is_not_redis_ = false;
  is_connecting_ = true;
  handshake_deadline_ = deadline_after(std::uint64_t{options_.connect_timeout_ms} + options_.command_timeout_ms);
  auto result = handshake();
  is_connecting_ = false;
  if (!result) close();
  was_connected_ = was_connected_ || result;
  if (!result && !was_connected_ && is_not_redis_) {
    if (!server_.is_tls) result.error().message += kNoRedis;
    if (server_.is_tls && options_.tls->settings().certificate.empty()) result.error().message += kNoRedisWithTls;
  }
  return result;
}

Result<void> RedisConnection::handshake() {
  const RedisEndpoint& endpoint = server_;
  if (!endpoint.password.empty() || !endpoint.user.empty()) {
    Arguments auth{"AUTH"};
    if (!endpoint.user.empty()) auth.add(endpoint.user);
    MJ_CHECK(command(auth.add(endpoint.password)));
  }
  MJ_CHECK(check_server());
  if (sentinels_) MJ_CHECK(check_role());
  MJ_CHECK(command_if_allowed({"CLIENT", "SETNAME", options_.client_name}));
  MJ_TRY(id, command_if_allowed({"CLIENT", "ID"}));
  client_id_ = id ? id->number() : 0;
  if (abandoned_id_ != 0) MJ_CHECK(kill_client(abandoned_id_));
  abandoned_id_ = 0;
  // Database 0 needs no SELECT, which some services forbid.
  return options_.database == 0 ? Result<void>() : select(options_.database);
}

Result<void> RedisConnection::kill_client(std::uint64_t id) {
  MJ_CHECK(command_if_allowed(Arguments{"CLIENT", "KILL", "ID"}.add(id)));
  return {};
}

Result<void> RedisConnection::select(std::uint32_t database) {
  MJ_TRY(selected, exchange(Arguments{"SELECT"}.add(std::uint64_t{database}), 0));
  if (!selected.is_error()) {
    options_.database = database;
    return {};
  }
  const std::string place = "database " + std::to_string(database) + " of Redis at " + options_.endpoint.redacted_url();
  constexpr std::string_view kOwnDatabase =
      "give the context another server with [contexts.ID] redis = \"redis://OTHER_HOST/0\"";
  if (selected.text().find("out of range") != std::string_view::npos) {
    auto setting = command({"CONFIG", "GET", "databases"});
    const std::string count =
        setting && setting->size() == 2 ? " (it has " + std::string(setting->at(1).text()) + ")" : "";
    return fail(Code::unsupported, place + " does not exist" + count +
                                       ": raise the setting `databases` in its configuration and restart it, or " +
                                       std::string(kOwnDatabase));
  }
  // NOPERM means that this user may not select the database.
  if (is_forbidden_command(selected.text()) && !selected.text().starts_with("NOPERM"))
    return fail(Code::unsupported,
                place + " cannot be used, because the server forbids SELECT: " + std::string(kOwnDatabase));
  return convert_refusal(selected);
}

void RedisConnection::set_timeouts(std::uint32_t connect_ms, std::uint32_t command_ms) {
  options_.connect_timeout_ms = connect_ms;
  options_.command_timeout_ms = command_ms;
}

RedisConnection::AbandonedClient RedisConnection::consume_abandoned() {
  return {std::exchange(abandoned_id_, 0), abandoned_run_id_};
}

Result<void> RedisConnection::check_server() {
  MJ_TRY(info, command_if_allowed({"INFO", "server"}));
  const std::string_view text = info ? info->text() : std::string_view();
  const std::string_view version = find_info_field(text, "redis_version");
  run_id_ = find_info_field(text, "run_id");
  // On another server, or on a server that may be another one, the id belongs to another client.
  if (run_id_.empty() || abandoned_run_id_ != run_id_) abandoned_id_ = 0;
  const std::string at_address = " at " + server_.redacted_url();
  std::string_view mode = find_info_field(text, "redis_mode");
  if (mode.empty()) mode = find_info_field(text, "server_mode");  // Valkey
  if (mode == "cluster")
    return fail(Code::unsupported, "Redis" + at_address + " is in cluster mode: " + std::string(kNoCluster));
  if (mode == "sentinel" && !options_.is_sentinel) {
    return fail(Code::invalid, "the server" + at_address + " is a sentinel: write redis+sentinel://" +
                                   server_.address().text() + "/MASTER");
  }
  if (mode == "standalone" && options_.is_sentinel)
    return fail(Code::invalid, "the server" + at_address + " is not a sentinel: write its address as redis://");
  if (!version.empty() && std::atoi(std::string(version).c_str()) < 7 && !options_.is_sentinel)
    return fail(Code::unsupported, "Redis " + std::string(version.substr(0, 20)) + at_address + " needs 7.0 or newer");
  return {};
}

// A sentinel may be late, or announce a wrong address. INFO has the same role as ROLE, which the users of `context acl`
// of former versions may not call.
Result<void> RedisConnection::check_role() {
  MJ_TRY(info, command({"INFO", "replication"}));
  const ReplicationState state = parse_replication_state(info.text());
  const RedisAddress address = server_.address();
  if (state.is_master) {
    sentinels_->on_connected(address, state);
    return {};
  }
  close();
  sentinels_->on_demotion(address);
  return fail(Code::unavailable, "it is a replica" + (state.master.empty() ? "" : " of " + state.master));
}

Result<std::optional<Reply>> RedisConnection::command_if_allowed(const Arguments& arguments) {
  MJ_CHECK(reconnect_if_closed());
  MJ_TRY(reply, exchange(arguments, 0));
  if (!reply.is_error()) return reply;
  if (!is_forbidden_command(reply.text())) return convert_refusal(reply);
  note_forbidden_command(options_.endpoint.redacted_url(), arguments.list().front(), reply.text());
  return std::nullopt;
}

// Between calls no reply is outstanding. Data therefore means that the connection cannot be used any more.
bool RedisConnection::closed_by_server() { return stream_.is_closed_or_has_data(); }

Result<void> RedisConnection::reconnect_if_closed() {
  // A new connection that the server closes is not replaced, so that the caller gets the reason, once.
  const bool may_connect = options_.reconnects && !is_connecting_;
  if (!may_connect && !connected()) return abandon_connection("the server closed the connection");
  if (!may_connect) return {};
  if (connected() && closed_by_server()) close();
  return connect();
}

Result<Reply> RedisConnection::command(const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(reconnect_if_closed());
  MJ_TRY(reply, exchange(arguments, extra_ms));
  if (reply.is_error()) return convert_refusal(reply);
  return reply;
}

Result<Reply> RedisConnection::command_pair(const Arguments& first, const Arguments& second, std::uint32_t extra_ms) {
  MJ_CHECK(reconnect_if_closed());
  MJ_CHECK(send(first));
  MJ_CHECK(send(second));
  MJ_TRY(first_reply, await(0));
  MJ_TRY(second_reply, await(extra_ms));
  if (first_reply.is_error()) return convert_refusal(first_reply);
  if (second_reply.is_error()) return convert_refusal(second_reply);
  return second_reply;
}

Result<Reply> RedisConnection::run(const Script& script, const Arguments& arguments) {
  MJ_CHECK(reconnect_if_closed());
  return run_with_text(script, arguments, exchange(append_arguments({"EVALSHA", script.sha1, "0"}, arguments), 0));
}

Result<Reply> RedisConnection::run_with_text(const Script& script, const Arguments& arguments,
                                             Result<Reply> by_digest) {
  if (!by_digest || !by_digest->is_error()) return by_digest;
  if (!by_digest->text().starts_with("NOSCRIPT")) return convert_refusal(*by_digest);
  return command(append_arguments({"EVAL", script.text, "0"}, arguments));
}

std::optional<int> RedisConnection::begin(const Script& script, const Arguments& arguments) {
  // This number of bytes fits into the send buffer of an idle socket, so that send() does not block.
  constexpr std::size_t kMaxNonBlockingBytes = 8192;
  std::size_t bytes = 0;
  for (std::string_view text : arguments.list()) bytes += text.size() + 16;
  if (!connected() || bytes > kMaxNonBlockingBytes || closed_by_server()) return std::nullopt;
  if (!send(append_arguments({"EVALSHA", script.sha1, "0"}, arguments))) return std::nullopt;
  return fd();
}

Result<Reply> RedisConnection::finish(const Script& script, const Arguments& arguments) {
  return run_with_text(script, arguments, await(0));
}

Result<Reply> RedisConnection::exchange(const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(send(arguments));
  return await(extra_ms);
}

Result<Reply> RedisConnection::await(std::uint32_t extra_ms) {
  Deadline deadline = deadline_after(std::uint64_t{options_.command_timeout_ms} + extra_ms);
  if (is_connecting_) deadline = std::min(deadline, handshake_deadline_);
  int late_reads = 0;
  for (;;) {
    MJ_TRY(reply, next_reply());
    if (reply) return *reply;
    if (Deadline::clock::now() >= deadline && ++late_reads > kMaxLateReads) return abandon_connection(kNoAnswer);
    MJ_CHECK(read_until(deadline));
  }
}

Result<void> RedisConnection::send_all(std::span<const Arguments> commands) {
  std::string bytes;
  for (const Arguments& command : commands) MJ_CHECK(append_command(bytes, command.list()));
  auto sent = stream_.send_all(bytes, deadline_after(options_.command_timeout_ms));
  if (!sent) return abandon_connection(std::move(sent).error());
  return {};
}

Result<void> RedisConnection::read_some() {
  std::array<char, kReadBytes> buffer;  // NOLINT(*-member-init): filled by receive_available()
  auto received = stream_.receive_available(buffer);
  if (!received) return abandon_after_read(std::move(received).error());
  return *received == 0 ? Result<void>() : feed_reader(std::string_view(buffer.data(), *received));
}

Result<void> RedisConnection::read_until(Deadline deadline) {
  std::array<char, kReadBytes> buffer;  // NOLINT(*-member-init): filled by receive()
  auto received = stream_.receive(buffer, deadline);
  if (!received) return abandon_after_read(std::move(received).error());
  return feed_reader(std::string_view(buffer.data(), *received));
}

tl::unexpected<Error> RedisConnection::abandon_after_read(Error error) {
  // A server that accepts only TLS closes or resets the connection at the first plain command.
  is_not_redis_ = !has_replied_ && stream_.is_closed_by_peer() && error.code == Code::unavailable;
  return abandon_connection(std::move(error));
}

Result<void> RedisConnection::feed_reader(std::string_view bytes) {
  if (redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) != REDIS_OK) return abandon_connection(kOtherProtocol);
  if (reader_->len - reader_->pos > options_.max_reply_bytes) return abandon_connection("the answer is too long");
  return {};
}

std::size_t RedisConnection::max_elements() const { return options_.max_reply_bytes / kMinElementBytes; }

Result<std::optional<Reply>> RedisConnection::next_reply() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
    if (reader_->err == REDIS_ERR_OOM) return abandon_connection("the answer is too long");
    is_not_redis_ = true;
    return abandon_connection(kOtherProtocol);
  }
  if (reply == nullptr) return std::nullopt;
  has_replied_ = true;
  elements_left_ = max_elements();
  return Reply(std::shared_ptr<const redisReply>(
      static_cast<redisReply*>(reply), [](const redisReply* r) { freeReplyObject(const_cast<redisReply*>(r)); }));
}

// A server that does not answer in time can read and execute a command long after the caller has got the error. The
// next handshake kills the connection on the server (CLIENT KILL), after which its unread commands are never executed.
void RedisConnection::close_after_error() {
  if (client_id_ != 0) {
    abandoned_id_ = std::exchange(client_id_, 0);
    abandoned_run_id_ = run_id_;
  }
  close();
}

tl::unexpected<Error> RedisConnection::abandon_connection(Error reason) {
  close_after_error();
  return fail(std::move(reason), "Redis at " + server_.redacted_url());
}

tl::unexpected<Error> RedisConnection::convert_refusal(const Reply& reply) {
  Error error = redis_error(reply.text());
  if (error.code == Code::denied || error.code == Code::unavailable) error.message += " at " + server_.redacted_url();
  if (reply.text().starts_with("READONLY") || reply.text().starts_with("UNBLOCKED")) {
    close();  // the next connection may find the new master
    if (sentinels_) sentinels_->on_demotion(server_.address());
  }
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs
