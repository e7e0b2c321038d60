#include "store/redis_url.h"

#include <sys/un.h>

#include "base/ids.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;

tl::unexpected<Error> refuse(std::string_view why) {
  return fail(Code::invalid, "redis url: " + std::string(why) +
                                 "; write redis://[user:password@]host[:port][/db] or unix:///path[?db=N]");
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Result<std::uint32_t> parse_database(std::string_view text) {
  std::uint64_t number = 0;
  if (!parse_u64(text, number) || number > 0x7fffffff) return refuse("the database is not a number");
  return static_cast<std::uint32_t>(number);
}

void take_credentials(std::string_view& rest, RedisEndpoint& out) {
  const auto at = rest.rfind('@');
  if (at == std::string_view::npos) return;
  const std::string_view credentials = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  const auto colon = credentials.find(':');
  if (colon != std::string_view::npos) out.password = unescape(credentials.substr(colon + 1));
  out.user = unescape(credentials.substr(0, colon));
}

Result<RedisEndpoint> parse_unix(std::string_view rest) {
  RedisEndpoint out;
  if (rest.starts_with("//")) {
    rest.remove_prefix(2);
    if (const auto slash = rest.find('/'); slash != 0 && slash != std::string_view::npos) {
      std::string_view authority = rest.substr(0, slash);
      take_credentials(authority, out);
      if (!authority.empty()) return refuse("unix:// wants an absolute path");
      rest.remove_prefix(slash);
    }
  }
  const auto question = rest.find('?');
  if (question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with("db=")) return refuse("only ?db=N is known after a path");
    MJ_TRY(database, parse_database(query.substr(3)));
    out.database = database;
    rest = rest.substr(0, question);
  }
  out.unix_path = unescape(rest);
  if (out.unix_path.empty()) return refuse("the path is empty");
  if (out.unix_path.size() > kMaxPath) {
    return fail(Code::invalid, "redis url: the path " + out.unix_path + " is longer than the " +
                                   std::to_string(kMaxPath) + " bytes that a socket may have; choose a shorter one");
  }
  return out;
}

Result<RedisEndpoint> parse_tcp(std::string_view rest) {
  RedisEndpoint out;
  take_credentials(rest, out);
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) {
      MJ_TRY(database, parse_database(rest.substr(slash + 1)));
      out.database = database;
    }
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return refuse("a ] is missing after the address");
    out.host = rest.substr(1, close - 1);
    rest.remove_prefix(close + 1);
    if (!rest.empty() && rest[0] != ':') return refuse("the port is not behind a colon");
    if (!rest.empty()) port = rest.substr(1);
  } else {
    const auto colon = rest.rfind(':');
    out.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (out.host.empty()) return refuse("the host is missing");
  if (!port.empty()) {
    std::uint64_t number = 0;
    if (!parse_u64(port, number) || number == 0 || number > 65535) return refuse("the port is not from 1 to 65535");
    out.port = static_cast<std::uint16_t>(number);
  }
  return out;
}

}  // namespace

std::string RedisEndpoint::shown() const {
  if (!unix_path.empty()) return unix_path;
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

Result<RedisEndpoint> parse_redis_url(std::string_view url) {
  if (url.find('\0') != std::string_view::npos) return refuse("it contains a NUL");
  if (url.starts_with("redis://")) return parse_tcp(url.substr(8));
  if (url.starts_with("unix:")) return parse_unix(url.substr(5));
  if (url.starts_with("rediss://")) {
    return fail(Code::unsupported, "redis url: rediss:// (TLS) is not supported; use a tunnel such as stunnel");
  }
  return refuse("it begins neither with redis:// nor with unix:");
}

}  // namespace mycojobs
