#include "transport/supervisor_address.h"

#include <netdb.h>

#include <memory>

#include "domain/host.h"
#include "transport/ip_of.h"

namespace mycojobs {
namespace {

Result<void> check(const std::string& url, const IpAddress& address, const Networks& networks) {
  if (networks.contains(address)) return {};
  return fail(Code::denied, "address: " + url + " is at " + to_text(address) +
                                ", which the coordinator may not call; its setting coordinator.networks allows " +
                                networks.text());
}

}  // namespace

Result<void> check_supervisor_address(const std::string& url, const Networks& networks) {
  const bool plain = url.starts_with("http://");
  if (!plain && !url.starts_with("https://")) return {};
  const std::string rest = url.substr(plain ? 7 : 8);
  auto place = parse_host_port(rest.substr(0, rest.find_first_of("/?#")), plain ? 80 : 443);
  if (!place) return fail(place.error(), "address: " + url);
  if (place->host.address) return check(url, *place->host.address, networks);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(place->host.name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(list, &::freeaddrinfo);
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const auto address = ip_of(each->ai_family, each->ai_addr);
    if (address) MJ_CHECK(check(url, *address, networks));
  }
  return {};
}

}  // namespace mycojobs
