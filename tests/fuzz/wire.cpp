// Fuzz targets for CBOR, JSON-RPC and HTTP.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/rpc/json_rpc.h"
#include "fuzz/targets.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "net/http_wire.h"
#include "net/json_rpc_client.h"
#include "security/sender_check.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::fuzz {
namespace {

using nlohmann::json;

// Builds a JSON value or a byte string, chosen by the input bytes.
class Chooser {
 public:
  explicit Chooser(std::string_view bytes) : bytes_(bytes) {}

  json value(int depth = 0) {
    switch (byte() % (depth < 6 ? 9 : 7)) {
      case 0:
        return nullptr;
      case 1:
        return byte() % 2 == 0;
      case 2:
        return number();
      case 3:
        return static_cast<std::int64_t>(number());
      case 4:
        return std::bit_cast<double>(number());
      case 5:
        return text();
      case 6:
        return json::binary(std::vector<std::uint8_t>(byte() % 40, byte()));
      case 7: {
        json list = json::array();
        for (int n = byte() % 30; n > 0; --n) list.push_back(value(depth + 1));
        return list;
      }
      default: {
        json map = json::object();
        for (int n = byte() % 30; n > 0; --n) map[text()] = value(depth + 1);
        return map;
      }
    }
  }

 private:
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto first = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return first;
  }
  // The bytes also choose the width of the number, so the limits of the encodings are tested.
  std::uint64_t number() {
    std::uint64_t out = 0;
    const int shift = byte() % 9;
    for (int i = 0; i < shift; ++i) out = out << 8 | byte();
    return byte() % 4 == 0 ? out << 8 * (8 - std::max(shift, 1)) : out;
  }
  std::string text() {
    const std::string_view some = bytes_.substr(0, byte() % 300);
    bytes_.remove_prefix(std::min(some.size(), bytes_.size()));
    return to_utf8(some);
  }

  std::string_view bytes_;
};

bool has_nan(const json& value) {
  if (value.is_structured()) return std::any_of(value.begin(), value.end(), has_nan);
  return value.is_number_float() && std::isnan(value.get<double>());
}

// Methods that read their parameters as the server does, without an implementation.
Result<json> create_job(const json& params, const api::RpcCaller& caller) {
  auto decoded = decode_json<Job>(params["job"]);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  MJ_CHECK(fill_and_check_sender(decoded.record, {caller.actor, 1}));
  if (const auto problems = validate(decoded.record); !problems.empty()) return fail(Code::invalid, join(problems));
  return to_json(decoded.record);
}
Result<json> create_message(const json& params, const api::RpcCaller& caller) {
  auto decoded = decode_json<Message>(params["message"]);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  MJ_CHECK(fill_and_check_sender(decoded.record, {caller.actor, 1}));
  return to_json(decoded.record);
}

const api::Rpc& rpc() {
  static const api::Rpc all({{{"job.create", "", {{"job", "object", "", true}}, "Job"}, create_job},
                             {{"message.create", "", {{"message", "object", "", true}}, "Message"}, create_message},
                             {{"echo",
                               "",
                               {{"id", "id", ""},
                                {"name", "text", ""},
                                {"count", "integer", ""},
                                {"after_s", "seconds", ""},
                                {"ids", "ids", ""},
                                {"since", "unix_ms", ""},
                                {"now", "boolean", ""},
                                {"names", "texts", ""},
                                {"jobs", "jobs", ""},
                                {"values", "variables", ""},
                                {"key", "key", ""},
                                {"anything", "any", ""}},
                               "any"},
                              [](const json& params, const api::RpcCaller&) -> Result<json> { return params; }}},
                            {1U << 20, 8, 20000});
  return all;
}

bool is_reply(const json& reply) {
  if (!reply.is_object() || reply.size() != 3 || !reply.contains("id") || reply.value("jsonrpc", "") != "2.0")
    return false;
  if (reply.contains("result")) return true;
  const auto error = reply.find("error");
  // -32603: an exception inside the server
  return error != reply.end() && error->is_object() && (*error)["code"].is_number_integer() &&
         (*error)["code"] != -32603 && (*error)["message"].is_string() && (*error)["data"].is_object();
}

