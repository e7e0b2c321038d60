// TCP connections of a script. The modules decide beforehand whether the job's policy has room for one.
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

#include "base/fd.h"
#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {
namespace {

constexpr const char* kSocket = "mycojobs.socket";

struct Socket {
  Fd fd;
  std::uint64_t patience_ms = 0;  // for each wait
};

Socket& socket_at(lua_State* state, int index) { return *static_cast<Socket*>(luaL_checkudata(state, index, kSocket)); }

int lua_close_socket(lua_State* state) {
  socket_at(state, 1).fd.reset();
  return 0;
}

std::uint64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

// 0 or errno: until the socket is ready for `events`, or the time is over.
int wait_for(int fd, short events, std::uint64_t patience_ms) {
  const std::uint64_t deadline = now_ms() + patience_ms;
  for (;;) {
    const std::uint64_t now = now_ms();
    if (now >= deadline) return ETIMEDOUT;
    pollfd waiting{fd, events, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::min<std::uint64_t>(deadline - now, 60000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

int connect_to(const addrinfo& address, Socket& socket) {
  socket.fd.reset(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.fd) return errno;
  if (::connect(socket.fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (const int error = wait_for(socket.fd.get(), POLLOUT, socket.patience_ms); error != 0) return error;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// host, port, milliseconds -> socket; or nil, text, name of errno.
int lua_connect(lua_State* state) {
  const char* host = luaL_checkstring(state, 1);
  const std::string port = std::to_string(luaL_checkinteger(state, 2));
  auto* const socket = new (lua_newuserdatauv(state, sizeof(Socket), 0)) Socket();
  luaL_setmetatable(state, kSocket);
  socket->patience_ms = static_cast<std::uint64_t>(luaL_checkinteger(state, 3));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host, port.c_str(), &hints, &found); error != 0) {
    lua_pushnil(state);
    lua_pushstring(state, ::gai_strerror(error));
    lua_pushliteral(state, "ENOENT");
    return 3;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = found; each != nullptr && error != 0; each = each->ai_next) {
    error = connect_to(*each, *socket);
  }
  if (error != 0) return push_errno(state, error);
  return 1;
}

// socket, bytes -> true; or nil, text, name of errno.
int lua_send_bytes(lua_State* state) {
  const Socket& socket = socket_at(state, 1);
  std::size_t size = 0;
  const char* bytes = luaL_checklstring(state, 2, &size);
  while (size > 0) {
    const ssize_t sent = ::send(socket.fd.get(), bytes, size, MSG_NOSIGNAL);
    if (sent > 0) {
      bytes += sent;
      size -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      if (const int error = wait_for(socket.fd.get(), POLLOUT, socket.patience_ms); error != 0)
        return push_errno(state, error);
    } else if (errno != EINTR) {
      return push_errno(state, errno);
    }
  }
  lua_pushboolean(state, 1);
  return 1;
}

// socket -> some bytes, "" at the end; or nil, text, name of errno.
int lua_receive(lua_State* state) {
  const Socket& socket = socket_at(state, 1);
  std::array<char, 65536> part;  // NOLINT(*-member-init): filled by recv
  for (;;) {
    const ssize_t got = ::recv(socket.fd.get(), part.data(), part.size(), 0);
    if (got >= 0) {
      lua_pushlstring(state, part.data(), static_cast<std::size_t>(got));
      return 1;
    }
    if (errno == EAGAIN) {
      if (const int error = wait_for(socket.fd.get(), POLLIN, socket.patience_ms); error != 0)
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

}  // namespace mycojobs::lua
