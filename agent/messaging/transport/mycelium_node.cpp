#include "messaging/transport/mycelium_node.h"

#include <nlohmann/json.hpp>

#include "text/base64.h"
#include "text/json.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNodeShare = 4U << 20;  // limit for an answer of the node: a message of 2 MiB and its envelope

std::string member(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Result<MyceliumAddress> read_node(const json& message, const char* key, const char* ip) {
  const auto by_key = parse_mycelium(member(message, key)), by_ip = parse_mycelium(member(message, ip));
  if (!by_key || by_key->key.empty() || !by_ip || !by_ip->ip)
    return fail(Code::internal, "the Mycelium node answers a message without " + std::string(key) + " or " + ip);
  return MyceliumAddress{by_key->key, by_ip->ip};
}

Result<MyceliumMessage> read_message(const json& message) {
  if (!message.is_object()) return fail(Code::internal, "the Mycelium node answers no message");
  MyceliumMessage out;
  out.id = member(message, "id");
  MJ_TRY(from, read_node(message, "srcPk", "srcIp"));
  MJ_TRY(to, read_node(message, "dstPk", "dstIp"));
  auto payload = decode_base64(member(message, "payload"));
  if (out.id.empty() || !payload)
    return fail(Code::internal, "the Mycelium node answers a message without id or payload");
  out.from = std::move(from);
  out.to = std::move(to);
  out.payload = std::move(*payload);
  out.payload.erase(out.payload.find_last_not_of(' ') + 1);
  return out;
}

json message_to(const MyceliumAddress& to, std::string_view topic, std::string_view payload) {
  json message = {{"payload", encode_base64(pad_payload(payload))}};
  message["dst"] = to.key.empty() ? json{{"ip", to_text(*to.ip)}} : json{{"pk", to.key}};
  if (!topic.empty()) message["topic"] = encode_base64(topic);
  return message;
}

// Escapes '+', '/' and '=' of base64 for a query.
std::string escaped_base64(std::string_view bytes) {
  std::string out;
  for (const char c : encode_base64(bytes)) {
    if (c == '+' || c == '/' || c == '=') {
      out += c == '+' ? "%2B" : c == '/' ? "%2F" : "%3D";
    } else {
      out += c;
    }
  }
  return out;
}

// For example "received", or {"sending": {"pending": 1, "sent": 2, "acked": 3}}.
MyceliumNode::Delivery read_delivery(const json& info) {
  using State = MyceliumNode::State;
  if (!info.is_object() || !info.contains("state")) return {};
  const json& state = info["state"];
  std::string word = state.is_string() ? state.get<std::string>() : "";
  if (state.is_object() && !state.empty()) word = state.begin().key();
  if (word == "sending") {
    const json chunks = state.is_object() ? state[word] : json();
    const json acked = chunks.is_object() ? chunks.value("acked", json()) : json();
    return {State::sending, acked.is_number_unsigned() ? acked.get<std::uint64_t>() : 0};
  }
  if (word == "pending") return {State::pending};
  if (word == "received" || word == "read") return {State::received};
  return {word == "aborted" ? State::aborted : State::unknown};
}

tl::unexpected<Error> odd(const std::string& url, int status) {
  const std::string text = "the Mycelium node at " + url + " answers with HTTP status " + std::to_string(status);
  if (status == 413) return fail(Code::too_large, text + ": the message is over its limit, 2 MiB as JSON and base64");
  return fail(status >= 500 || status == 429 ? Code::unavailable : Code::internal, text);
}

}  // namespace

std::string pad_payload(std::string_view text) {
  constexpr std::size_t kChunkBytes = 1300, kMinChunkBytes = 250;
  std::string out(text);
  const std::size_t last = out.size() % kChunkBytes;
  if (out.size() > kChunkBytes && last > 0 && last < kMinChunkBytes) out.append(kMinChunkBytes - last, ' ');
  return out;
}

Result<HttpAnswer> MyceliumNode::call(const std::string& url, const std::string* body, std::uint32_t timeout_ms) {
  HttpPost post;
  post.url = url;
  post.timeout_ms = timeout_ms;
  post.max_bytes = kMaxNodeShare;
  post.stop = stop_;
  if (body != nullptr) post.body = *body;
  auto answer = body != nullptr ? http_.post(post) : http_.get(post);
  if (!answer) {
    api_ = Api::unknown;  // the node may be restarted with the other API
    return fail(answer.error(), "the Mycelium node");
  }
  return std::move(*answer);
}

Result<HttpAnswer> MyceliumNode::rest(const std::string& path, const json* body, std::uint32_t timeout_ms) {
  const std::string text = body != nullptr ? dump_json(*body) : "";
  return call(url_ + "/api/v1" + path, body != nullptr ? &text : nullptr, timeout_ms);
}

