#include "api/http/request_reader.h"

#include <algorithm>

#include "api/http/origin.h"
#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace {

std::string form_decoded(std::string_view coded) {
  std::string text(coded);
  std::replace(text.begin(), text.end(), '+', ' ');
  return percent_decoded(text);
}

std::map<std::string, std::string> read_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&')), name = pair.substr(0, pair.find('='));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::string_view value = pair.substr(std::min(name.size() + 1, pair.size()));
    if (!pair.empty()) query.emplace(form_decoded(name), form_decoded(value));
  }
  return query;
}

// Appends the parts of a body to the request, within the limit of bytes and the memory limit of BodyMemoryBudget.
struct RetainedBody final : HttpRequestParser::Body {
  RetainedBody(std::string& into, std::size_t max, BodyMemoryBudget& share) : into_(into), most_(max), share_(share) {}
  Result<void> begin(std::uint64_t length) override {
    if (length > most_) return fail(Code::too_large, "the body is over " + std::to_string(most_) + " bytes");
    return {};
  }
  Result<void> add(std::string_view bytes) override {
    MJ_CHECK(begin(into_.size() + bytes.size()));
    if (!share_.grow(into_.size() + bytes.size()))
      return fail(Code::unavailable, "too many large bodies are being read");
    into_ += bytes;
    return {};
  }

 private:
  std::string& into_;
  const std::size_t most_;
  BodyMemoryBudget& share_;
};

}  // namespace

Result<std::size_t> RequestReader::parse_head(std::string_view bytes) {
  MJ_TRY(taken, parser_.take_head(bytes));
  if (!has_head()) return taken;
  const std::string_view target = parser_.target(), path = target.substr(0, target.find_first_of("?#"));
  if (!path.starts_with('/')) return fail(Code::invalid, "the first line is not METHOD /PATH HTTP/1.1");
  request_.method = parser_.method();
  request_.path = path;
  const std::string_view rest = target.substr(path.size());
  if (rest.starts_with('?')) request_.query = read_query(rest.substr(1, rest.find('#') - 1));
  for (const auto& [name, value] : parser_.fields()) request_.headers.emplace(lower_case(name), value);
  MJ_CHECK(check_host());
  return taken;
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

Result<std::size_t> RequestReader::parse_body(std::string_view bytes, BodyMemoryBudget& share) {
  RetainedBody body(request_.body, limits_.body_bytes, share);
  MJ_TRY(taken, parser_.take_body(bytes, body));
  framed_ += taken;
  if (framed_ > limits_.body_bytes + limits_.head_bytes)
    return fail(Code::too_large, "the body's chunks are over their limit");
  return taken;
}

bool RequestReader::awaits_continue() const {
  return is_http_1_1() && lower_case(request_.header("expect")) == "100-continue";
}

}  // namespace mycojobs::api
