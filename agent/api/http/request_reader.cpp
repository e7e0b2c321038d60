#include "api/http/request_reader.h"

#include <algorithm>

#include "api/http/origin.h"
#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

std::string decode_form_text(std::string_view coded) {
  std::string text(coded);
  std::replace(text.begin(), text.end(), '+', ' ');
  return decode_percent(text);
}

std::map<std::string, std::string> parse_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&')), name = pair.substr(0, pair.find('='));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::string_view value = pair.substr(std::min(name.size() + 1, pair.size()));
    if (!pair.empty()) query.emplace(decode_form_text(name), decode_form_text(value));
  }
  return query;
}

// Appends the parts of a body to the request, within the limit of bytes and the limits of memory.
struct RetainedBody final : HttpRequestParser::Body {
  RetainedBody(std::string& body, std::size_t max_bytes, const BodyMemoryCheck& check_memory)
      : body_(body), max_bytes_(max_bytes), check_memory_(check_memory) {}
  Result<void> begin(std::uint64_t length) override {
    if (length > max_bytes_) return fail(Code::too_large, "the body is over " + std::to_string(max_bytes_) + " bytes");
    return {};
  }
  Result<void> add(std::string_view bytes) override {
    MJ_CHECK(begin(body_.size() + bytes.size()));
    if (!check_memory_(body_.size() + bytes.size()))
      return fail(Code::unavailable, "too many large bodies are being read");
    body_ += bytes;
    return {};
  }

 private:
  std::string& body_;
  const std::size_t max_bytes_;
  const BodyMemoryCheck& check_memory_;
};

}  // namespace

Result<std::size_t> RequestReader::parse_head(std::string_view bytes) {
  MJ_TRY(consumed, parser_.parse_head(bytes));
  if (!has_head()) return consumed;
  const std::string_view target = parser_.target(), path = target.substr(0, target.find_first_of("?#"));
  if (!path.starts_with('/')) return fail(Code::invalid, "the first line is not METHOD /PATH HTTP/1.1");
  request_.method = parser_.method();
  request_.path = path;
  const std::string_view query_part = target.substr(path.size());
  if (query_part.starts_with('?')) request_.query = parse_query(query_part.substr(1, query_part.find('#') - 1));
  for (const auto& [name, value] : parser_.fields()) request_.headers.emplace(lower_case(name), value);
  MJ_CHECK(check_host());
  return consumed;
}

// See RFC 9112, section 3.2. Error `invalid`.
Result<void> RequestReader::check_host() const {
  const auto host = request_.headers.find("host");
  if (host == request_.headers.end()) {
    if (!is_http_1_1()) return {};
    return fail(Code::invalid, "the header Host is missing");
  }
  if (is_host_and_port(host->second)) return {};
  return fail(Code::invalid, "the header Host is not HOST or HOST:PORT: " + mycojobs::excerpt(host->second));
}

Result<std::size_t> RequestReader::parse_body(std::string_view bytes, const BodyMemoryCheck& check_memory) {
  RetainedBody body(request_.body, limits_.body_bytes, check_memory);
  MJ_TRY(consumed, parser_.parse_body(bytes, body));
  framed_bytes_ += consumed;
  if (framed_bytes_ > limits_.body_bytes + limits_.head_bytes)
    return fail(Code::too_large, "the body's chunks are over their limit");
  return consumed;
}

bool RequestReader::expects_continue() const {
  return is_http_1_1() && lower_case(request_.header("expect")) == "100-continue";
}

}  // namespace mycojobs::api
