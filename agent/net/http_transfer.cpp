#include "net/http_transfer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "base/parse.h"
#include "net/curl.h"
#include "net/curl_errors.h"
#include "text/base64.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxCollectedBytes = 8U
                                           << 20;  // limit of Answer::body; a page of an S3 listing has less than 1 MiB
constexpr std::size_t kMaxHeaderBytes = 64U << 10;

std::string to_lower_name(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string_view trim_header(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The state of one transfer, which the callbacks of libcurl use.
struct TransferState {
  const HttpTransfer::Request& request;
  const Curl& curl;
  CURL* easy;
  HttpTransfer::Answer answer = {};
  std::uint64_t sent_bytes = 0;
  std::size_t header_bytes = 0;
  bool has_other_status = false;  // the status of the answer differs from body_status
  std::optional<Error> error = {};

  std::uint64_t body_bytes() const { return request.file >= 0 ? request.file_bytes : request.body.size(); }
};

std::size_t read_body(char* buffer, std::size_t size, std::size_t count, void* context) {
  auto& state = *static_cast<TransferState*>(context);
  const std::size_t bytes = static_cast<std::size_t>(
      std::min<std::uint64_t>(size * count, state.body_bytes() - std::min(state.body_bytes(), state.sent_bytes)));
  if (bytes == 0) return 0;
  if (state.request.file < 0) {
    std::memcpy(buffer, state.request.body.data() + state.sent_bytes, bytes);
    state.sent_bytes += bytes;
    return bytes;
  }
  ssize_t read_bytes = -1;
  do {
    read_bytes =
        ::pread(state.request.file, buffer, bytes, static_cast<off_t>(state.request.file_offset + state.sent_bytes));
  } while (read_bytes < 0 && errno == EINTR);
  if (read_bytes <= 0) {
    state.error = Error{Code::io, "the file cannot be read, or is shorter than before"};
    return CURL_READFUNC_ABORT;
  }
  state.sent_bytes += static_cast<std::uint64_t>(read_bytes);
  return static_cast<std::size_t>(read_bytes);
}

// Called by libcurl to send the body again, after the server has closed a reused connection.
int seek_body(void* context, curl_off_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<TransferState*>(context)->sent_bytes = static_cast<std::uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::size_t write_body(char* data, std::size_t size, std::size_t count, void* context) {
  auto& state = *static_cast<TransferState*>(context);
  const std::size_t bytes = size * count;
  long status = 0;
  state.curl.easy_getinfo(state.easy, CURLINFO_RESPONSE_CODE, &status);
  const int body_status = state.request.body_status;
  const bool is_body = body_status == 0 ? status == 200 || status == 206 : status == body_status;
  if (state.request.on_body && is_body) {
    auto received = state.request.on_body({data, bytes});
    if (received) return bytes;
    state.error = std::move(received).error();
    return 0;
  }
  if (body_status != 0) {  // the body is not received, since it may be endless
    state.has_other_status = true;
    return 0;
  }
  if (state.answer.body.size() + bytes > kMaxCollectedBytes) {
    state.error = Error{Code::too_large, "the answer has more than " + std::to_string(kMaxCollectedBytes) + " bytes"};
    return 0;
  }
  state.answer.body.append(data, bytes);
  return bytes;
}

std::size_t add_header(char* data, std::size_t size, std::size_t count, void* context) {
  auto& state = *static_cast<TransferState*>(context);
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/"))
    state.answer.headers.clear();  // removes the headers of an interim answer "100 Continue"
  const std::size_t colon = line.find(':');
  state.header_bytes += line.size();
  if (colon != std::string_view::npos && state.header_bytes <= kMaxHeaderBytes)
    state.answer.headers[to_lower_name(trim_header(line.substr(0, colon)))] =
        std::string(trim_header(line.substr(colon + 1)));
  return size * count;
}

// Sets the options of libcurl for a method and its body.
bool set_method(const Curl& curl, CURL* easy, TransferState& state) {
  const std::string& method = state.request.method;
  if (method == "GET") return curl.easy_setopt(easy, CURLOPT_HTTPGET, 1L) == CURLE_OK;
  if (method == "DELETE") return curl.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "DELETE") == CURLE_OK;
  bool is_set = curl.easy_setopt(easy, CURLOPT_UPLOAD, 1L) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method.c_str()) == CURLE_OK;
  is_set = is_set &&
           curl.easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(state.body_bytes())) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_READFUNCTION, read_body) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_READDATA, &state) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body) == CURLE_OK;
  return is_set && curl.easy_setopt(easy, CURLOPT_SEEKDATA, &state) == CURLE_OK;
}

