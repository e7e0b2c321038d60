#include "net/http_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "net/curl.h"
#include "net/curl_errors.h"
#include "net/host.h"
#include "net/http_wire.h"

namespace mycojobs {
namespace {

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
constexpr long kCaCacheTimeoutS = 60;

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

struct SentFile {
  int fd = -1;
  off_t offset = 0;
};
std::size_t read_sent_file(char* data, std::size_t size, std::size_t count, void* context) {
  auto& file = *static_cast<SentFile*>(context);
  const ssize_t received = ::pread(file.fd, data, size * count, file.offset);
  if (received < 0) return CURL_READFUNC_ABORT;
  file.offset += received;
  return static_cast<std::size_t>(received);
}

bool set_tls_options(const Curl& curl, CURL* easy, const HttpPost& call) {
  bool is_set = true;
  // A changed file is used within a minute. Old libraries, which cache no file, reject the option.
  if (!call.ca.empty()) curl.easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, kCaCacheTimeoutS);
  if (!call.verifies_server) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
  }
  return is_set;
}

// The error of a call; CURLE_OK: the answer was kTlsRequiredText.
Error make_error(const HttpPost& call, CURLcode result, long verify_result, std::string_view error_text,
                 const Curl& curl) {
  if (result == CURLE_OK)
    return {Code::unavailable, call.url + ": TLS: the port uses TLS: write https:// in the address"};
  if (const std::string text = describe_tls_failure(call.ca, result, verify_result, error_text); !text.empty())
    return {Code::unavailable, call.url + ": TLS: " + text};
  switch (result) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return {Code::invalid, call.url + ": is not an http:// or https:// address"};
    case CURLE_WRITE_ERROR:
      return {Code::too_large, call.url + ": answers more than " + std::to_string(call.max_bytes) + " bytes"};
    default:
      return {Code::unavailable, call.url + ": " + curl.easy_strerror(result)};
  }
}

}  // namespace

HttpClient::HttpClient() = default;
HttpClient::~HttpClient() = default;

Result<void> HttpClient::open() {
  if (handle_) return {};
  MJ_TRY(handle, CurlHandle::open());
  handle_ = std::move(handle);
  return {};
}

Result<HttpAnswer> HttpClient::perform(const HttpPost& call, Verb verb, int fd, std::uint64_t file_bytes) {
  MJ_CHECK(open());
  const Curl& curl = *handle_->curl;
  CURL* const easy = handle_->easy;
  curl.easy_reset(easy);  // connections stay open
  ResponseBody response{{}, call.max_bytes};
  curl_slist* headers = curl.slist_append(nullptr, "Content-Type: application/json");
  headers = curl.slist_append(headers, "Expect:");
  if (!call.bearer.empty()) headers = curl.slist_append(headers, ("Authorization: Bearer " + call.bearer).c_str());
  for (const std::string& header : call.headers) headers = curl.slist_append(headers, header.c_str());
  bool is_set = set_common_options(*handle_, call.url, headers, kConnectTimeoutMs, call.ca, call.stop);
  const CURLoption method = verb == Verb::get ? CURLOPT_HTTPGET : verb == Verb::put ? CURLOPT_UPLOAD : CURLOPT_POST;
  is_set = is_set && curl.easy_setopt(easy, method, 1L) == CURLE_OK;
  SentFile sent_file{fd};
  if (verb == Verb::put) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_READFUNCTION, read_sent_file) == CURLE_OK;
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_READDATA, &sent_file) == CURLE_OK;
    is_set =
        is_set && curl.easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(file_bytes)) == CURLE_OK;
  }
  if (verb == Verb::post) {
    is_set = is_set && curl.easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.data()) == CURLE_OK;
    is_set = is_set &&
             curl.easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size())) == CURLE_OK;
  }
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(call.timeout_ms)) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, append_response) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEDATA, &response) == CURLE_OK;
  is_set = is_set && set_tls_options(curl, easy, call);
  AddressFilter filter{call.networks, {}};
  is_set = is_set && set_address_filter(*handle_, filter);
  const CURLcode result = is_set ? curl.easy_perform(easy) : CURLE_URL_MALFORMAT;
  long status = 0, verify_result = 0;
  curl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl.easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &verify_result);
  curl.slist_free_all(headers);
  if (result != CURLE_OK && !filter.refused.empty()) {
    return fail(Code::denied, call.url + ": is at " + filter.refused +
                                  ", outside of coordinator.networks, which allows " + call.networks->text());
  }
  if (result == CURLE_OK && response.body != kTlsRequiredText)
    return HttpAnswer{static_cast<int>(status), std::move(response.body)};
  return tl::unexpected(make_error(call, result, verify_result, handle_->error_text.data(), curl));
}

}  // namespace mycojobs