struct Heard {
  bool refused = false, head = false, done = false;
  std::size_t used = 0;
  std::string body;
};
class CollectingBody final : public HttpRequestParser::Body {
 public:
  explicit CollectingBody(std::string& into) : into_(into) {}
  Result<void> add(std::string_view bytes) override {
    into_ += bytes;
    return {};
  }

 private:
  std::string& into_;
};

// Feeds the bytes to the parser as a connection would, `step` bytes at a time.
Heard hear(std::string_view bytes, std::size_t step) {
  constexpr std::size_t kMaxHead = 2048;
  Heard heard;
  HttpRequestParser parser(kMaxHead);
  CollectingBody body(heard.body);
  std::string buffer;
  for (std::size_t at = 0; at < bytes.size() && !heard.done; at += step) {
    buffer += bytes.substr(at, step);
    if (!heard.head) {
      const auto size = parser.parse_head(buffer);
      if (!size) return heard.refused = true, heard;
      if (*size == 0) continue;
      must(*size <= buffer.size() && parser.has_head(), "a head is longer than what there is");
      must(!parser.target().empty() && parser.target().find_first_of(" \r\n\t") == std::string::npos,
           "a target has blanks");
      heard.head = true;
      heard.used += *size;
      buffer.erase(0, *size);
    }
    const auto size = parser.parse_body(buffer, body);
    if (!size) return heard.refused = true, heard;
    must(*size <= buffer.size(), "a body is longer than what there is");
    heard.used += *size;
    buffer.erase(0, *size);
    heard.done = parser.is_complete();
  }
  return heard;
}

// An accepted body, encoded in chunks, must be decoded to the same body.
void check_chunks(const std::string& body) {
  const std::string text = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + encode_chunk(body) +
                           (body.empty() ? "" : encode_chunk({}));
  const Heard heard = hear(text, 7);
  must(heard.done && heard.body == body && heard.used == text.size(), "chunks of ours are another body");
}

}  // namespace

int fuzz_cbor(std::string_view bytes) {
  (void)decode_cbor(bytes, {64, 8});
  const auto value = decode_cbor(bytes);
  if (!value) return 0;
  const auto again = encode_cbor(*value);
  must(again && *again == bytes, "what was taken is not the one encoding of its value");
  return 1;
}

int fuzz_cbor_values(std::string_view bytes) {
  const json value = Chooser(bytes).value();
  const auto encoded = encode_cbor(value);
  must(encoded.has_value(), "a value has no encoding");
  const auto decoded = decode_cbor(*encoded);
  must(decoded.has_value(), "an encoding of ours is refused");
  must(*decoded == value || has_nan(value), "a value is another one after its way");
  must(encode_cbor(*decoded).value_or("") == *encoded, "a value has two encodings");
  return 1;
}

int fuzz_rpc_request(std::string_view body) {
  const std::string answer = rpc().answer(body, {12});
  if (answer.empty()) return 1;
  const auto parsed = parse_json(answer);
  must(parsed.has_value(), "an answer is no JSON: " + answer);
  if (!parsed->is_array()) {
    must(is_reply(*parsed), "an answer is no reply: " + answer);
    return parsed->contains("result") ? 1 : 0;
  }
  must(!parsed->empty() && parsed->size() <= 8, "a batch has more answers than calls");
  must(std::all_of(parsed->begin(), parsed->end(), is_reply), "a batch has an answer that is no reply: " + answer);
  return 1;
}

int fuzz_rpc_answer(std::string_view text) {
  const auto result = parse_rpc_answer(text);
  if (!result) return result.error().code == Code::internal ? 0 : 1;
  const auto request = parse_json(encode_rpc_request("echo", *result));
  must(request && (*request)["params"] == *result, "a result cannot be sent on");
  return 1;
}

int fuzz_http_request(std::string_view bytes) {
  const Heard whole = hear(bytes, bytes.size() + 1);
  for (const std::size_t step : {std::size_t{1}, std::size_t{5}}) {
    const Heard parts = hear(bytes, step);
    must(parts.refused == whole.refused, "in parts it is judged otherwise");
    if (whole.refused) continue;
    must(parts.head == whole.head && parts.done == whole.done && parts.body == whole.body,
         "in parts it reads otherwise");
    must(parts.used == whole.used || !whole.done, "in parts it ends elsewhere");
  }
  if (whole.done) check_chunks(whole.body);
  return whole.done ? 1 : 0;
}

}  // namespace mycojobs::fuzz
