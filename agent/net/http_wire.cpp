#include "net/http_wire.h"

#include <algorithm>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <optional>

#include "text/utf8.h"

namespace mycojobs {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;

constexpr std::size_t kMaxFields = 200, kMaxLengthDigits = 15, kMaxOverheadBytes = 16U << 10;
constexpr std::uint64_t kMaxChunkBytes = 1ULL << 60;
constexpr std::string_view kLastChunk = "0\r\n\r\n";

std::string_view to_std_view(beast::string_view text) { return {text.data(), text.size()}; }

bool is_length(std::string_view text) {
  return !text.empty() && text.size() <= kMaxLengthDigits && text.find_first_not_of("0123456789") == text.npos;
}

bool must_occur_once(http::field field) {
  return field == http::field::host || field == http::field::origin || field == http::field::authorization ||
         field == http::field::content_length || field == http::field::transfer_encoding;
}

template <class Buffers>
void append(std::string& text, const Buffers& buffers) {
  for (const boost::asio::const_buffer part : beast::buffers_range_ref(buffers))
    text.append(static_cast<const char*>(part.data()), part.size());
}

}  // namespace

class HttpRequestParser::Parser final : public http::basic_parser<true> {
 public:
  explicit Parser(bool trailers) : accepts_trailers_(trailers) {
    // The library's limits are off; this file enforces its own. The library would count only the head bytes of one
    // call, its limits would apply before a caller is admitted, and in version 1.74 "none" rejects every
    // Content-Length.
    header_limit(UINT32_MAX);
    body_limit(UINT64_MAX);
    eager(true);
  }
  // Returns the number of bytes that were parsed.
  Result<std::size_t> read(std::string_view bytes, Body* body) {
    // The library asserts that a second call never has fewer bytes than this.
    if (in_last_chunk_ && bytes.size() < kLastChunk.size()) return 0;
    body_ = body;
    error_code code;
    const std::size_t used_bytes = put(boost::asio::const_buffer(bytes.data(), bytes.size()), code);
    if (error_) return tl::unexpected<Error>(*error_);
    if (code && code != http::error::need_more)
      return fail(Code::invalid, (is_header_done() ? "the chunks of the request's body are malformed: "
                                                   : "this is not an HTTP/1.1 request: ") +
                                     code.message());
    if (is_header_done() && !is_done() && bytes.size() - used_bytes > kMaxOverheadBytes)
      return fail(Code::too_large, "the chunk extensions or trailers are too long");
    // A complete line that remains is the line of the last chunk, because the library consumes the line of a chunk with
    // data. After a chunk with data, the rest begins with the line end of that data, so its length suffices.
    in_last_chunk_ = !has_chunks_ && bytes.substr(used_bytes).find("\r\n") != bytes.npos;
    return used_bytes;
  }
  std::string method, target;
  HttpFields fields;
  bool is_http_1_1 = false;

 private:
  void refuse(error_code& code, Error error) {
    error_ = std::move(error);
    code = http::error::bad_value;
  }
  void refuse(error_code& code, std::string message) { refuse(code, Error{Code::invalid, std::move(message)}); }

  void on_request_impl(http::verb, beast::string_view verb, beast::string_view request_target, int version,
                       error_code&) override {
    method = to_std_view(verb);
    target = to_std_view(request_target);
    is_http_1_1 = version == 11;
  }
  void on_response_impl(int, beast::string_view, int, error_code&) override {}

  void on_field_impl(http::field field, beast::string_view name, beast::string_view value, error_code& code) override {
    if (is_header_done()) {
      if (!accepts_trailers_) refuse(code, "a trailer follows the chunks");
      return;
    }
    if (fields.size() == kMaxFields) return refuse(code, "there are over " + std::to_string(kMaxFields) + " headers");
    if (field == http::field::content_length && !is_length(to_std_view(value)))
      return refuse(code, "Content-Length is not a number of bytes: " + excerpt(to_std_view(value)));
    if (field == http::field::transfer_encoding && !beast::iequals(value, "chunked"))
      return refuse(code, "Transfer-Encoding may be chunked alone");
    if (must_occur_once(field) && std::any_of(fields.begin(), fields.end(), [&](const auto& other) {
          return beast::iequals(beast::string_view(other.first), name);
        }))
      return refuse(code, "the header " + std::string(to_std_view(name)) + " occurs twice");
    fields.emplace_back(to_std_view(name), to_std_view(value));
  }
  void on_header_impl(error_code& code) override {
    if (chunked() && !is_http_1_1) refuse(code, "HTTP/1.0 has no chunks");
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code& code) override {
    if (const auto accepted = body_->begin(length.value_or(0)); !accepted) refuse(code, accepted.error());
  }
  std::size_t on_body_impl(beast::string_view bytes, error_code& code) override {
    if (const auto accepted = body_->add(to_std_view(bytes)); !accepted) refuse(code, accepted.error());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t size, beast::string_view extensions, error_code& code) override {
    has_chunks_ = true;
    if (size > kMaxChunkBytes) return refuse(code, "the size of a chunk is not a number of bytes");
    if ((overhead_bytes_ += extensions.size()) > kMaxOverheadBytes)
      refuse(code, Error{Code::too_large, "the chunk extensions or trailers are too long"});
  }
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view bytes, error_code& code) override {
    return on_body_impl(bytes, code);
  }
  void on_finish_impl(error_code&) override {}

  const bool accepts_trailers_;
  bool has_chunks_ = false, in_last_chunk_ = false;
  Body* body_ = nullptr;
  std::size_t overhead_bytes_ = 0;
  std::optional<Error> error_;
};