Result<json> MyceliumNode::rpc(std::string_view method, const json& params, std::uint32_t timeout_ms) {
  const std::string text = dump_json({{"jsonrpc", "2.0"}, {"id", 1}, {"method", method}, {"params", params}});
  MJ_TRY(answer, call(url_, &text, timeout_ms));
  if (answer.status != 200) return odd(url_, answer.status);
  auto reply = parse_json(answer.body, kMaxNodeShare);
  if (!reply || !reply->is_object() || reply->contains("result") == reply->contains("error"))
    return fail(Code::internal, "the Mycelium node at " + url_ + " answers no JSON-RPC");
  if (reply->contains("result")) return std::move((*reply)["result"]);
  const json& error = (*reply)["error"];
  return fail(Code::not_found, "the Mycelium node at " + url_ + " refuses " + std::string(method) + ": " +
                                   (error.is_object() ? member(error, "message") : ""));
}

Result<void> MyceliumNode::find_api(std::uint32_t timeout_ms) {
  if (api_ != Api::unknown) return {};
  MJ_TRY(admin, rest("/admin", nullptr, timeout_ms));
  if (admin.status == 200) {
    api_ = Api::rest;
    return {};
  }
  if (admin.status >= 500) return odd(url_, admin.status);
  const auto info = rpc("getInfo", json::array(), timeout_ms);
  if (!info && info.error().code == Code::unavailable) return tl::unexpected<Error>(info.error());
  if (!info || !info->is_object())
    return fail(Code::internal, "at " + url_ +
                                    " is not a Mycelium node: mycelium.url must be the URL of its API (port 8989) or "
                                    "of its JSON-RPC (port 8990)");
  api_ = Api::rpc;
  return {};
}

Result<std::string> MyceliumNode::key(std::uint32_t timeout_ms) {
  MJ_CHECK(find_api(timeout_ms));
  json info;
  if (api_ == Api::rest) {
    MJ_TRY(answer, rest("/admin", nullptr, timeout_ms));
    if (answer.status != 200) return odd(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) info = std::move(*parsed);
  } else {
    MJ_TRY(answer, rpc("getInfo", json::array(), timeout_ms));
    info = std::move(answer);
  }
  const auto found = info.is_object() ? parse_mycelium(member(info, "nodePubkey")) : std::nullopt;
  if (!found || found->key.empty()) return fail(Code::internal, "the Mycelium node at " + url_ + " names no key");
  return found->key;
}

Result<std::string> MyceliumNode::push(const MyceliumAddress& to, std::string_view topic, std::string_view payload,
                                       std::uint32_t timeout_ms) {
  MJ_CHECK(find_api(timeout_ms));
  const json message = message_to(to, topic, payload);
  json sent;
  if (api_ == Api::rest) {
    MJ_TRY(answer, rest("/messages", &message, timeout_ms));
    if (answer.status != 201) return odd(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) sent = std::move(*parsed);
  } else {
    MJ_TRY(answer, rpc("pushMessage", json::array({message, nullptr}), timeout_ms));
    sent = std::move(answer);
  }
  std::string id = sent.is_object() ? member(sent, "id") : "";
  if (id.empty()) return fail(Code::internal, "the Mycelium node at " + url_ + " does not accept a message");
  return id;
}

Result<void> MyceliumNode::reply(const MyceliumMessage& of, std::string_view payload, std::uint32_t timeout_ms) {
  MJ_CHECK(find_api(timeout_ms));
  const json message = message_to({of.from.key, {}}, "", payload);
  if (api_ == Api::rest) {
    MJ_TRY(answer, rest("/messages/reply/" + of.id, &message, timeout_ms));
    if (answer.status != 204) return odd(url_, answer.status);
    return {};
  }
  MJ_TRY(answer, rpc("pushMessageReply", json::array({of.id, message}), timeout_ms));
  if (answer != true) return fail(Code::internal, "the Mycelium node at " + url_ + " does not accept a reply");
  return {};
}

Result<std::optional<MyceliumMessage>> MyceliumNode::pop(std::string_view topic, std::uint32_t timeout_ms) {
  MJ_CHECK(find_api(timeout_ms));
  json found;
  if (api_ == Api::rest) {
    MJ_TRY(answer, rest("/messages?timeout=0&topic=" + escaped_base64(topic), nullptr, timeout_ms));
    if (answer.status == 204) return std::nullopt;
    if (answer.status != 200) return odd(url_, answer.status);
    if (auto parsed = parse_json(answer.body)) found = std::move(*parsed);
  } else {
    MJ_TRY(answer, rpc("popMessage", json::array({false, 0, encode_base64(topic)}), timeout_ms));
    if (answer.is_null()) return std::nullopt;
    found = std::move(answer);
  }
  MJ_TRY(message, read_message(found));
  return std::move(message);
}

Result<MyceliumNode::Delivery> MyceliumNode::delivery(const std::string& id, std::uint32_t timeout_ms) {
  MJ_CHECK(find_api(timeout_ms));
  if (api_ == Api::rpc) {
    const auto info = rpc("getMessageInfo", json::array({id}), timeout_ms);
    if (!info && info.error().code == Code::not_found) return Delivery();
    if (!info) return tl::unexpected<Error>(info.error());
    return read_delivery(*info);
  }
  MJ_TRY(answer, rest("/messages/status/" + id, nullptr, timeout_ms));
  if (answer.status == 404) return Delivery();
  if (answer.status != 200) return odd(url_, answer.status);
  const auto info = parse_json(answer.body);
  return info ? read_delivery(*info) : Delivery();
}

}  // namespace mycojobs
