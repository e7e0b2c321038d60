// TCP connections of a script. The Lua modules check the job's policy first.
#include <curl/curl.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "executors/lua/luahost/job.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {
namespace {

constexpr const char* kSocket = "mycojobs.socket";

struct Socket {
  Fd fd;
  std::uint64_t timeout_ms = 0;  // time-out of each wait
};

Socket& get_socket(lua_State* state, int index) {
  return *static_cast<Socket*>(luaL_checkudata(state, index, kSocket));
}

int lua_close_socket(lua_State* state) {
  get_socket(state, 1).fd.reset();
  return 0;
}

std::uint64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

// Waits until the socket is ready for `events` or the time-out. Returns 0 or an errno.
int wait_for_socket(int fd, short events, std::uint64_t timeout_ms) {
  const std::uint64_t deadline = now_ms() + timeout_ms;
  for (;;) {
    const std::uint64_t now = now_ms();
    if (now >= deadline) return ETIMEDOUT;
    pollfd descriptor{fd, events, 0};
    const int ready = ::poll(&descriptor, 1, static_cast<int>(std::min<std::uint64_t>(deadline - now, 60000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

int connect_to(const addrinfo& address, Socket& socket) {
  socket.fd.reset(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.fd) return errno;
  if (::connect(socket.fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (const int error = wait_for_socket(socket.fd.get(), POLLOUT, socket.timeout_ms); error != 0) return error;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// host, port, milliseconds -> socket; or nil, error text, name of errno.
int lua_connect(lua_State* state) {
  const char* host = luaL_checkstring(state, 1);
  const std::string port = std::to_string(luaL_checkinteger(state, 2));
  auto* const socket = new (lua_newuserdatauv(state, sizeof(Socket), 0)) Socket();
  luaL_setmetatable(state, kSocket);
  socket->timeout_ms = static_cast<std::uint64_t>(luaL_checkinteger(state, 3));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  if (const int error = ::getaddrinfo(host, port.c_str(), &hints, &results); error != 0) {
    lua_pushnil(state);
    lua_pushstring(state, ::gai_strerror(error));
    lua_pushliteral(state, "ENOENT");
    return 3;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(results, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = results; address != nullptr && error != 0; address = address->ai_next) {
    error = connect_to(*address, *socket);
  }
  if (error != 0) return push_errno(state, error);
  return 1;
}

// socket, bytes -> true; or nil, error text, name of errno.
int lua_send_bytes(lua_State* state) {
  const Socket& socket = get_socket(state, 1);
  std::size_t size = 0;
  const char* bytes = luaL_checklstring(state, 2, &size);
  while (size > 0) {
    const ssize_t sent = ::send(socket.fd.get(), bytes, size, MSG_NOSIGNAL);
    if (sent > 0) {
      bytes += sent;
      size -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      if (const int error = wait_for_socket(socket.fd.get(), POLLOUT, socket.timeout_ms); error != 0)
        return push_errno(state, error);
    } else if (errno != EINTR) {
      return push_errno(state, errno);
    }
  }
  lua_pushboolean(state, 1);
  return 1;
}

// socket -> some bytes, "" at the end; or nil, error text, name of errno.
int lua_receive(lua_State* state) {
  const Socket& socket = get_socket(state, 1);
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by recv
  for (;;) {
    const ssize_t count = ::recv(socket.fd.get(), part.data(), part.size(), 0);
    if (count >= 0) {
      lua_pushlstring(state, part.data(), static_cast<std::size_t>(count));
      return 1;
    }
    if (errno == EAGAIN) {
      if (const int error = wait_for_socket(socket.fd.get(), POLLIN, socket.timeout_ms); error != 0)
        return push_errno(state, error);
    } else if (errno != EINTR) {
      return push_errno(state, errno);
    }
  }
}

}  // namespace

void add_net_functions(lua_State* state) {
  luaL_newmetatable(state, kSocket);
  lua_pushcfunction(state, lua_close_socket);
  lua_setfield(state, -2, "__gc");
  lua_pop(state, 1);
  const luaL_Reg functions[] = {{"tcp_connect", lua_connect},
                                {"tcp_send", lua_send_bytes},
                                {"tcp_receive", lua_receive},
                                {"tcp_close", lua_close_socket},
                                {nullptr, nullptr}};
  add_functions(state, functions);
}

// HTTP with libcurl. The zygote only loads the library; it calls no function of it.

namespace {

struct Transfer {
  std::string body, status_line;
  std::vector<std::pair<std::string, std::string>> headers;  // headers of the last response
  std::size_t max_bytes = 0;
  Fd file;  // if open, receives the body
  std::string problem;
  std::size_t received = 0;
};

std::size_t on_body(char* bytes, std::size_t, std::size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  transfer.received += size;
  if (transfer.received > transfer.max_bytes) {
    transfer.problem = "the answer is over " + std::to_string(transfer.max_bytes) + " bytes";
    return 0;
  }
  if (!transfer.file) {
    transfer.body.append(bytes, size);
    return size;
  }
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = ::write(transfer.file.get(), bytes + done, size - done);
    if (written < 0 && errno != EINTR) {
      transfer.problem = errno_text(errno);
      return 0;
    }
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  return size;
}

std::size_t on_header(char* bytes, std::size_t, std::size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  std::string line(bytes, size);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  if (line.starts_with("HTTP/")) {
    transfer.headers.clear();
    transfer.status_line = line;
    return size;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos) return size;
  std::string name = line.substr(0, colon);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t start = line.find_first_not_of(" \t", colon + 1);
  transfer.headers.emplace_back(std::move(name), start == std::string::npos ? "" : line.substr(start));
  return size;
}

int on_progress(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) { return host_job::has_received_term() ? 1 : 0; }

std::string get_field(lua_State* state, const char* name, bool& is_set) {
  lua_getfield(state, 1, name);
  std::size_t size = 0;
  const char* text = lua_tolstring(state, -1, &size);
  is_set = text != nullptr;
  std::string value = is_set ? std::string(text, size) : std::string();
  lua_pop(state, 1);
  return value;
}

using Handle = std::unique_ptr<CURL, void (*)(CURL*)>;
using List = std::unique_ptr<curl_slist, void (*)(curl_slist*)>;

// Converts the field `headers` of the table at index 1, an array of "Name: value".
List read_headers(lua_State* state) {
  List list(nullptr, curl_slist_free_all);
  lua_getfield(state, 1, "headers");
  for (lua_Integer i = 1, count = lua_istable(state, -1) ? luaL_len(state, -1) : 0; i <= count; ++i) {
    lua_rawgeti(state, -1, i);
    curl_slist* const extended = curl_slist_append(list.get(), luaL_checkstring(state, -1));
    if (extended != nullptr) (void)list.release(), list.reset(extended);
    lua_pop(state, 1);
  }
  lua_pop(state, 1);
  return list;
}

int push_failure(lua_State* state, const std::string& problem, const Transfer& transfer) {
  lua_pushnil(state);
  lua_pushlstring(state, problem.data(), problem.size());
  lua_pushlstring(state, transfer.status_line.data(), transfer.status_line.size());
  return 3;
}

int push_answer(lua_State* state, CURL* curl, const Transfer& transfer) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  lua_pushinteger(state, status);
  lua_pushlstring(state, transfer.body.data(), transfer.body.size());
  lua_newtable(state);
  for (const auto& [name, value] : transfer.headers) {
    lua_pushlstring(state, value.data(), value.size());
    lua_setfield(state, -2, name.c_str());
  }
  lua_pushlstring(state, transfer.status_line.data(), transfer.status_line.size());
  return 4;
}

// The fields of the table at index 1.
struct HttpRequest {
  std::string url, method, body, file, proxy;
  bool has_body = false, writes_file = false;
  long timeout_ms = 0, redirects = 0;
};

HttpRequest read_http_request(lua_State* state) {
  HttpRequest request;
  bool is_set = false;
  request.url = get_field(state, "url", is_set);
  request.method = get_field(state, "method", is_set);
  request.body = get_field(state, "body", request.has_body);
  request.file = get_field(state, "file", request.writes_file);
  request.proxy = get_field(state, "proxy", is_set);
  return request;
}

void set_options(CURL* handle, const HttpRequest& request, const List& headers, Transfer& transfer) {
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROXY, request.proxy.c_str());
  curl_easy_setopt(handle, CURLOPT_NOPROXY, "");
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, request.redirects > 0 ? 1L : 0L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, request.redirects);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, request.timeout_ms);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "mycojobs");
  curl_easy_setopt(handle, CURLOPT_ACCEPT_ENCODING, "");
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
  const bool is_post = request.method == "POST";
  if (request.has_body || is_post) {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.body.c_str());
  }
  if (request.method == "HEAD") curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  // curl uses a custom verb for redirected requests too, whereas a redirected POST usually becomes a GET.
  if (!is_post && request.method != "HEAD" && !(request.method == "GET" && !request.has_body)) {
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

// {url, method, headers, body, file, proxy ("": none), milliseconds, redirects, max_bytes} -> status, body, headers,
// status line; or nil, error text, last status line (of the proxy, if the proxy refused the connection).
int lua_http(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  HttpRequest request = read_http_request(state);
  lua_getfield(state, 1, "milliseconds");
  lua_getfield(state, 1, "redirects");
  lua_getfield(state, 1, "max_bytes");
  request.timeout_ms = static_cast<long>(luaL_checkinteger(state, -3));
  request.redirects = static_cast<long>(luaL_checkinteger(state, -2));
  Transfer transfer;
  transfer.max_bytes = static_cast<std::size_t>(luaL_checkinteger(state, -1));
  if (request.writes_file)
    transfer.file.reset(::open(request.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (request.writes_file && !transfer.file) return push_errno(state, errno);
  const List headers = read_headers(state);
  const Handle curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return push_failure(state, "no memory for a connection", transfer);
  set_options(curl.get(), request, headers, transfer);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code == CURLE_OK) return push_answer(state, curl.get(), transfer);
  return push_failure(state, transfer.problem.empty() ? curl_easy_strerror(code) : transfer.problem, transfer);
}

}  // namespace

void add_http_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"http", lua_http}, {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
