// Between cpp-httplib and us: a connection of ours as it has them, its request as we have them, and the client's end of
// an event stream.
#pragma once

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <string>

#include "api/http.h"
#include "api/socket.h"

namespace mycojobs::api {

class ConnectionStream final : public httplib::Stream {
 public:
  ConnectionStream(Connection& connection, const std::atomic<bool>& stopping, std::uint32_t write_ms)
      : connection_(connection), stopping_(stopping), write_ms_(write_ms) {}
  bool is_readable() const override { return !connection_.broken(); }
  bool is_writable() const override { return !connection_.broken() && !stopping_; }
  ssize_t read(char* into, std::size_t size) override { return connection_.read(into, size); }
  ssize_t write(const char* from, std::size_t size) override {
    if (!writing_) connection_.allow(write_ms_);
    writing_ = true;
    return connection_.write(from, size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip.clear(), port = 0; }
  socket_t socket() const override { return 0; }  // the library only compares it with FD_SETSIZE

 private:
  Connection& connection_;
  const std::atomic<bool>& stopping_;
  std::uint32_t write_ms_;
  bool writing_ = false;
};

class Sink final : public EventSink {
 public:
  Sink(httplib::DataSink& sink, Connection& connection, const std::atomic<bool>& stopping, std::uint32_t write_ms)
      : sink_(sink), connection_(connection), stopping_(stopping), write_ms_(write_ms) {}
  bool send(std::string_view text) override {
    if (!open()) return false;
    connection_.allow(write_ms_);
    return sink_.write(text.data(), text.size()) && !connection_.broken();
  }
  bool open() const override {
    if (stopping_ || connection_.broken()) return false;
    char byte = 0;  // a client that has closed its end has gone: it has nothing more to ask
    return ::recv(connection_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
  }

 private:
  httplib::DataSink& sink_;
  Connection& connection_;
  const std::atomic<bool>& stopping_;
  std::uint32_t write_ms_;
};

inline std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

inline HttpRequest request_of(const httplib::Request& from, int socket) {
  HttpRequest out{from.method, from.path, {}, {}, {}, is_loopback_peer(socket)};
  for (const auto& [name, value] : from.params) out.query.emplace(name, value);
  for (const auto& [name, value] : from.headers) out.headers.emplace(lower(name), value);
  return out;
}

}  // namespace mycojobs::api
