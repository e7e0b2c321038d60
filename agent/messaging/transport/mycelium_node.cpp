#include "messaging/transport/mycelium_node.h"

#include <nlohmann/json.hpp>

#include "text/base64.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

// Limit for an answer of the node, which contains a message of at most 2 MiB.
constexpr std::size_t kMaxNodeAnswerBytes = 4U << 20;

Result<MyceliumAddress> parse_node_address(const json& message, const char* key, const char* ip) {
  const auto by_key = parse_mycelium(text_field(message, key)), by_ip = parse_mycelium(text_field(message, ip));
  if (!by_key || by_key->key.empty() || !by_ip || !by_ip->ip)
    return fail(Code::internal, "the Mycelium node answers a message without " + std::string(key) + " or " + ip);
  return MyceliumAddress{by_key->key, by_ip->ip};
}

Result<MyceliumMessage> parse_node_message(const json& message) {
  if (!message.is_object()) return fail(Code::internal, "the Mycelium node answers no message");
  MyceliumMessage result;
  result.id = text_field(message, "id");
  MJ_TRY(from, parse_node_address(message, "srcPk", "srcIp"));
  MJ_TRY(to, parse_node_address(message, "dstPk", "dstIp"));
  auto payload = decode_base64(text_field(message, "payload"));
  if (result.id.empty() || !payload)
    return fail(Code::internal, "the Mycelium node answers a message without id or payload");
  result.from = std::move(from);
  result.to = std::move(to);
  result.payload = std::move(*payload);
  result.payload.erase(result.payload.find_last_not_of(' ') + 1);
  return result;
}

json make_message_body(const MyceliumAddress& to, std::string_view topic, std::string_view payload) {
  json message = {{"payload", encode_base64(pad_payload(payload))}};
  message["dst"] = to.key.empty() ? json{{"ip", to_text(*to.ip)}} : json{{"pk", to.key}};
  if (!topic.empty()) message["topic"] = encode_base64(topic);
  return message;
}

// Encodes bytes as base64 for the query of a URL.
std::string escape_base64(std::string_view bytes) {
  std::string result;
  for (const char c : encode_base64(bytes)) {
    if (c == '+' || c == '/' || c == '=') {
      result += c == '+' ? "%2B" : c == '/' ? "%2F" : "%3D";
    } else {
      result += c;
    }
  }
  return result;
}

// Parses the state of a message, for example "received", or {"sending": {"pending": 1, "sent": 2, "acked": 3}}.
MyceliumNode::Delivery parse_delivery(const json& info) {
  using State = MyceliumNode::State;
  if (!info.is_object() || !info.contains("state")) return {};
  const json& state = info["state"];
  std::string state_name = state.is_string() ? state.get<std::string>() : "";
  if (state.is_object() && !state.empty()) state_name = state.begin().key();
  if (state_name == "sending") {
    const json chunks = state.is_object() ? state[state_name] : json();
    const json acked = chunks.is_object() ? chunks.value("acked", json()) : json();
    return {State::sending, acked.is_number_unsigned() ? acked.get<std::uint64_t>() : 0};
  }
  if (state_name == "pending") return {State::pending};
  if (state_name == "received" || state_name == "read") return {State::received};
  return {state_name == "aborted" ? State::aborted : State::unknown};
}

tl::unexpected<Error> status_error(const std::string& url, int status) {
  const std::string text = "the Mycelium node at " + url + " answers with HTTP status " + std::to_string(status);
  if (status == 413) return fail(Code::too_large, text + ": the message is over its limit, 2 MiB as JSON and base64");
  return fail(status >= 500 || status == 429 ? Code::unavailable : Code::internal, text);
}

}  // namespace

std::string pad_payload(std::string_view text) {
  constexpr std::size_t kChunkBytes = 1300, kMinChunkBytes = 250;
  std::string result(text);
  const std::size_t last_chunk = result.size() % kChunkBytes;
  if (result.size() > kChunkBytes && last_chunk > 0 && last_chunk < kMinChunkBytes)
    result.append(kMinChunkBytes - last_chunk, ' ');
  return result;
}

Result<HttpAnswer> MyceliumNode::call(const std::string& url, const std::string* body, std::uint32_t timeout_ms) {
  HttpPost post;
  post.url = url;
  post.timeout_ms = timeout_ms;
  post.max_bytes = kMaxNodeAnswerBytes;
  post.stop = stop_;
  if (body != nullptr) post.body = *body;
  auto answer = body != nullptr ? http_.post(post) : http_.get(post);
  if (!answer) {
    api_ = Api::unknown;  // the node may be restarted with the other API
    return fail(answer.error(), "the Mycelium node");
  }
  return std::move(*answer);
}

Result<HttpAnswer> MyceliumNode::call_rest(const std::string& path, const json* body, std::uint32_t timeout_ms) {
  const std::string text = body != nullptr ? dump_json(*body) : "";
  return call(url_ + "/api/v1" + path, body != nullptr ? &text : nullptr, timeout_ms);
}

