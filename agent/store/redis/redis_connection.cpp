#include "store/redis/redis_connection.h"

#include <hiredis/hiredis.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/errno_text.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;

tl::unexpected<Error> url_error(std::string_view reason) {
  return fail(Code::invalid,
              "redis url: " + std::string(reason) + "; write redis://[user:password@]host[:port] or unix:///path");
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
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

Result<RedisEndpoint> parse_redis_url(std::string_view url) {
  if (url.find('\0') != std::string_view::npos) return url_error("it contains a NUL");
  if (url.starts_with("redis://")) return parse_tcp(url.substr(8));
  if (url.starts_with("unix:")) return parse_unix(url.substr(5));
  if (url.starts_with("rediss://")) {
    return fail(Code::unsupported, "redis url: rediss:// (TLS) is not supported; use a tunnel such as stunnel");
  }
  return url_error("it begins neither with redis:// nor with unix:");
}

Result<RedisEndpoint> parse_shared_redis_url(std::string_view url) {
  MJ_TRY(endpoint, parse_redis_url(url));
  if (endpoint.database.value_or(0) == 0) return endpoint;
  return fail(Code::invalid, "redis url: a context's id is its database; leave the " +
                                 std::to_string(*endpoint.database) + " away at the end");
}

Deadline deadline_after(std::uint64_t ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }

namespace {

// Waits for events of a descriptor. Returns 0 or an errno; ETIMEDOUT: the deadline has passed.
int wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto remaining =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poll_fd{fd, events, 0};
    const int ready =
        ::poll(&poll_fd, 1, static_cast<int>(std::clamp<std::int64_t>(remaining.count() + 1, 0, 1 << 30)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
    if (std::chrono::steady_clock::now() >= deadline) return ETIMEDOUT;
  }
}

// Connects a new non-blocking socket. Returns 0 or an errno.
int connect_to(Fd& out, int family, const sockaddr* address, socklen_t size, Deadline deadline) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno;
  if (::connect(fd.get(), address, size) != 0) {
    if (errno != EINPROGRESS) return errno;  // EAGAIN means that the backlog of a unix socket is full
    if (const int error = wait_for(fd.get(), POLLOUT, deadline); error != 0) return error;
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  out = std::move(fd);
  return 0;
}

int connect_unix(Fd& out, const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.data(), path.size());
  return connect_to(out, AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

void tune_tcp(int fd) {
  const int on = 1;
  const int idle_s = 15;
  const int interval_s = 5;
  const int probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

tl::unexpected<Error> unreachable(const RedisEndpoint& endpoint, const std::string& reason, std::string_view remedy) {
  return fail(Code::unavailable, "cannot connect to Redis at " + endpoint.redacted_url() + ": " + reason +
                                     (remedy.empty() ? "" : " (" + std::string(remedy) + ")"));
}

std::string_view find_remedy(int error, bool is_path) {
  switch (error) {
    case ENOENT:
      return "the socket does not exist: check that Redis runs and that its setting `unixsocket` has this path";
    case ECONNREFUSED:
      return is_path ? "no process listens on the socket: check that Redis runs"
                     : "no process listens there: check that Redis runs, that the port of the redis url is correct, "
                       "and that its setting `bind` has this address";
    case ENETUNREACH:
    case EHOSTUNREACH:
      return "no route to the host: is the host of the redis url right?";
    case ETIMEDOUT:
      return "no answer: check the host of the redis url and whether a firewall blocks its port";
    case EACCES:
      return "this user has no permission for the socket: see the Redis setting `unixsocketperm`";
    default:
      return "";
  }
}

// Connects to the first address of the host that accepts. Error: unavailable, naming the endpoint.
Result<Fd> connect_socket(const RedisEndpoint& endpoint, Deadline deadline) {
  Fd fd;
  if (!endpoint.unix_path.empty()) {
    const int error = connect_unix(fd, endpoint.unix_path, deadline);
    if (error != 0) return unreachable(endpoint, errno_text(error), find_remedy(error, true));
    return fd;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first_address = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &first_address);
  if (error != 0) {
    return unreachable(endpoint, ::gai_strerror(error),
                       error == EAI_AGAIN ? "no name server answers" : "is the host of the redis url right?");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(first_address, ::freeaddrinfo);
  int last_error = ETIMEDOUT;
  for (const addrinfo* address = first_address; address != nullptr; address = address->ai_next) {
    last_error = connect_to(fd, address->ai_family, address->ai_addr, address->ai_addrlen, deadline);
    if (last_error == 0) {
      tune_tcp(fd.get());
      return fd;
    }
  }
  return unreachable(endpoint, errno_text(last_error), find_remedy(last_error, false));
}

// Sends all bytes. Returns an empty text, or the reason of the failure.
std::string send_all(int fd, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(fd, POLLOUT, deadline); error != 0) return errno_text(error);
    } else if (errno != EINTR) {
      return errno_text(errno);
    }
  }
  return {};
}

constexpr const char* kClosed = "the server closed the connection";
constexpr const char* kOtherProtocol = "not the Redis protocol";
// Added to an error if no connection to this server has ever been established.
constexpr const char* kNoRedis =
    " (the server is not Redis, or requires TLS, which needs a tunnel such as stunnel: check the port of the redis "
    "url)";

// Receives the available bytes, at least one, and sets `received` to their number. Returns an empty text, or the reason
// of the failure.
std::string receive_some(int fd, std::span<char> buffer, std::size_t& received, Deadline deadline) {
  for (;;) {
    const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (count > 0) {
      received = static_cast<std::size_t>(count);
      return {};
    }
    if (count == 0) return kClosed;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int error = wait_for(fd, POLLIN, deadline);
      if (error == ETIMEDOUT) return "no answer in time";
      if (error != 0) return errno_text(error);
    } else if (errno != EINTR) {
      return errno_text(errno);
    }
  }
}

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

RedisConnection::RedisConnection(Options options) : options_(std::move(options)), reader_(nullptr, redisReaderFree) {}
RedisConnection::~RedisConnection() = default;

void RedisConnection::close() {
  socket_.reset();
  reader_.reset();
}

Result<void> RedisConnection::connect() {
  if (connected()) return {};
  MJ_TRY(socket, connect_socket(options_.endpoint, deadline_after(options_.connect_timeout_ms)));
  socket_ = std::move(socket);
  reader_.reset(redisReaderCreate());
  has_replied_ = is_not_redis_ = false;
  auto result = handshake();
  if (result && options_.on_connect) result = options_.on_connect(*this);
  if (!result) close();
  was_connected_ = was_connected_ || result;
  if (!result && !was_connected_ && is_not_redis_) result.error().message += kNoRedis;
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
  if (abandoned_id_ != 0) MJ_CHECK(exchange(Arguments{"CLIENT", "KILL", "ID"}.add(abandoned_id_), 0));
  abandoned_id_ = 0;
  if (options_.database == 0) return {};
  MJ_TRY(selected, exchange(Arguments{"SELECT"}.add(std::uint64_t{options_.database}), 0));
  if (selected.text().find("out of range") != std::string_view::npos) {
    auto setting = command({"CONFIG", "GET", "databases"});
    const std::string database_text =
        setting && setting->size() == 2 ? " has " + std::string(setting->at(1).text()) : " has too few";
    return fail(Code::unsupported, "context " + std::to_string(options_.database) + " needs database " +
                                       std::to_string(options_.database) + ", Redis at " + endpoint.redacted_url() +
                                       database_text +
                                       ": raise the setting `databases` in its configuration and restart it");
  }
  if (selected.is_error()) return convert_refusal(selected);
  return {};
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

// Between calls no reply is outstanding. A readable socket therefore means that the server has closed the connection,
// for example at a restart.
bool RedisConnection::closed_by_server() const {
  pollfd idle{socket_.get(), POLLIN | POLLRDHUP, 0};
  return ::poll(&idle, 1, 0) != 0;
}

Result<void> RedisConnection::reconnect_if_closed() {
  if (socket_ && closed_by_server()) close();
  return connect();
}

Result<Reply> RedisConnection::command(const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(reconnect_if_closed());
  MJ_TRY(reply, exchange(arguments, extra_ms));
  if (reply.is_error()) return convert_refusal(reply);
  return reply;
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
  if (!socket_ || bytes > kMaxNonBlockingBytes || closed_by_server()) return std::nullopt;
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
  for (;;) {
    MJ_TRY(reply, next_reply());
    if (reply) return *reply;
    MJ_CHECK(feed_reader(deadline));
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
  std::string reason = send_all(socket_.get(), std::string_view(formatted, static_cast<std::size_t>(size)), deadline);
  if (!reason.empty()) return abandon_connection(reason);
  return {};
}

Result<void> RedisConnection::read_some() { return feed_reader(deadline_after(0)); }

Result<void> RedisConnection::feed_reader(Deadline deadline) {
  std::array<char, 32768> buffer;  // NOLINT(*-member-init): filled by recv()
  std::size_t count = 0;
  std::string reason = receive_some(socket_.get(), buffer, count, deadline);
  // A server that accepts only TLS closes or resets the connection at the first plain command.
  is_not_redis_ = !has_replied_ && (reason == kClosed || reason == errno_text(ECONNRESET));
  if (!reason.empty()) return abandon_connection(reason);
  if (redisReaderFeed(reader_.get(), buffer.data(), count) != REDIS_OK) return abandon_connection(kOtherProtocol);
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

tl::unexpected<Error> RedisConnection::abandon_connection(const std::string& reason) {
  close_after_error();
  return fail(Code::unavailable, "Redis at " + options_.endpoint.redacted_url() + ": " + reason);
}

tl::unexpected<Error> RedisConnection::convert_refusal(const Reply& reply) const {
  Error error = redis_error(reply.text());
  if (error.code == Code::denied || error.code == Code::unavailable)
    error.message += " at " + options_.endpoint.redacted_url();
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs
