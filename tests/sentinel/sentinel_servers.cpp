#include "sentinel/sentinel_servers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>

#include "store/redis/redis_connection.h"
#include "tls/tls_servers.h"

namespace mycojobs::test {

RedisGroup::RedisGroup(const TempDir& folder, GroupOptions options) : folder_(folder), options_(std::move(options)) {
  for (std::size_t i = 0; i < kServers; ++i) {
    server_ports_[i] = find_free_port();
    sentinel_ports_[i] = find_free_port();
  }
  for (std::size_t i = 0; i < kServers; ++i) start_server(i);
  for (std::size_t i = 1; i < kServers; ++i)
    EXPECT_TRUE(command(i, {"REPLICAOF", "127.0.0.1", std::to_string(server_ports_[0])}));
  for (std::size_t i = 0; i < kServers; ++i) {
    std::string text = "port " + std::to_string(sentinel_ports_[i]) + "\nbind 127.0.0.1\ndir " +
                       folder_.path().string() + "\nsentinel monitor mymaster 127.0.0.1 " +
                       std::to_string(server_ports_[0]) +
                       " 2\nsentinel down-after-milliseconds mymaster 1500\nsentinel failover-timeout mymaster 3000\n";
    for (const std::string& line : options_.sentinel_lines) text += line + '\n';
    if (!options_.sentinel_password.empty())
      text +=
          "requirepass " + options_.sentinel_password + "\nsentinel sentinel-pass " + options_.sentinel_password + '\n';
    folder_.write("sentinel" + std::to_string(i) + ".conf", text);
    start_sentinel(i);
  }
  EXPECT_TRUE(wait_until_complete());
}

void RedisGroup::start_server(std::size_t server) {
  const std::string name = "server" + std::to_string(server);
  std::filesystem::create_directory(folder_ / name);
  std::vector<std::string> arguments{"redis-server",
                                     "--port",
                                     std::to_string(server_ports_[server]),
                                     "--bind",
                                     "127.0.0.1",
                                     "--dir",
                                     folder_ / name,
                                     "--save",
                                     "",
                                     "--appendonly",
                                     "yes",
                                     "--repl-diskless-sync-delay",
                                     "0"};
  arguments.insert(arguments.end(), options_.server_options.begin(), options_.server_options.end());
  servers_[server] = std::make_unique<Process>(folder_, arguments, options_.environments[server]);
  EXPECT_TRUE(eventually([&] { return command(server, {"PING"}).has_value(); })) << servers_[server]->out();
}

void RedisGroup::kill_server(std::size_t server) {
  servers_[server]->signal(SIGKILL);
  servers_[server]->wait();
}

void RedisGroup::start_sentinel(std::size_t sentinel) {
  const std::string file = folder_ / ("sentinel" + std::to_string(sentinel) + ".conf");
  sentinels_[sentinel] =
      std::make_unique<Process>(folder_, std::vector<std::string>{"redis-server", file, "--sentinel"});
  EXPECT_TRUE(eventually([&] { return ask_sentinel(sentinel, {"PING"}).has_value(); })) << sentinels_[sentinel]->out();
}

void RedisGroup::kill_sentinel(std::size_t sentinel) {
  sentinels_[sentinel]->signal(SIGKILL);
  sentinels_[sentinel]->wait();
}

std::string RedisGroup::url(const std::string& credentials) const {
  std::string text = "redis+sentinel://" + (credentials.empty() ? "" : credentials + '@');
  for (std::size_t i = 0; i < kServers; ++i)
    text += (i == 0 ? "" : ",") + ("127.0.0.1:" + std::to_string(sentinel_ports_[i]));
  return text + "/mymaster";
}

std::string RedisGroup::server_url(std::size_t server) const {
  return "redis://127.0.0.1:" + std::to_string(server_ports_[server]);
}

std::optional<Reply> RedisGroup::send(std::uint16_t port, bool is_sentinel,
                                      const std::vector<std::string>& words) const {
  RedisConnection::Options options;
  options.endpoint.host = "127.0.0.1";
  options.endpoint.port = port;
  options.is_sentinel = is_sentinel;
  options.endpoint.user = is_sentinel ? "" : options_.server_user;
  options.endpoint.password = is_sentinel ? options_.sentinel_password : options_.server_password;
  options.connect_timeout_ms = options.command_timeout_ms = 2000;
  Arguments arguments;
  for (const std::string& word : words) arguments.add(word);
  auto reply = RedisConnection(std::move(options)).command(arguments);
  return reply ? std::optional(*reply) : std::nullopt;
}

std::optional<Reply> RedisGroup::command(std::size_t server, const std::vector<std::string>& words) const {
  return send(server_ports_[server], false, words);
}

std::optional<Reply> RedisGroup::ask_sentinel(std::size_t sentinel, const std::vector<std::string>& words) const {
  return send(sentinel_ports_[sentinel], true, words);
}

std::size_t RedisGroup::master() const {
  std::optional<std::uint64_t> port;
  for (std::size_t i = 0; i < kServers; ++i) {
    if (!sentinels_[i]->is_running()) continue;
    const auto answer = ask_sentinel(i, {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"});
    if (!answer || (port && *port != answer->at(1).number())) return kServers;
    port = answer->at(1).number();
  }
  for (std::size_t i = 0; port && i < kServers; ++i) {
    if (server_ports_[i] == *port) return i;
  }
  return kServers;
}

std::size_t RedisGroup::wait_for_failover(std::size_t old_master) const {
  std::size_t found = kServers;
  EXPECT_TRUE(eventually([&] {
    found = master();
    return found != old_master && found != kServers;
  })) << sentinels_[0]->out();
  return found;
}

std::string RedisGroup::role(std::size_t server) const {
  const auto reply = command(server, {"ROLE"});
  return reply ? std::string(reply->at(0).text()) : "";
}

void RedisGroup::set_isolated(std::size_t server, bool is_isolated) const {
  EXPECT_TRUE(command(server, {"ACL", "SETUSER", "default", is_isolated ? "off" : "on"}));
  if (!is_isolated) return;
  EXPECT_TRUE(command(server, {"CLIENT", "KILL", "USER", "default"}));
}

bool RedisGroup::wait_until_complete() const {
  return eventually([&] {
    const std::size_t current = master();
    if (current == kServers) return false;
    const auto info = command(current, {"INFO", "replication"});
    const std::string text = info ? std::string(info->text()) : "";
    for (const char* replica : {"slave0:", "slave1:"}) {
      const auto begin = text.find(replica);
      if (begin == std::string::npos || text.find("state=online", begin) == std::string::npos) return false;
    }
    for (std::size_t i = 0; i < kServers; ++i) {
      if (!sentinels_[i]->is_running()) continue;
      const auto state = ask_sentinel(i, {"SENTINEL", "MASTER", "mymaster"});
      if (!state) return false;
      for (const auto& [name, value] : state->fields()) {
        if ((name == "num-slaves" && value != "2") || (name == "flags" && value != "master")) return false;
        if (name == "num-other-sentinels" && value != "2") return false;
      }
      const auto replicas = ask_sentinel(i, {"SENTINEL", "REPLICAS", "mymaster"});
      for (std::size_t at = 0; replicas && at < replicas->size(); ++at) {
        for (const auto& [name, value] : replicas->at(at).fields()) {
          if ((name == "master-link-status" && value != "ok") || (name == "flags" && value != "slave")) return false;
        }
      }
    }
    return true;
  });
}

FakeSentinel::FakeSentinel(RedisAddress master)
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), master_(std::move(master)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  EXPECT_EQ(::listen(listener_.get(), 64), 0);
  thread_ = std::thread([this] { run(); });
}

FakeSentinel::~FakeSentinel() {
  should_stop_ = true;
  thread_.join();
}

void FakeSentinel::run() {
  constexpr int kPollMs = 50;
  while (!should_stop_) {
    std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Client& client : clients_) fds.push_back({client.socket.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), kPollMs);
    const std::lock_guard lock(mutex_);
    for (std::size_t i = fds.size() - 1; i > 0; --i) {
      if (fds[i].revents == 0) continue;
      std::string buffer(4096, '\0');
      const ssize_t count = ::recv(fds[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count > 0) {
        answer(clients_[i - 1], buffer.substr(0, static_cast<std::size_t>(count)));
      } else {
        clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
      }
    }
    if (fds[0].revents != 0) {
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket) clients_.push_back({std::move(socket)});
    }
  }
}

// A client sends a command at a time, except the two commands that begin a subscription.
void FakeSentinel::answer(Client& client, const std::string& command) {
  const auto bulk = [](const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; };
  const auto has_word = [&](const char* word) { return command.find(word) != std::string::npos; };
  std::string reply = "+OK\r\n";
  if (has_word("INFO")) reply = bulk("redis_version:7.0.15\r\nredis_mode:sentinel\r\nrun_id:fake\r\n");
  if (has_word("\r\nID\r\n")) reply = ":5\r\n";
  if (has_word("GET-MASTER-ADDR-BY-NAME")) {
    ++questions_;
    reply = "*2\r\n" + bulk(master_.host) + bulk(std::to_string(master_.port));
  }
  if (has_word("SUBSCRIBE")) {
    client.is_subscribed = true;
    reply = "*3\r\n" + bulk("subscribe") + bulk("+switch-master") + ":1\r\n";
    if (has_word("SENTINEL")) reply = "*0\r\n" + reply;
  }
  if (has_word("PING")) reply = client.is_subscribed ? "*2\r\n" + bulk("pong") + bulk("") : "+PONG\r\n";
  (void)!::send(client.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
}

void FakeSentinel::announce(RedisAddress master) {
  const std::lock_guard lock(mutex_);
  const std::string text = "mymaster " + master_.host + ' ' + std::to_string(master_.port) + ' ' + master.host + ' ' +
                           std::to_string(master.port);
  master_ = std::move(master);
  const std::string message =
      "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
  for (const Client& client : clients_) {
    if (client.is_subscribed) (void)!::send(client.socket.get(), message.data(), message.size(), MSG_NOSIGNAL);
  }
}

RedisStoreConfig make_store_config(const std::string& url, std::uint32_t wait_replicas) {
  RedisStoreConfig config;
  config.default_url = url;
  config.wait_replicas = wait_replicas;
  return config;
}

RedisConnection::Options make_sentinel_options(const std::string& url) {
  RedisConnection::Options options;
  options.endpoint = parse_redis_url(url).value();
  return options;
}

}  // namespace mycojobs::test