Result<json> MyceliumNode::call_json_rpc(std::string_view method, const json& params, std::uint32_t timeout_ms) {
  const std::string text = dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}});
  MJ_TRY(answer, call(url_, &text, timeout_ms));
  if (answer.status != 200) return status_error(url_, answer.status);
  auto reply = parse_json(answer.body, kMaxNodeAnswerBytes);
  if (!reply || !reply->is_object() || reply->contains("result") == reply->contains("error"))
    return fail(Code::internal, "the Mycelium node at " + url_ + " answers no JSON-RPC");
  if (reply->contains("result")) return std::move((*reply)["result"]);
  const json& error = (*reply)["error"];
  return fail(Code::not_found,
              "the Mycelium node at " + url_ + " refuses " + std::string(method) + ": " + text_field(error, "message"));
}

Result<void> MyceliumNode::detect_api(std::uint32_t timeout_ms) {
  if (api_ != Api::unknown) return {};
  MJ_TRY(admin, call_rest("/admin", nullptr, timeout_ms));
  if (admin.status == 200) {
    api_ = Api::rest;
    return {};
  }
  if (admin.status >= 500) return status_error(url_, admin.status);
  const auto info = call_json_rpc("getInfo", json::array(), timeout_ms);
  if (!info && info.error().code == Code::unavailable) return tl::unexpected<Error>(info.error());
  if (!info || !info->is_object())
    return fail(Code::internal, "at " + url_ +
                                    " is not a Mycelium node: mycelium.url must be the URL of its API (port 8989) or "
                                    "of its JSON-RPC (port 8990)");
  api_ = Api::rpc;
  return {};
}

Result<std::string> MyceliumNode::key(std::uint32_t timeout_ms) {
  MJ_CHECK(detect_api(timeout_ms));
  json info;
  if (api_ == Api::rest) {
    MJ_TRY(answer, call_rest("/admin", nullptr, timeout_ms));
    if (answer.status != 200) return status_error(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) info = std::move(*parsed);
  } else {
    MJ_TRY(answer, call_json_rpc("getInfo", json::array(), timeout_ms));
    info = std::move(answer);
  }
  const auto node_address = parse_mycelium(text_field(info, "nodePubkey"));
  if (!node_address || node_address->key.empty())
    return fail(Code::internal, "the Mycelium node at " + url_ + " names no key");
  return node_address->key;
}

Result<std::string> MyceliumNode::push(const MyceliumAddress& to, std::string_view topic, std::string_view payload,
                                       std::uint32_t timeout_ms) {
  MJ_CHECK(detect_api(timeout_ms));
  const json message = make_message_body(to, topic, payload);
  json sent;
  if (api_ == Api::rest) {
    MJ_TRY(answer, call_rest("/messages", &message, timeout_ms));
    if (answer.status != 201) return status_error(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) sent = std::move(*parsed);
  } else {
    MJ_TRY(answer, call_json_rpc("pushMessage", json::array({message, nullptr}), timeout_ms));
    sent = std::move(answer);
  }
  std::string id = text_field(sent, "id");
  if (id.empty()) return fail(Code::internal, "the Mycelium node at " + url_ + " does not accept a message");
  return id;
}

Result<void> MyceliumNode::reply(const MyceliumMessage& request, std::string_view payload, std::uint32_t timeout_ms) {
  MJ_CHECK(detect_api(timeout_ms));
  const json message = make_message_body({request.from.key, {}}, "", payload);
  if (api_ == Api::rest) {
    MJ_TRY(answer, call_rest("/messages/reply/" + request.id, &message, timeout_ms));
    if (answer.status != 204) return status_error(url_, answer.status);
    return {};
  }
  MJ_TRY(answer, call_json_rpc("pushMessageReply", json::array({request.id, message}), timeout_ms));
  if (answer != true) return fail(Code::internal, "the Mycelium node at " + url_ + " does not accept a reply");
  return {};
}

Result<std::optional<MyceliumMessage>> MyceliumNode::pop(std::string_view topic, std::uint32_t timeout_ms) {
  MJ_CHECK(detect_api(timeout_ms));
  json received;
  if (api_ == Api::rest) {
    MJ_TRY(answer, call_rest("/messages?timeout=0&topic=" + escape_base64(topic), nullptr, timeout_ms));
    if (answer.status == 204) return std::nullopt;
    if (answer.status != 200) return status_error(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) received = std::move(*parsed);
  } else {
    MJ_TRY(answer, call_json_rpc("popMessage", json::array({false, 0, encode_base64(topic)}), timeout_ms));
    if (answer.is_null()) return std::nullopt;
    received = std::move(answer);
  }
  MJ_TRY(message, parse_node_message(received));
  return std::move(message);
}

Result<MyceliumNode::Delivery> MyceliumNode::delivery(const std::string& id, std::uint32_t timeout_ms) {
  MJ_CHECK(detect_api(timeout_ms));
  if (api_ == Api::rpc) {
    const auto info = call_json_rpc("getMessageInfo", json::array({id}), timeout_ms);
    if (!info && info.error().code == Code::not_found) return Delivery();
    if (!info) return tl::unexpected<Error>(info.error());
    return parse_delivery(*info);
  }
  MJ_TRY(answer, call_rest("/messages/status/" + id, nullptr, timeout_ms));
  if (answer.status == 404) return Delivery();
  if (answer.status != 200) return status_error(url_, answer.status);
  const auto info = parse_json(answer.body);
  return info ? parse_delivery(*info) : Delivery();
}

}  // namespace mycojobs
