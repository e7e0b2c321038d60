#include "net/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>

#include "net/curl.h"
#include "net/host.h"

namespace mycojobs {
namespace {

// Converts a sockaddr of this family. Returns no value if the family is not IP.
std::optional<IpAddress> to_ip_address(int family, const void* address_data) {
  IpAddress out;
  if (family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, address_data, sizeof four);
    std::memcpy(out.bytes.data(), &four.sin_addr, sizeof four.sin_addr);
    return out;
  }
  if (family != AF_INET6) return std::nullopt;
  sockaddr_in6 six{};
  std::memcpy(&six, address_data, sizeof six);
  out.is_v6 = true;
  std::memcpy(out.bytes.data(), &six.sin6_addr, sizeof six.sin6_addr);
  return out;
}

Result<void> check_network(const std::string& url, const IpAddress& address, const Networks& networks) {
  if (networks.contains(address)) return {};
  return fail(Code::denied, "address: " + url + " is at " + to_text(address) +
                                ", which the coordinator may not call; its setting coordinator.networks allows " +
                                networks.text());
}

}  // namespace

Result<void> check_supervisor_address(const std::string& url, const Networks& networks) {
  const bool is_http = url.starts_with("http://");
  if (!is_http && !url.starts_with("https://")) return {};
  const std::string remainder = url.substr(is_http ? 7 : 8);
  auto host_port = parse_host_port(remainder.substr(0, remainder.find_first_of("/?#")), is_http ? 80 : 443);
  if (!host_port) return fail(host_port.error(), "address: " + url);
  if (host_port->host.address) return check_network(url, *host_port->host.address, networks);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host_port->host.name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list_owner(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    const auto address = to_ip_address(entry->ai_family, entry->ai_addr);
    if (address) MJ_CHECK(check_network(url, *address, networks));
  }
  return {};
}

namespace {

constexpr long kConnectTimeoutMs = 5000;

struct ResponseBody {
  std::string body;
  std::size_t max_bytes = 0;
};
std::size_t append_response(char* data, std::size_t size, std::size_t count, void* context) {
  auto& response = *static_cast<ResponseBody*>(context);
  if (response.max_bytes == 0) return size * count;
  if (response.body.size() + size * count > response.max_bytes) return 0;
  response.body.append(data, size * count);
  return size * count;
}

// Checks the addresses that curl has resolved, before it connects.
struct AddressFilter {
  const Networks* networks = nullptr;
  std::string refused;  // last refused address
};
curl_socket_t open_socket(void* context, curlsocktype, curl_sockaddr* address_data) {
  auto& filter = *static_cast<AddressFilter*>(context);
  const auto address = to_ip_address(address_data->family, &address_data->addr);
  if (filter.networks != nullptr && !(address && filter.networks->contains(*address))) {
    filter.refused = address ? to_text(*address) : "an address of another family";
    return CURL_SOCKET_BAD;
  }
  return ::socket(address_data->family, address_data->socktype | SOCK_CLOEXEC, address_data->protocol);
}

int is_stopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(stop) ? 1 : 0;
}

}  // namespace

struct HttpClient::Handle {
  const Curl* curl;
  CURL* easy;
  Handle(const Curl* library, CURL* handle) : curl(library), easy(handle) {}
  ~Handle() { curl->easy_cleanup(easy); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

HttpClient::HttpClient() = default;
HttpClient::~HttpClient() = default;

Result<void> HttpClient::open() {
  if (handle_) return {};
  MJ_TRY(curl, load_curl());
  CURL* const easy = curl->easy_init();
  if (easy == nullptr) return fail(Code::io, "libcurl does not start: out of memory or descriptors");
  handle_ = std::make_unique<Handle>(curl, easy);
  return {};
}

Result<HttpAnswer> HttpClient::perform(const HttpPost& call, bool is_get) {
  MJ_CHECK(open());
  const Curl& curl = *handle_->curl;
  CURL* const easy = handle_->easy;
  curl.easy_reset(easy);  // connections stay open
  ResponseBody response{{}, call.max_bytes};
  curl_slist* headers = curl.slist_append(nullptr, "Content-Type: application/json");
  headers = curl.slist_append(headers, "Expect:");
  if (!call.bearer.empty()) headers = curl.slist_append(headers, ("Authorization: Bearer " + call.bearer).c_str());
  for (const std::string& header : call.headers) headers = curl.slist_append(headers, header.c_str());
  bool is_set = curl.easy_setopt(easy, CURLOPT_URL, call.url.c_str()) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, is_get ? CURLOPT_HTTPGET : CURLOPT_POST, 1L) == CURLE_OK;
  if (!is_get) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.data()) == CURLE_OK;
    is_set = is_set &&
             curl.easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size())) == CURLE_OK;
  }
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(call.timeout_ms)) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, append_response) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEDATA, &response) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_USERAGENT, "mycojobs") == CURLE_OK;
  AddressFilter filter{call.networks, {}};
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_OPENSOCKETDATA, &filter) == CURLE_OK;
  if (call.stop != nullptr) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK;  // a name server may not answer
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_NOPROGRESS, 0L) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, is_stopped) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_XFERINFODATA, call.stop) == CURLE_OK;
  }
  const CURLcode result = is_set ? curl.easy_perform(easy) : CURLE_URL_MALFORMAT;
  long status = 0;
  curl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl.slist_free_all(headers);
  if (result != CURLE_OK && !filter.refused.empty()) {
    return fail(Code::denied, call.url + ": is at " + filter.refused +
                                  ", outside of coordinator.networks, which allows " + call.networks->text());
  }
  switch (result) {
    case CURLE_OK:
      return HttpAnswer{static_cast<int>(status), std::move(response.body)};
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return fail(Code::invalid, call.url + ": is not an http:// or https:// address");
    case CURLE_WRITE_ERROR:
      return fail(Code::too_large, call.url + ": answers more than " + std::to_string(call.max_bytes) + " bytes");
    default:
      return fail(Code::unavailable, call.url + ": " + curl.easy_strerror(result));
  }
}

}  // namespace mycojobs