// Accepts only a server with the public key of the request. libcurl compares the key before it sends the request, also
// without verification of the certificate chain.
bool set_server_key(const Curl& curl, CURL* easy, const std::string& server_key_sha256) {
  if (server_key_sha256.empty()) return true;
  const std::string pin = "sha256//" + encode_base64(from_hex(server_key_sha256));
  return curl.easy_setopt(easy, CURLOPT_PINNEDPUBLICKEY, pin.c_str()) == CURLE_OK &&
         curl.easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK &&
         curl.easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
}

bool set_options(CurlHandle& handle, TransferState& state, AddressFilter& filter, curl_slist* headers) {
  const Curl& curl = *handle.curl;
  CURL* const easy = handle.easy;
  const HttpTransfer::Request& request = state.request;
  bool is_set = set_common_options(handle, request.url, headers, static_cast<long>(request.connect_timeout_ms),
                                   request.ca, request.stop);
  is_set = is_set && set_address_filter(handle, filter);
  is_set = is_set && set_server_key(curl, easy, request.server_key_sha256);
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L) == CURLE_OK;
  is_set =
      is_set && curl.easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(request.min_bytes_per_s)) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.max_slow_s)) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, write_body) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_WRITEDATA, &state) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_HEADERFUNCTION, add_header) == CURLE_OK;
  is_set = is_set && curl.easy_setopt(easy, CURLOPT_HEADERDATA, &state) == CURLE_OK;
  return is_set && set_method(curl, easy, state);
}

}  // namespace

HttpTransfer::HttpTransfer() = default;
HttpTransfer::~HttpTransfer() = default;

Result<HttpTransfer::Answer> HttpTransfer::perform(const Request& request) {
  if (!handle_) {
    MJ_TRY(handle, CurlHandle::open());
    handle_ = std::move(handle);
  }
  const Curl& curl = *handle_->curl;
  CURL* const easy = handle_->easy;
  curl.easy_reset(easy);  // does not close connections
  TransferState state{request, curl, easy};
  curl_slist* headers = curl.slist_append(nullptr, "Expect:");
  for (const std::string& header : request.headers) headers = curl.slist_append(headers, header.c_str());
  handle_->error_text.front() = '\0';
  AddressFilter filter{request.networks, {}};
  const bool is_set = set_options(*handle_, state, filter, headers);
  const CURLcode result = is_set ? curl.easy_perform(easy) : CURLE_URL_MALFORMAT;
  long status = 0, verify_result = 0;
  curl.easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
  curl.easy_getinfo(easy, CURLINFO_SSL_VERIFYRESULT, &verify_result);
  curl.slist_free_all(headers);
  if (state.error) return tl::unexpected<Error>(std::move(*state.error));
  if (result == CURLE_OK || state.has_other_status) {
    state.answer.status = static_cast<int>(status);
    return std::move(state.answer);
  }
  if (!filter.refused.empty())
    return fail(Code::denied, filter.refused + " is outside of the networks " + request.networks->text());
  std::string text = describe_tls_failure(request.ca, result, verify_result, handle_->error_text.data());
  if (!text.empty()) return fail(Code::unavailable, "TLS: " + text);
  text = handle_->error_text.data();
  return fail(Code::unavailable, text.empty() ? curl.easy_strerror(result) : text);
}

}  // namespace mycojobs
