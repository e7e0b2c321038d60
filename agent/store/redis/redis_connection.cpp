#include "store/redis/redis_connection.h"

#include <hiredis/hiredis.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;

tl::unexpected<Error> url_error(std::string_view reason) {
  return fail(Code::invalid, "redis url: " + std::string(reason) +
                                 "; write redis://[user:password@]host[:port], rediss://... for TLS, or unix:///path");
}

Result<std::uint32_t> parse_database(std::string_view text) {
  std::uint64_t number = 0;
  if (!parse_u64(text, number) || number > 0x7fffffff) return url_error("the database is not a number");
  return static_cast<std::uint32_t>(number);
}

void consume_credentials(std::string_view& rest, RedisEndpoint& out) {
  const auto at = rest.rfind('@');
  if (at == std::string_view::npos) return;
  const std::string_view credentials = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  const auto colon = credentials.find(':');
  if (colon != std::string_view::npos) out.password = decode_percent(credentials.substr(colon + 1));
  out.user = decode_percent(credentials.substr(0, colon));
}

Result<RedisEndpoint> parse_unix(std::string_view rest) {
  RedisEndpoint out;
  if (rest.starts_with("//")) {
    rest.remove_prefix(2);
    if (const auto slash = rest.find('/'); slash != 0 && slash != std::string_view::npos) {
      std::string_view authority = rest.substr(0, slash);
      consume_credentials(authority, out);
      if (!authority.empty()) return url_error("unix:// requires an absolute path");
      rest.remove_prefix(slash);
    }
  }
  const auto question = rest.find('?');
  if (question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with("db=")) return url_error("only ?db=N is supported after a path");
    MJ_TRY(database, parse_database(query.substr(3)));
    out.database = database;
    rest = rest.substr(0, question);
  }
  out.unix_path = decode_percent(rest);
  if (out.unix_path.empty()) return url_error("the path is empty");
  if (out.unix_path.front() != '/')
    return url_error("unix: requires an absolute path, for example unix:/run/redis/redis.sock");
  if (out.unix_path.size() > kMaxPath) {
    return fail(Code::invalid, "redis url: the path " + out.unix_path + " is longer than the " +
                                   std::to_string(kMaxPath) + " bytes that a socket may have; choose a shorter one");
  }
  return out;
}

Result<RedisEndpoint> parse_tcp(std::string_view rest) {
  RedisEndpoint out;
  consume_credentials(rest, out);
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) {
      MJ_TRY(database, parse_database(rest.substr(slash + 1)));
      out.database = database;
    }
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return url_error("a ] is missing after the address");
    out.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest[0] != ':') return url_error("the port is not behind a colon");
    if (!rest.empty()) port = rest.substr(1);
  } else {
    const auto colon = rest.rfind(':');
    out.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (out.host.empty()) return url_error("the host is missing");
  if (!port.empty()) {
    std::uint64_t number = 0;
    if (!parse_u64(port, number) || number == 0 || number > 65535) return url_error("the port is not from 1 to 65535");
    out.port = static_cast<std::uint16_t>(number);
  }
  return out;
}

}  // namespace

std::string RedisEndpoint::redacted_url() const {
  if (!unix_path.empty()) return unix_path;
  return (is_tls ? "rediss://" : "") + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

Result<RedisEndpoint> parse_redis_url(std::string_view url) {
  if (url.find('\0') != std::string_view::npos) return url_error("it contains a NUL");
  if (url.starts_with("redis://")) return parse_tcp(url.substr(8));
  if (url.starts_with("unix:")) return parse_unix(url.substr(5));
  if (url.starts_with("rediss://")) {
    MJ_TRY(endpoint, parse_tcp(url.substr(9)));
    endpoint.is_tls = true;
    return endpoint;
  }
  return url_error("it begins neither with redis:// nor with rediss:// or unix:");
}

Result<RedisEndpoint> parse_shared_redis_url(std::string_view url) {
  MJ_TRY(endpoint, parse_redis_url(url));
  if (endpoint.database.value_or(0) == 0) return endpoint;
  return fail(Code::invalid, "redis url: a context's id is its database; leave the " +
                                 std::to_string(*endpoint.database) + " away at the end");
}

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
    ServerErrorRow{"READONLY", Code::unavailable, "this is a replica: name the primary in the redis url"},
    ServerErrorRow{"MASTERDOWN", Code::unavailable, "this replica has lost its primary"},
    ServerErrorRow{"BUSY", Code::unavailable, "a script of another client runs too long: SCRIPT KILL ends it"},
    ServerErrorRow{"NOREPLICAS", Code::unavailable, "too few replicas: see min-replicas-to-write"},
    ServerErrorRow{"ERR max number of clients", Code::unavailable, "raise the server's maxclients"},
    ServerErrorRow{"CLUSTERDOWN", Code::unsupported, "Redis Cluster is not supported"},
    ServerErrorRow{"MOVED", Code::unsupported, "Redis Cluster is not supported"},
    ServerErrorRow{"MJTYPE", Code::invalid, "another client wrote it: delete or rename it"},
    ServerErrorRow{"WRONGTYPE", Code::invalid, "the key has another type: delete or rename it"},
    ServerErrorRow{"MJCONFLICT", Code::conflict, ""},
    ServerErrorRow{"MJFULL", Code::too_large, ""},
    ServerErrorRow{"MJDENIED", Code::denied, ""},
};

