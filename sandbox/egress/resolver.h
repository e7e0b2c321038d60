// Names to addresses, without blocking: c-ares, driven by the proxy's own loop.
//
// Why not threads with getaddrinfo: a job that asks for names whose servers do not answer would fill the pool and stop
// everybody else; a lookup could not be taken back when its connection ends; and NSS loads foreign libraries, which the
// system call filter would have to allow. Each lookup has a c-ares channel, and with it a socket and port, of its own:
// ending the channel ends the lookup, and /etc/resolv.conf is read anew each time. Only /etc/hosts and DNS are asked
// (in the order of nsswitch.conf), never a search list: "api.example.org" is that and not
// "api.example.org.corp.example".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "domain/host.h"

namespace mycojobs::egress {

// epoll events that the lookup waits for on a descriptor; 0: it is about to be closed.
using WatchFd = std::function<void(int fd, std::uint32_t events)>;

class Lookup {
 public:
  virtual ~Lookup() = default;  // takes it back; `watch` is called with 0 for what was watched
  virtual void on_event(int fd, std::uint32_t events) = 0;
  virtual void on_time() = 0;  // call a few times a second
  // Set when it has ended. Error: not_found or unavailable. Never an empty list.
  const std::optional<Result<std::vector<IpAddress>>>& answer() const { return answer_; }

 protected:
  std::optional<Result<std::vector<IpAddress>>> answer_;
};

class Resolver {
 public:
  // For tests: name -> its answers, one after the other and from the start again. Such names are looked up nowhere
  // else.
  using Hosts = std::map<std::string, std::vector<std::vector<IpAddress>>>;
  // Lines "name address,address"; a name on two lines has two answers in turn.
  static Result<Hosts> parse_hosts(const std::string& text);

  // `servers` replaces those of /etc/resolv.conf, for tests: "127.0.0.1:5353".
  explicit Resolver(Hosts hosts = {}, std::string servers = {})
      : hosts_(std::move(hosts)), servers_(std::move(servers)) {}
  static Result<void> start_library();  // once a process, before the first lookup
  std::unique_ptr<Lookup> look_up(const std::string& name, WatchFd watch);

 private:
  const Hosts hosts_;
  const std::string servers_;
  std::map<std::string, std::size_t> asked_;
};

// Those of all interfaces of this host, and those of `asked` that its routes lead back to it (`ip route add local`).
// Nothing is sent.
Result<std::vector<IpAddress>> own_addresses(const std::vector<IpAddress>& asked);

}  // namespace mycojobs::egress
