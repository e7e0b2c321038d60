#include "sandbox/egress/resolver.h"

#include <ares.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <sstream>

#include "base/errno_text.h"
#include "base/fd.h"
#include "sandbox/egress/socket_address.h"
#include "text/utf8.h"

namespace mycojobs::egress {
namespace {

constexpr int kAttemptTimeoutMs = 2500;  // doubled for each further attempt
constexpr int kMaxLookupAttempts = 2;

std::optional<IpAddress> to_ip_address(const sockaddr* socket_address) {
  IpAddress out;
  if (socket_address != nullptr && socket_address->sa_family == AF_INET) {
    std::memcpy(out.bytes.data(), &reinterpret_cast<const sockaddr_in*>(socket_address)->sin_addr, 4);
    return out;
  }
  if (socket_address != nullptr && socket_address->sa_family == AF_INET6) {
    out.is_v6 = true;
    std::memcpy(out.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(socket_address)->sin6_addr, 16);
    return out;
  }
  return {};
}

// The kernel selects a local destination address as its own source address.
bool is_routed_to_this_host(const IpAddress& address) {
  const Fd probe(::socket(address.is_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const SocketAddress destination(address, 9);
  sockaddr_storage source{};
  socklen_t size = sizeof source;
  // An unreachable address does not belong to this host.
  if (!probe || ::connect(probe.get(), destination.get(), destination.size()) != 0) return false;
  if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&source), &size) != 0) return true;
  return to_ip_address(reinterpret_cast<sockaddr*>(&source)) == address;
}

class FixedLookup final : public Lookup {
 public:
  explicit FixedLookup(std::vector<IpAddress> addresses) { answer_ = std::move(addresses); }
  void on_event(int, std::uint32_t) override {}
  void on_time() override {}
};

class AresLookup final : public Lookup {
 public:
  AresLookup(const std::string& name, const std::string& servers, WatchFd watch)
      : name_(name), watch_(std::move(watch)) {
    ares_options options{};
    options.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES;
    options.timeout = kAttemptTimeoutMs;
    options.tries = kMaxLookupAttempts;
    options.sock_state_cb = [](void* self, ares_socket_t fd, int readable, int writable) {
      static_cast<AresLookup*>(self)->watch_(fd, (readable != 0 ? static_cast<std::uint32_t>(EPOLLIN) : 0U) |
                                                     (writable != 0 ? static_cast<std::uint32_t>(EPOLLOUT) : 0U));
    };
    options.sock_state_cb_data = this;
    const int code = ares_init_options(&channel_, &options,
                                       ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
    if (code != ARES_SUCCESS) {
      channel_ = nullptr;
      answer_ = make_error(Code::unavailable, code);
      return;
    }
    if (!servers.empty()) ares_set_servers_ports_csv(channel_, servers.c_str());
    ares_addrinfo_hints hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = ARES_AI_NOSORT;  // sorting would connect to addresses that are not checked yet
    ares_getaddrinfo(channel_, name.c_str(), nullptr, &hints, &AresLookup::on_answer, this);
  }
  ~AresLookup() override {
    if (channel_ != nullptr) ares_destroy(channel_);
  }
  void on_event(int fd, std::uint32_t events) override {
    if (channel_ == nullptr) return;
    const bool is_broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
    ares_process_fd(channel_, is_broken || (events & EPOLLIN) != 0 ? fd : ARES_SOCKET_BAD,
                    is_broken || (events & EPOLLOUT) != 0 ? fd : ARES_SOCKET_BAD);
  }
  void on_time() override {
    if (channel_ != nullptr) ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
  }

 private:
  tl::unexpected<Error> make_error(Code code, int ares_code) const {
    return fail(code, name_ + ": its address cannot be resolved: " + ares_strerror(ares_code));
  }

  static void on_answer(void* data, int status, int, ares_addrinfo* result) {
    const std::unique_ptr<ares_addrinfo, decltype(&ares_freeaddrinfo)> owner(result, &ares_freeaddrinfo);
    if (status == ARES_EDESTRUCTION) return;
    auto& self = *static_cast<AresLookup*>(data);
    if (status != ARES_SUCCESS) {
      self.answer_ = self.make_error(
          status == ARES_ENOTFOUND || status == ARES_ENODATA ? Code::not_found : Code::unavailable, status);
      return;
    }
    std::vector<IpAddress> addresses;
    for (const auto* node = result->nodes; node != nullptr; node = node->ai_next) {
      const auto address = to_ip_address(node->ai_addr);
      if (address && std::find(addresses.begin(), addresses.end(), *address) == addresses.end()) {
        addresses.push_back(*address);
      }
    }
    if (addresses.empty()) {
      self.answer_ = self.make_error(Code::not_found, ARES_ENODATA);
    } else {
      self.answer_ = std::move(addresses);
    }
  }

  const std::string name_;
  const WatchFd watch_;
  ares_channel channel_ = nullptr;
};

}  // namespace

Result<void> Resolver::start_library() {
  if (int code = ares_library_init(ARES_LIB_INIT_ALL); code != ARES_SUCCESS) {
    return fail(Code::unsupported, std::string("c-ares: ") + ares_strerror(code));
  }
  return {};
}

Result<Resolver::Hosts> Resolver::parse_hosts(const std::string& text) {
  Hosts hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name, list;
    fields >> name >> list;
    std::vector<IpAddress> addresses;
    std::istringstream items(list);
    for (std::string item; std::getline(items, item, ',');) {
      const auto address = parse_ip(item);
      if (!address) return fail(Code::invalid, "hosts: " + excerpt(item) + " is not a canonical address");
      addresses.push_back(*address);
    }
    if (addresses.empty()) return fail(Code::invalid, "hosts: " + excerpt(line) + ": write \"name address,address\"");
    hosts[name].push_back(std::move(addresses));
  }
  return hosts;
}

std::unique_ptr<Lookup> Resolver::start_lookup(const std::string& name, WatchFd watch) {
  const auto result = hosts_.find(name);
  if (result == hosts_.end()) return std::make_unique<AresLookup>(name, servers_, std::move(watch));
  const auto& answers = result->second;
  return std::make_unique<FixedLookup>(answers[answer_counts_[name]++ % answers.size()]);
}

Result<std::vector<IpAddress>> list_host_addresses(const std::vector<IpAddress>& candidates) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return fail(Code::io, "getifaddrs: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<IpAddress> addresses;
  for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
    if (const auto address = to_ip_address(interface->ifa_addr)) addresses.push_back(*address);
  }
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(addresses), is_routed_to_this_host);
  return addresses;
}

}  // namespace mycojobs::egress
