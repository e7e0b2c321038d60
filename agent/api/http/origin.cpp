#include "api/http/origin.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>

#include "net/http_wire.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

constexpr std::string_view kHttp = "http://", kHttps = "https://";

bool is_port(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return text.size() <= 5 && error == std::errc() && end == text.data() + text.size() && port <= 65535 &&
         !text.starts_with('0');
}

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return text.size() < INET6_ADDRSTRLEN && ::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= 255 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

std::string_view default_port(std::string_view origin) { return origin.starts_with(kHttps) ? "443" : "80"; }
std::string_view get_authority(std::string_view origin) { return origin.substr(origin.find("//") + 2); }

// Removes the default port of the scheme: "jobs.example.org:443" becomes "jobs.example.org" for https.
std::string_view remove_default_port(std::string_view host, std::string_view port) {
  return host.ends_with(port) && host.substr(0, host.size() - port.size()).ends_with(':')
             ? host.substr(0, host.size() - port.size() - 1)
             : host;
}

// Returns whether one Host header can select both origins: the header does not contain the scheme.
bool have_common_host(std::string_view one, std::string_view other) {
  const std::string_view hosts[] = {get_authority(one), get_authority(other)};
  for (const std::string_view port : {default_port(one), default_port(other)}) {
    if (remove_default_port(hosts[0], port) == remove_default_port(hosts[1], port)) return true;
  }
  return false;
}

// Returns whether a proxy has passed the request on. Behind a proxy on this host every client is a loopback peer.
bool is_forwarded(const HttpRequest& request) {
  return request.headers.contains("forwarded") || request.headers.contains("via") ||
         std::any_of(request.headers.begin(), request.headers.end(),
                     [](const auto& header) { return header.first.starts_with("x-forwarded-"); });
}

}  // namespace

bool is_host_and_port(std::string_view text) {
  const bool is_bracketed = text.starts_with('[');
  const std::size_t host_end = is_bracketed ? text.find(']') : std::min(text.find(':'), text.size());
  if (host_end == std::string_view::npos) return false;
  const std::string_view port_part = text.substr(host_end + (is_bracketed ? 1 : 0));
  if (!port_part.empty() && !(port_part.starts_with(':') && is_port(port_part.substr(1)))) return false;
  return is_bracketed ? is_ipv6(text.substr(1, host_end - 1)) : is_host_name(text.substr(0, host_end));
}

Result<std::string> parse_origin(std::string_view text) {
  const std::string origin = lower_case(text);
  const bool has_scheme = origin.starts_with(kHttp) || origin.starts_with(kHttps);
  if (!has_scheme || !is_host_and_port(get_authority(origin))) {
    return fail(Code::invalid,
                mycojobs::excerpt(text) +
                    " is not an origin: write scheme, name and port as clients call the server, for example "
                    "https://jobs.example.org or http://10.0.0.7:9652");
  }
  const std::string_view host = remove_default_port(get_authority(origin), default_port(origin));
  return origin.substr(0, origin.find("//") + 2) + std::string(host);
}

Result<std::vector<std::string>> parse_origins(const std::vector<std::string>& texts) {
  std::vector<std::string> origins;
  for (const std::string& text : texts) {
    MJ_TRY(origin, parse_origin(text));
    for (const std::string& other : origins) {
      if (other != origin && have_common_host(other, origin))
        return fail(Code::invalid, other + " and " + origin + " have the same header Host: keep one of them");
    }
    origins.push_back(std::move(origin));
  }
  return origins;
}

std::string find_origin(const HttpRequest& request, const std::vector<std::string>& origins) {
  const std::string host = lower_case(request.header("host"));
  for (const std::string& origin : origins) {
    if (remove_default_port(host, default_port(origin)) == get_authority(origin)) return origin;
  }
  if (!request.loopback || !origins.empty() || is_forwarded(request)) return "";
  const std::string port = std::to_string(request.port);
  const std::string_view scheme = request.has_tls ? kHttps : kHttp;
  const std::string_view own_default_port = default_port(scheme);
  const std::string_view host_without_port = remove_default_port(host, own_default_port);
  for (const char* name : {"127.0.0.1", "localhost", "[::1]"}) {
    const std::string loopback = port == own_default_port ? name : std::string(name) + ':' + port;
    if (host_without_port == loopback) return std::string(scheme) + loopback;
  }
  return "";
}

}  // namespace mycojobs::api
