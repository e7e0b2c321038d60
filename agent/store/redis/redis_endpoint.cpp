#include "store/redis/redis_endpoint.h"

#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxPath = sizeof(sockaddr_un{}.sun_path) - 1;

tl::unexpected<Error> url_error(std::string_view reason) {
  return fail(Code::invalid, "redis url: " + std::string(reason) +
                                 "; write redis://[user:password@]host[:port], rediss://... for TLS, or unix:///path");
}

Result<std::uint32_t> parse_database(std::string_view text) {
  std::uint64_t number = 0;
  if (!parse_u64(text, number) || number > 0x7fffffff) return url_error("the database is not a number");
  return static_cast<std::uint32_t>(number);
}

void consume_credentials(std::string_view& rest, RedisEndpoint& out) {
  const auto at = rest.rfind('@');
  if (at == std::string_view::npos) return;
  const std::string_view credentials = rest.substr(0, at);
  rest.remove_prefix(at + 1);
  const auto colon = credentials.find(':');
  if (colon != std::string_view::npos) out.password = decode_percent(credentials.substr(colon + 1));
  out.user = decode_percent(credentials.substr(0, colon));
}

Result<RedisEndpoint> parse_unix(std::string_view rest) {
  RedisEndpoint out;
  if (rest.starts_with("//")) {
    rest.remove_prefix(2);
    if (const auto slash = rest.find('/'); slash != 0 && slash != std::string_view::npos) {
      std::string_view authority = rest.substr(0, slash);
      consume_credentials(authority, out);
      if (!authority.empty()) return url_error("unix:// requires an absolute path");
      rest.remove_prefix(slash);
    }
  }
  const auto question = rest.find('?');
  if (question != std::string_view::npos) {
    const std::string_view query = rest.substr(question + 1);
    if (!query.starts_with("db=")) return url_error("only ?db=N is supported after a path");
    MJ_TRY(database, parse_database(query.substr(3)));
    out.database = database;
    rest = rest.substr(0, question);
  }
  out.unix_path = decode_percent(rest);
  if (out.unix_path.empty()) return url_error("the path is empty");
  if (out.unix_path.front() != '/')
    return url_error("unix: requires an absolute path, for example unix:/run/redis/redis.sock");
  if (out.unix_path.size() > kMaxPath) {
    return fail(Code::invalid, "redis url: the path " + out.unix_path + " is longer than the " +
                                   std::to_string(kMaxPath) + " bytes that a socket may have; choose a shorter one");
  }
  return out;
}

constexpr std::uint16_t kServerPort = 6379, kSentinelPort = 26379;

// Parses "host", "host:port", "[address]" or "[address]:port".
Result<RedisAddress> parse_address(std::string_view text, std::uint16_t default_port) {
  RedisAddress out{"", default_port};
  std::string_view port;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) return url_error("a ] is missing after the address");
    out.host = text.substr(1, close - 1);
    text.remove_prefix(close + 1);
    if (!text.empty() && text[0] != ':') return url_error("the port is not behind a colon");
    if (!text.empty()) port = text.substr(1);
  } else {
    const auto colon = text.rfind(':');
    out.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon + 1);
  }
  if (out.host.empty()) return url_error("the host is missing");
  if (!port.empty()) {
    std::uint64_t number = 0;
    if (!parse_u64(port, number) || number == 0 || number > 65535) return url_error("the port is not from 1 to 65535");
    out.port = static_cast<std::uint16_t>(number);
  }
  return out;
}

// Splits "text/N" into the text and the database. A slash without a number names no database.
Result<void> consume_database(std::string_view& rest, RedisEndpoint& out) {
  const auto slash = rest.find('/');
  if (slash == std::string_view::npos) return {};
  if (slash + 1 < rest.size()) {
    MJ_TRY(database, parse_database(rest.substr(slash + 1)));
    out.database = database;
  }
  rest = rest.substr(0, slash);
  return {};
}

Result<RedisEndpoint> parse_tcp(std::string_view rest) {
  RedisEndpoint out;
  consume_credentials(rest, out);
  MJ_CHECK(consume_database(rest, out));
  if (rest.find(',') != std::string_view::npos) {
    return fail(
        Code::invalid,
        "redis url: it names several hosts, and Redis Cluster is not supported: use one server, or one for each "
        "context ([contexts.N] redis = \"...\"); for Sentinel write redis+sentinel://host1,host2/MASTER");
  }
  MJ_TRY(address, parse_address(rest, kServerPort));
  out.host = std::move(address.host);
  out.port = address.port;
  return out;
}

// The characters that Sentinel accepts in the name of a master.
bool is_master_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

