#include "store/redis_connection.h"

#include <hiredis/hiredis.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "base/ids.h"
#include "store/redis_errors.h"
#include "store/redis_socket.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxCommandBytes = 256U << 20;

// The value of "name:" in the text of INFO.
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
  MJ_TRY(socket, connect_socket(options_.endpoint, deadline_in(options_.connect_timeout_ms)));
  socket_ = std::move(socket);
  reader_.reset(redisReaderCreate());
  auto done = handshake();
  if (done && options_.on_connect) done = options_.on_connect(*this);
  if (!done) close();
  return done;
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
    const std::string has =
        setting && setting->size() == 2 ? " has " + std::string(setting->at(1).text()) : " has too few";
    return fail(Code::unsupported, "context " + std::to_string(options_.database) + " needs database " +
                                       std::to_string(options_.database) + ", Redis at " + endpoint.shown() + has +
                                       ": raise the setting `databases` in its configuration and restart it");
  }
  if (selected.error()) return refused(selected);
  return {};
}

Result<void> RedisConnection::check_server() {
  MJ_TRY(info, command({"INFO", "server"}));
  const std::string_view version = info_field(info.text(), "redis_version");
  run_id_ = info_field(info.text(), "run_id");
  if (abandoned_on_ != run_id_) abandoned_id_ = 0;  // ids of another server are other clients
  if (std::atoi(std::string(version).c_str()) < 7) {
    return fail(Code::unsupported, "Redis " + std::string(version.substr(0, 20)) + " at " + options_.endpoint.shown() +
                                       " needs 7.0 or newer");
  }
  return {};
}

// Between calls nothing is due: what can be read now is the end, of a server that was restarted, say.
Result<void> RedisConnection::connect_afresh_if_closed() {
  if (socket_) {
    pollfd idle{socket_.get(), POLLIN | POLLRDHUP, 0};
    if (::poll(&idle, 1, 0) != 0) close();
  }
  return connect();
}

Result<Reply> RedisConnection::command(const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(connect_afresh_if_closed());
  MJ_TRY(reply, exchange(arguments, extra_ms));
  if (reply.error()) return refused(reply);
  return reply;
}

Result<Reply> RedisConnection::run(const Script& script, const Arguments& arguments) {
  Arguments call{"EVALSHA", script.sha1, "0"};
  for (std::string_view each : arguments.list()) call.add(each);
  MJ_CHECK(connect_afresh_if_closed());
  MJ_TRY(reply, exchange(call, 0));
  if (!reply.text().starts_with("NOSCRIPT") || !reply.error()) {
    if (reply.error()) return refused(reply);
    return reply;
  }
  Arguments whole{"EVAL", script.text, "0"};
  for (std::string_view each : arguments.list()) whole.add(each);
  return command(whole);
}

Result<Reply> RedisConnection::exchange(const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(send(arguments));
  const Deadline deadline = deadline_in(std::uint64_t{options_.command_timeout_ms} + extra_ms);
  for (;;) {
    MJ_TRY(reply, received());
    if (reply) return *reply;
    MJ_CHECK(feed_reader(deadline));
  }
}

Result<void> RedisConnection::send(const Arguments& arguments) {
  const auto list = arguments.list();
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  std::size_t total = 0;
  for (std::string_view each : list) {
    texts.push_back(each.data() == nullptr ? "" : each.data());
    lengths.push_back(each.size());
    total += each.size() + 16;
  }
  if (total > kMaxCommandBytes) {
    return fail(Code::too_large, "redis: a command of " + std::to_string(total) + " bytes is over the limit of " +
                                     std::to_string(kMaxCommandBytes));
  }
  char* formatted = nullptr;
  const int size = redisFormatCommandArgv(&formatted, static_cast<int>(list.size()), texts.data(), lengths.data());
  if (size < 0) return fail(Code::internal, "redis: out of memory");
  const std::unique_ptr<char, void (*)(char*)> owner(formatted, redisFreeCommand);
  const Deadline deadline = deadline_in(options_.command_timeout_ms);
  std::string why = send_all(socket_.get(), std::string_view(formatted, static_cast<std::size_t>(size)), deadline);
  if (!why.empty()) return broken(why);
  return {};
}

Result<void> RedisConnection::read_some() { return feed_reader(deadline_in(0)); }

Result<void> RedisConnection::feed_reader(Deadline deadline) {
  std::array<char, 32768> room;  // NOLINT(*-member-init): filled by what is received
  std::size_t got = 0;
  if (std::string why = receive_some(socket_.get(), room, got, deadline); !why.empty()) return broken(why);
  if (redisReaderFeed(reader_.get(), room.data(), got) != REDIS_OK) return broken("not the Redis protocol");
  if (reader_->len - reader_->pos > options_.max_reply_bytes) return broken("an answer that is too long");
  return {};
}

Result<std::optional<Reply>> RedisConnection::received() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) return broken("not the Redis protocol");
  if (reply == nullptr) return std::nullopt;
  return Reply(std::shared_ptr<const redisReply>(
      static_cast<redisReply*>(reply), [](const redisReply* r) { freeReplyObject(const_cast<redisReply*>(r)); }));
}

// A server that fell silent would still read what it was sent, and do it, long after its sender was told that it
// failed.
void RedisConnection::abandon() {
  if (client_id_ != 0) {
    abandoned_id_ = std::exchange(client_id_, 0);
    abandoned_on_ = run_id_;
  }
  close();
}

tl::unexpected<Error> RedisConnection::broken(const std::string& why) {
  abandon();
  return fail(Code::unavailable, "Redis at " + options_.endpoint.shown() + ": " + why);
}

tl::unexpected<Error> RedisConnection::refused(const Reply& reply) const {
  Error error = redis_error(reply.text());
  if (error.code == Code::denied || error.code == Code::unavailable)
    error.message += " at " + options_.endpoint.shown();
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace mycojobs