std::string one_line(std::string_view text) {
  // Removes the digest and line of the script at the end of its error, which are of no use to an operator.
  std::string out(text.substr(0, std::min<std::size_t>(text.find(" script: "), 400)));
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

Arguments append_arguments(Arguments call, const Arguments& arguments) {
  for (std::string_view text : arguments.list()) call.add(text);
  return call;
}

// Returns the value of the line "name:value" in the text of INFO, or an empty text.
std::string_view info_field(std::string_view info, std::string_view name) {
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

}  // namespace

RedisConnection::RedisConnection(Options options)
    : options_(std::move(options)), reader_(nullptr, redisReaderFree), was_connected_(options_.was_connected) {}
RedisConnection::~RedisConnection() = default;

void RedisConnection::close() {
  stream_.close();
  reader_.reset();
}

Result<void> RedisConnection::connect() {
  if (connected()) return {};
  if (options_.endpoint.is_tls && !options_.tls) options_.tls = std::make_shared<TlsContext>(TlsSettings());
  MJ_TRY(stream, RedisStream::connect(options_.endpoint, options_.tls, deadline_after(options_.connect_timeout_ms)));
  stream_ = std::move(stream);
  reader_.reset(redisReaderCreate());
  has_replied_ = is_not_redis_ = false;
  is_connecting_ = true;
  auto result = handshake();
  is_connecting_ = false;
  if (!result) close();
  was_connected_ = was_connected_ || result;
  if (!result && !was_connected_ && is_not_redis_) {
    if (!options_.endpoint.is_tls) result.error().message += kNoRedis;
    if (options_.endpoint.is_tls && options_.tls->settings().certificate.empty())
      result.error().message += kNoRedisWithTls;
  }
  return result;
}

Result<void> RedisConnection::handshake() {
  const RedisEndpoint& endpoint = options_.endpoint;
  if (!endpoint.password.empty() || !endpoint.user.empty()) {
    Arguments auth{"AUTH"};
    if (!endpoint.user.empty()) auth.add(endpoint.user);
    MJ_CHECK(command(auth.add(endpoint.password)));
  }
  MJ_CHECK(check_server());
  MJ_CHECK(command({"CLIENT", "SETNAME", options_.client_name}));
  MJ_TRY(id, exchange({"CLIENT", "ID"}, 0));
  client_id_ = id.number();
  if (abandoned_id_ != 0) MJ_CHECK(kill_client(abandoned_id_));
  abandoned_id_ = 0;
  return options_.database == 0 ? Result<void>() : select(options_.database);
}

Result<void> RedisConnection::kill_client(std::uint64_t id) {
  MJ_CHECK(exchange(Arguments{"CLIENT", "KILL", "ID"}.add(id), 0));
  return {};
}

Result<void> RedisConnection::select(std::uint32_t database) {
  MJ_TRY(selected, exchange(Arguments{"SELECT"}.add(std::uint64_t{database}), 0));
  if (selected.text().find("out of range") != std::string_view::npos) {
    auto setting = command({"CONFIG", "GET", "databases"});
    const std::string database_text =
        setting && setting->size() == 2 ? " has " + std::string(setting->at(1).text()) : " has too few";
    return fail(Code::unsupported, "context " + std::to_string(database) + " needs database " +
                                       std::to_string(database) + ", Redis at " + options_.endpoint.redacted_url() +
                                       database_text +
                                       ": raise the setting `databases` in its configuration and restart it");
  }
  if (selected.is_error()) return convert_refusal(selected);
  options_.database = database;
  return {};
}

void RedisConnection::set_timeouts(std::uint32_t connect_ms, std::uint32_t command_ms) {
  options_.connect_timeout_ms = connect_ms;
  options_.command_timeout_ms = command_ms;
}

RedisConnection::AbandonedClient RedisConnection::consume_abandoned() {
  return {std::exchange(abandoned_id_, 0), abandoned_run_id_};
}

Result<void> RedisConnection::check_server() {
  MJ_TRY(info, command({"INFO", "server"}));
  const std::string_view version = info_field(info.text(), "redis_version");
  run_id_ = info_field(info.text(), "run_id");
  if (abandoned_run_id_ != run_id_) abandoned_id_ = 0;  // on another server the id belongs to another client
  if (std::atoi(std::string(version).c_str()) < 7) {
    return fail(Code::unsupported, "Redis " + std::string(version.substr(0, 20)) + " at " +
                                       options_.endpoint.redacted_url() + " needs 7.0 or newer");
  }
  return {};
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
  const Deadline deadline = deadline_after(std::uint64_t{options_.command_timeout_ms} + extra_ms);
  int late_reads = 0;
  for (;;) {
    MJ_TRY(reply, next_reply());
    if (reply) return *reply;
    if (Deadline::clock::now() >= deadline && ++late_reads > kMaxLateReads) return abandon_connection(kNoAnswer);
    MJ_CHECK(read_until(deadline));
  }
}

Result<void> RedisConnection::send(const Arguments& arguments) {
  const auto list = arguments.list();
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
  const Deadline deadline = deadline_after(options_.command_timeout_ms);
  auto sent = stream_.send_all(std::string_view(formatted, static_cast<std::size_t>(size)), deadline);
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

Result<std::optional<Reply>> RedisConnection::next_reply() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
    is_not_redis_ = true;
    return abandon_connection(kOtherProtocol);
  }
  if (reply == nullptr) return std::nullopt;
  has_replied_ = true;
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
  return fail(std::move(reason), "Redis at " + options_.endpoint.redacted_url());
}

tl::unexpected<Error> RedisConnection::convert_refusal(const Reply& reply) const {
  Error error = redis_error(reply.text());
  if (error.code == Code::denied || error.code == Code::unavailable)
    error.message += " at " + options_.endpoint.redacted_url();
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs
