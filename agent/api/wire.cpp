#include "api/wire.h"

#include <curl/curl.h>

#include <algorithm>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <optional>

namespace mycojobs::api {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;

constexpr std::size_t kMostHeaders = 200, kMostLengthDigits = 15, kMostChunkLine = 512;

std::string_view std_view(beast::string_view text) { return {text.data(), text.size()}; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

bool is_length(std::string_view text) {
  return !text.empty() && text.size() <= kMostLengthDigits && text.find_first_not_of("0123456789") == text.npos;
}

std::string form_decoded(std::string text) {
  std::replace(text.begin(), text.end(), '+', ' ');
  if (text.empty()) return text;
  int length = 0;
  const std::unique_ptr<char, decltype(&::curl_free)> plain(
      ::curl_easy_unescape(nullptr, text.data(), static_cast<int>(text.size()), &length), &::curl_free);
  return plain ? std::string(plain.get(), static_cast<std::size_t>(length)) : std::string();
}

std::map<std::string, std::string> read_query(std::string_view text) {
  std::map<std::string, std::string> query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::string_view name = pair.substr(0, pair.find('='));
    if (pair.empty()) continue;
    query.emplace(form_decoded(std::string(name)),
                  form_decoded(std::string(pair.substr(std::min(name.size() + 1, pair.size())))));
  }
  return query;
}

template <class Buffers>
void append(std::string& text, const Buffers& buffers) {
  for (const boost::asio::const_buffer part : beast::buffers_range_ref(buffers))
    text.append(static_cast<const char*>(part.data()), part.size());
}

}  // namespace

class RequestReader::Parser final : public http::basic_parser<true> {
 public:
  explicit Parser(std::size_t most_body) : most_body_(most_body) {
    header_limit(UINT32_MAX);  // by our own count: the library's is of what it is given at one time
    body_limit(UINT64_MAX);    // by our own, once the caller has been admitted; none of 1.74 is no limit but zero
    eager(true);
  }
  // How many of the bytes it has used; those behind them are to be given again.
  Result<std::size_t> read(std::string_view bytes, BodyShare* share) {
    share_ = share;
    error_code code;
    const std::size_t used = put(boost::asio::const_buffer(bytes.data(), bytes.size()), code);
    if (wrong_) return tl::unexpected<Error>(*wrong_);
    if (code && code != http::error::need_more) return fail(Code::invalid, code.message());
    return used;
  }
  HttpRequest request;
  bool http_1_1 = false;

 private:
  void refuse(error_code& code, Code why, std::string message) {
    wrong_ = Error{why, std::move(message)};
    code = http::error::bad_value;
  }
  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       error_code& code) override {
    const std::string_view text = std_view(target), path = text.substr(0, text.find_first_of("?#"));
    if (!path.starts_with('/')) return refuse(code, Code::invalid, "the first line is no METHOD /PATH HTTP/1.1");
    request.method = std_view(method);
    request.path = path;
    const std::string_view rest = text.substr(path.size());
    if (rest.starts_with('?')) request.query = read_query(rest.substr(1, rest.find('#') - 1));
    http_1_1 = version == 11;
  }
  void on_response_impl(int, beast::string_view, int, error_code&) override {}

  void on_field_impl(http::field field, beast::string_view name, beast::string_view value, error_code& code) override {
    if (is_header_done()) return refuse(code, Code::invalid, "a trailer stands behind the chunks");
    if (++headers_ > kMostHeaders)
      return refuse(code, Code::invalid, "there are over " + std::to_string(kMostHeaders) + " headers");
    if (field == http::field::content_length && !is_length(std_view(value)))
      return refuse(code, Code::invalid, "Content-Length: is no number of bytes");
    if (field == http::field::transfer_encoding && lower(std_view(value)) != "chunked")
      return refuse(code, Code::invalid, "Transfer-Encoding: chunked is the one there is");
    constexpr http::field kOnce[] = {http::field::host, http::field::origin, http::field::authorization,
                                     http::field::content_length, http::field::transfer_encoding};
    if (request.headers.emplace(lower(std_view(name)), std_view(value)).second) return;
    if (std::find(std::begin(kOnce), std::end(kOnce), field) != std::end(kOnce))
      refuse(code, Code::invalid, "the header " + lower(std_view(name)) + " stands twice");
  }
  void on_header_impl(error_code& code) override {
    if (chunked() && !http_1_1) refuse(code, Code::invalid, "HTTP/1.0 has no chunks");
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code& code) override {
    if (length && *length > most_body_) refuse_length(code);
  }
  std::size_t on_body_impl(beast::string_view bytes, error_code& code) override {
    if (bytes.size() > most_body_ - request.body.size()) {
      refuse_length(code);
    } else if (!share_->grow(request.body.size() + bytes.size())) {
      refuse(code, Code::unavailable, "too many large bodies are being read");
    } else {
      request.body += std_view(bytes);
    }
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t, beast::string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view bytes, error_code& code) override {
    return on_body_impl(bytes, code);
  }
  void on_finish_impl(error_code&) override {}
  void refuse_length(error_code& code) {
    refuse(code, Code::too_large, "the body is over " + std::to_string(most_body_) + " bytes");
  }

  const std::size_t most_body_;
  BodyShare* share_ = nullptr;
  std::size_t headers_ = 0;
  std::optional<Error> wrong_;
};