Result<RedisEndpoint> parse_sentinels(std::string_view rest) {
  const auto sentinel_error = [](std::string_view reason) {
    return fail(Code::invalid, "redis url: " + std::string(reason) +
                                   "; write redis+sentinel://[user:password@]host1[:26379],host2/MASTER, or "
                                   "rediss+sentinel://... for TLS");
  };
  RedisEndpoint out;
  consume_credentials(rest, out);
  const auto slash = rest.find('/');
  std::string_view name = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  MJ_CHECK(consume_database(name, out));
  if (name.empty()) return sentinel_error("the name of the master is missing after the sentinels");
  if (!is_master_name(name))
    return sentinel_error("the name of the master has other characters than A-Z a-z 0-9 . - _");
  out.master_name = name;
  rest = rest.substr(0, slash);
  for (std::size_t begin = 0; begin <= rest.size();) {
    const std::size_t end = std::min(rest.find(',', begin), rest.size());
    if (begin == end) return sentinel_error("the host of a sentinel is missing");
    MJ_TRY(address, parse_address(rest.substr(begin, end - begin), kSentinelPort));
    if (std::find(out.sentinels.begin(), out.sentinels.end(), address) == out.sentinels.end())
      out.sentinels.push_back(std::move(address));
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string RedisAddress::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

std::optional<RedisAddress> parse_redis_address(std::string_view host, std::string_view port) {
  std::uint64_t number = 0;
  if (host.empty() || !parse_u64(port, number) || number == 0 || number > 65535) return std::nullopt;
  return RedisAddress{std::string(host), static_cast<std::uint16_t>(number)};
}

RedisEndpoint RedisEndpoint::server() const {
  RedisEndpoint out = *this;
  out.user.clear();
  out.password.clear();
  out.database.reset();
  return out;
}

RedisEndpoint RedisEndpoint::with_address(const RedisAddress& address) const {
  RedisEndpoint out = *this;
  out.sentinels.clear();
  out.master_name.clear();
  out.host = address.host;
  out.port = address.port;
  return out;
}

std::string RedisEndpoint::redacted_url() const {
  if (!unix_path.empty()) return unix_path;
  if (!uses_sentinels()) return (is_tls ? "rediss://" : "") + address().text();
  std::string text = is_tls ? "rediss+sentinel://" : "redis+sentinel://";
  for (const RedisAddress& sentinel : sentinels) text += (&sentinel == &sentinels.front() ? "" : ",") + sentinel.text();
  return text + '/' + master_name;
}

Result<RedisEndpoint> find_context_endpoint(const std::string& shared_url, const std::map<Id, std::string>& own_urls,
                                            Id context) {
  const auto own_url = own_urls.find(context);
  const bool has_own_url = own_url != own_urls.end();
  MJ_TRY(endpoint, parse_redis_url(has_own_url ? own_url->second : shared_url));
  endpoint.database = has_own_url ? endpoint.database.value_or(context) : context;
  return endpoint;
}

bool is_tls_redis_url(std::string_view url) {
  return url.starts_with("rediss://") || url.starts_with("rediss+sentinel://");
}

Result<RedisEndpoint> parse_redis_url(std::string_view url) {
  if (url.find('\0') != std::string_view::npos) return url_error("it contains a NUL");
  if (url.starts_with("unix:")) return parse_unix(url.substr(5));
  const auto scheme_end = url.find("://");
  const std::string_view scheme = url.substr(0, scheme_end);
  const std::string_view rest = scheme_end == std::string_view::npos ? "" : url.substr(scheme_end + 3);
  if (scheme == "redis" || scheme == "rediss" || scheme == "redis+sentinel" || scheme == "rediss+sentinel") {
    if (scheme_end == std::string_view::npos) return url_error("the host is missing");
    MJ_TRY(endpoint, scheme.ends_with("sentinel") ? parse_sentinels(rest) : parse_tcp(rest));
    endpoint.is_tls = scheme.starts_with("rediss");
    return endpoint;
  }
  if (scheme == "redis+cluster" || scheme == "rediss+cluster") {
    return fail(Code::invalid,
                "redis url: Redis Cluster is not supported: use a server without cluster mode, or one for each context "
                "([contexts.N] redis = \"...\")");
  }
  return url_error("it begins neither with redis:// nor with rediss://, redis+sentinel:// or unix:");
}

Result<RedisEndpoint> parse_shared_redis_url(std::string_view url) {
  MJ_TRY(endpoint, parse_redis_url(url));
  if (endpoint.database.value_or(0) == 0) return endpoint;
  const std::string database = std::to_string(*endpoint.database);
  return fail(Code::invalid,
              "redis url: this server is that of several contexts, each with the database of its id; "
              "leave the " +
                  database +
                  " away at the end, or name the database of one context: "
                  "[contexts.ID] redis = \"redis://HOST/" +
                  database + "\"");
}

}  // namespace mycojobs
