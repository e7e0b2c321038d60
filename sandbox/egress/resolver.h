// Non-blocking name resolution with c-ares, driven by the proxy's loop.
//
// Threads with getaddrinfo() are not used: a job that looks up names with unresponsive servers would occupy all threads
// and block other jobs; a lookup could not be cancelled when its connection ends; and NSS loads libraries that the
// seccomp filter would have to permit. Each lookup has its own c-ares channel, and therefore its own socket and port:
// ending the channel ends the lookup, and /etc/resolv.conf is read for each lookup. Only /etc/hosts and DNS are used
// (in the order of nsswitch.conf), without search list: "api.example.org" never becomes "api.example.org.corp.example".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/host.h"

namespace mycojobs::egress {

// Called with the epoll events that the lookup waits for, or with 0 before the descriptor is closed.
using WatchFd = std::function<void(int fd, std::uint32_t events)>;

class Lookup {
 public:
  virtual ~Lookup() = default;  // cancels the lookup; `watch` is called with 0 for each watched descriptor
  virtual void on_event(int fd, std::uint32_t events) = 0;
  virtual void on_time() = 0;  // must be called a few times per second
  // Set when the lookup has ended. Errors: not_found, unavailable. Never an empty list.
  const std::optional<Result<std::vector<IpAddress>>>& answer() const { return answer_; }

 protected:
  std::optional<Result<std::vector<IpAddress>>> answer_;
};

class Resolver {
 public:
  // Fixed answers for tests, by name. The answers of a name are returned in rotation.
  using Hosts = std::map<std::string, std::vector<std::vector<IpAddress>>>;
  // Parses lines "name address,address"; a name on two lines has two answers in rotation.
  static Result<Hosts> parse_hosts(const std::string& text);

  // `servers` replaces those of /etc/resolv.conf in tests, for example "127.0.0.1:5353".
  explicit Resolver(Hosts hosts = {}, std::string servers = {})
      : hosts_(std::move(hosts)), servers_(std::move(servers)) {}
  static Result<void> start_library();  // once per process, before the first lookup
  std::unique_ptr<Lookup> start_lookup(const std::string& name, WatchFd watch);

 private:
  const Hosts hosts_;
  const std::string servers_;
  std::map<std::string, std::size_t> answer_counts_;
};

// Returns the addresses of all interfaces of this host, and those `candidates` that the routes of this host lead back
// to it (`ip route add local`). Sends nothing.
Result<std::vector<IpAddress>> list_host_addresses(const std::vector<IpAddress>& candidates);

}  // namespace mycojobs::egress
