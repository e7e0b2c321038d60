#include "lua_servers.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>

namespace mycojobs::test {
namespace {

using nlohmann::json;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::pair<Fd, std::uint16_t> listen_on_free_port() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener.get(), 16) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port");
  }
  return {std::move(listener), ntohs(address.sin_port)};
}

struct ObjectError {
  const char* code;
  std::string message;
};

std::string make_object_key(const json& params, const std::string& id) {
  return params.value("namespace", "default") + "/" + params.value("kind", "") + "/" + id;
}

}  // namespace

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  std::tie(listener_, port_) = listen_on_free_port();
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  stopping_ = true;
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

void HttpServer::serve() {
  while (!stopping_) {
    Fd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection) serve_request(std::move(connection));
  }
}

void HttpServer::serve_request(Fd connection) {
  std::string request;
  std::array<char, 4096> buffer{};
  std::size_t body_bytes = 0;
  for (std::size_t end = std::string::npos; end == std::string::npos || request.size() < end + 4 + body_bytes;) {
    const ssize_t size = ::recv(connection.get(), buffer.data(), buffer.size(), 0);
    if (size <= 0) return;
    request.append(buffer.data(), static_cast<std::size_t>(size));
    end = request.find("\r\n\r\n");
    const std::size_t length = request.find("Content-Length: ");
    if (length != std::string::npos && length < end) body_bytes = std::stoul(request.substr(length + 16));
  }
  const std::size_t end = request.find("\r\n\r\n");
  std::string response = handler_(request.substr(0, end), request.substr(end + 4));
  if (request.starts_with("HEAD")) response.erase(response.find("\r\n\r\n") + 4);
  for (std::size_t sent = 0; sent < response.size();) {
    const ssize_t size = ::send(connection.get(), response.data() + sent, response.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return;
    sent += static_cast<std::size_t>(size);
  }
}

std::string format_http_response(const std::string& status, const std::string& body, const std::string& headers) {
  return "HTTP/1.1 " + status + "\r\n" + headers +
         "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

HttpServer::Handler make_mycelium_handler() {
  return [sent = std::string()](const std::string& head, const std::string& body) mutable {
    const std::string line = head.substr(0, head.find("\r\n"));
    if (line.starts_with("GET /api/v1/admin ")) return format_http_response("200 OK", R"({"nodeSubnet":"5ab::/64"})");
    if (line.starts_with("GET /api/v1/admin/peers ")) return format_http_response("200 OK", R"([{"type":"static"}])");
    if (line.starts_with("POST /api/v1/admin/peers ")) return format_http_response("204 No Content", "");
    if (line.starts_with("DELETE /api/v1/admin/peers/tcp%3A%2F%2F")) return format_http_response("204 No Content", "");
    if (line.starts_with("POST /api/v1/messages ")) {
      sent = body;
      return format_http_response("200 OK", R"({"id":"0123456789abcdef"})");
    }
    if (line.starts_with("POST /api/v1/messages?reply_timeout=")) {
      const json message = json::parse(body);
      if (message.value("topic", "") != "ZWNobw==")
        return format_http_response("408 Request Timeout", R"({"id":"0123456789abcdef"})");
      return format_http_response("200 OK", json{{"id", "0123456789abcdef"}, {"payload", message["payload"]}}.dump());
    }
    // A waiting request would block all other calls.
    if (!line.starts_with("GET /api/v1/messages?timeout=0")) return format_http_response("404 Not Found", "no " + line);
    if (sent.empty()) return format_http_response("204 No Content", "");
    json message = json::parse(sent);
    message["id"] = "0123456789abcdef";
    sent.clear();
    return format_http_response("200 OK", message.dump());
  };
}

RedisServer::RedisServer()
    : port_(listen_on_free_port().second),
      process_(folder_, {"redis-server", "--port", std::to_string(port_), "--bind", "127.0.0.1", "--save", "", "--dir",
                         folder_.path().string(), "--appendonly", "no"}) {
  for (int i = 0; i < 1000; ++i) {
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port_);
    if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("redis-server does not listen");
}

std::string FakeObjects::answer(const std::string& call) {
  ++calls;
  const json request = json::parse(call);
  json reply{{"id", request.at("id")}};
  try {
    reply["result"] = run(request.at("method"), request.at("params"));
  } catch (const ObjectError& error) {
    reply["error"] = {{"code", error.code}, {"message", error.message}};
  }
  return reply.dump();
}

json FakeObjects::apply(const json& operation, bool only_check) {
  const json object = operation.value("object", json::object());
  std::string id = operation.value("id", object.value("id", ""));
  if (id.empty()) id = "id-" + std::to_string(only_check ? next_id_ : next_id_++);
  const std::string key = make_object_key(operation, id);
  const auto found = rows_.find(key);
  const std::uint64_t version = found == rows_.end() ? 0 : found->second.at("version").get<std::uint64_t>();
  if (operation.contains("version") && operation["version"] != version) {
    throw ObjectError{"conflict", id + " has version " + std::to_string(version)};
  }
  if (operation["op"] == "delete" && version == 0) throw ObjectError{"not_found", "there is no " + id};
  json row{{"id", id}, {"version", version + 1}, {"created_ms", 1000}, {"updated_ms", 2000}};
  if (operation["op"] == "check" || only_check) return row;
  if (operation["op"] == "delete") {
    rows_.erase(key);
  } else {
    rows_[key] = row;
    rows_[key]["object"] = object;
    rows_[key]["object"]["id"] = id;
  }
  return row;
}

json FakeObjects::read_page(const json& params, const std::function<bool(const json&)>& matches) {
  const std::string prefix = make_object_key(params, ""), after = params.value("after", "");
  json response{{"objects", json::array()}};
  for (const auto& [key, row] : rows_) {
    if (!key.starts_with(prefix) || key.substr(prefix.size()) <= after || !matches(row.at("object"))) continue;
    if (response["objects"].size() == params.value("limit", 100U)) {
      response["after"] = response["objects"].back().at("id");
      break;
    }
    response["objects"].push_back(row);
  }
  return response;
}

json FakeObjects::run(const std::string& method, const json& params) {
  if (method == "osis.declare") return json::object();
  if (method == "osis.put" || method == "osis.delete") {
    json operation = params;
    operation["op"] = method.substr(5);
    return apply(operation, false);
  }
  if (method == "osis.get") {
    const auto found = rows_.find(make_object_key(params, params.at("id")));
    if (found == rows_.end()) throw ObjectError{"not_found", "there is no such object"};
    return found->second;
  }
  if (method == "osis.transaction") {
    for (const json& item : params.at("operations")) apply(item, true);
    json results = json::array();
    for (const json& item : params.at("operations")) results.push_back(apply(item, false));
    return {{"results", results}};
  }
  if (method == "osis.count") {
    json all = params;
    all["limit"] = 1000;
    return {{"count", read_page(all, [](const json&) { return true; }).at("objects").size()}};
  }
  if (method == "osis.list") return read_page(params, [](const json&) { return true; });
  if (method == "osis.search") {
    return read_page(params, [&](const json& object) {
      return object.dump().find(params.at("text").get<std::string>()) != std::string::npos;
    });
  }
  if (method != "osis.find") throw ObjectError{"invalid", "there is no method " + method};
  return read_page(params, [&](const json& object) {
    const json value = object.value(params.at("field").get<std::string>(), json());
    if (params.contains("value")) return value == params["value"];
    return value.is_number() && value >= params.value("min", json(-1e300)) && value <= params.value("max", json(1e300));
  });
}

}  // namespace mycojobs::test