RequestReader::RequestReader(const RequestLimits& limits)
    : limits_(limits), parser_(std::make_unique<Parser>(limits.body_bytes)) {}
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;
RequestReader::~RequestReader() = default;

bool RequestReader::has_head() const { return parser_->is_header_done(); }
bool RequestReader::done() const { return parser_->is_done(); }
HttpRequest& RequestReader::request() { return parser_->request; }
const HttpRequest& RequestReader::request() const { return parser_->request; }
bool RequestReader::is_http_1_1() const { return parser_->http_1_1; }
bool RequestReader::keeps_alive() const { return parser_->keep_alive(); }
bool RequestReader::awaits_continue() const {
  return is_http_1_1() && lower(request().header("expect")) == "100-continue";
}

Result<std::size_t> RequestReader::take_head(std::string_view bytes) {
  std::size_t length = 0;
  for (; length == 0 && looked_ < bytes.size(); ++looked_) {
    const char before = looked_ == 0 ? '\n' : bytes[looked_ - 1], c = bytes[looked_];
    if (c == '\n' && before != '\r') return fail(Code::invalid, "a line of the head ends without CR LF");
    if (before == '\n' && (c == ' ' || c == '\t')) return fail(Code::invalid, "a header goes on in the next line");
    if (c == '\n' && bytes.substr(0, looked_ + 1).ends_with("\r\n\r\n")) length = looked_ + 1;
  }
  if (looked_ > limits_.head_bytes)
    return fail(Code::too_large, "the head is over " + std::to_string(limits_.head_bytes) + " bytes");
  if (length == 0) return 0;
  MJ_TRY(used, parser_->read(bytes.substr(0, length), nullptr));
  if (used != length || !has_head()) return fail(Code::invalid, "the head is no head of HTTP/1.1");
  return length;
}

Result<std::size_t> RequestReader::take_body(std::string_view bytes, BodyShare& share) {
  if (done()) return 0;
  MJ_TRY(used, parser_->read(bytes, &share));
  framing_ += used;
  if (!done() && bytes.size() - used > kMostChunkLine) return fail(Code::invalid, "a chunk's size has too long a line");
  if (framing_ > limits_.body_bytes + limits_.head_bytes)
    return fail(Code::too_large, "the chunks are over their limit");
  return used;
}

std::string head_text(const HttpReply& reply, Framing framing, bool http_1_1, bool keep_alive) {
  http::response<http::empty_body> head;
  head.version(http_1_1 ? 11 : 10);
  head.result(static_cast<unsigned>(reply.status));
  head.keep_alive(keep_alive);
  if (reply.status != 204) head.set(http::field::content_type, reply.type);
  for (const auto& [name, value] : reply.headers) head.set(name, value);
  head.set(http::field::cache_control, "no-store");
  head.set("X-Content-Type-Options", "nosniff");
  if (framing == Framing::chunked) head.chunked(true);
  if (framing == Framing::counted && reply.status != 204) head.content_length(reply.body.size());
  std::string text;
  error_code code;  // nothing that this serializer does fails
  http::response_serializer<http::empty_body> writer(head);
  writer.split(true);
  writer.next(code, [&](error_code&, const auto& buffers) { append(text, buffers); });
  return text;
}

std::string chunk_text(std::string_view bytes) {
  std::string text;
  if (bytes.empty()) {
    append(text, http::make_chunk_last());
  } else {
    append(text, http::make_chunk(boost::asio::const_buffer(bytes.data(), bytes.size())));
  }
  return text;
}

std::string wire_text(const HttpReply& reply) { return head_text(reply, Framing::counted, true, false) + reply.body; }

}  // namespace mycojobs::api