HttpRequestParser::HttpRequestParser(std::size_t max_head_bytes, bool trailers)
    : max_head_bytes_(max_head_bytes), parser_(std::make_unique<Parser>(trailers)) {}
HttpRequestParser::HttpRequestParser(HttpRequestParser&&) noexcept = default;
HttpRequestParser& HttpRequestParser::operator=(HttpRequestParser&&) noexcept = default;
HttpRequestParser::~HttpRequestParser() = default;

bool HttpRequestParser::has_head() const { return parser_->is_header_done(); }
bool HttpRequestParser::is_complete() const { return parser_->is_done(); }
const std::string& HttpRequestParser::method() const { return parser_->method; }
const std::string& HttpRequestParser::target() const { return parser_->target; }
const HttpFields& HttpRequestParser::fields() const { return parser_->fields; }
bool HttpRequestParser::is_http_1_1() const { return parser_->is_http_1_1; }
bool HttpRequestParser::is_keep_alive() const { return parser_->keep_alive(); }

// The library receives only complete heads, so the result does not depend on how the bytes arrive.
Result<std::size_t> HttpRequestParser::parse_head(std::string_view bytes) {
  std::size_t length = 0;
  for (; length == 0 && searched_bytes_ < bytes.size(); ++searched_bytes_) {
    const char previous = searched_bytes_ == 0 ? '\n' : bytes[searched_bytes_ - 1], c = bytes[searched_bytes_];
    if (c == '\n' && previous != '\r') return fail(Code::invalid, "a line of the head ends without CR LF");
    if (previous == '\n' && (c == ' ' || c == '\t')) return fail(Code::invalid, "a header continues in the next line");
    if (c == '\n' && bytes.substr(0, searched_bytes_ + 1).ends_with("\r\n\r\n")) length = searched_bytes_ + 1;
  }
  if (searched_bytes_ > max_head_bytes_)
    return fail(Code::too_large, "the head is over " + std::to_string(max_head_bytes_) + " bytes");
  if (length == 0) return 0;
  MJ_TRY(used_bytes, parser_->read(bytes.substr(0, length), nullptr));
  if (used_bytes != length || !has_head()) return fail(Code::invalid, "the head is not valid HTTP/1.1");
  return length;
}

Result<std::size_t> HttpRequestParser::parse_body(std::string_view bytes, Body& body) {
  if (is_complete()) return 0;
  return parser_->read(bytes, &body);
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string to_text(const HttpAnswerHead& answer) {
  http::response<http::empty_body> head;
  head.version(answer.http_1_1 ? 11 : 10);
  head.result(static_cast<unsigned>(answer.status));
  head.keep_alive(answer.keep_alive);
  for (const auto& [name, value] : answer.fields) head.set(name, value);
  if (answer.framing == HttpFraming::chunked) head.chunked(true);
  if (answer.framing == HttpFraming::counted && answer.status != 204) head.content_length(answer.length);
  std::string text;
  error_code code;  // cannot fail with this serializer
  http::response_serializer<http::empty_body> writer(head);
  writer.split(true);
  writer.next(code, [&](error_code&, const auto& buffers) { append(text, buffers); });
  return text;
}

std::string encode_chunk(std::string_view bytes) {
  std::string text;
  if (bytes.empty()) {
    append(text, http::make_chunk_last());
  } else {
    append(text, http::make_chunk(boost::asio::const_buffer(bytes.data(), bytes.size())));
  }
  return text;
}

}  // namespace mycojobs
