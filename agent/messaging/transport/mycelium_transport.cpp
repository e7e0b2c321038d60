#include "messaging/transport/mycelium_transport.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using MyceliumClock = std::chrono::steady_clock;

constexpr std::string_view kAnswerTopic = "supervisor.answer.";
constexpr std::size_t kMaxIdOverheadBytes = 4096;  // bytes that a replaced id can add to a request or an answer
constexpr std::uint32_t kNodeTimeoutMs = 5000;     // for a call to the node, which runs on this host
constexpr std::uint32_t kMinPollMs = 10, kMaxAnswerPollMs = 100;          // interval between polls for an answer
constexpr std::uint32_t kMaxIdlePollMs = 250, kUnavailablePollMs = 1000;  // intervals between polls of a listener
constexpr std::uint32_t kMaxBatchMs = 250;             // time limit for receiving requests, and for answering them
constexpr std::uint32_t kStateCheckIntervalMs = 1000;  // for checks that the node still has the request
constexpr std::uint64_t kStuckTimeoutMs = 2000;        // time without a new chunk, 20 times the time-out of a node

// Returns whether a message came from the expected node. A node has one key, and all addresses with the first 64 bits
// of its own address.
bool matches_address(const MyceliumAddress& expected, const MyceliumAddress& actual) {
  return expected.key.empty() ? is_in_range(*actual.ip, *expected.ip, 64) : actual.key == expected.key;
}

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(MyceliumClock::now().time_since_epoch()).count());
}

void sleep_ms(std::uint64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Returns the topic in an id of this transport, or an empty text for an id of another client.
std::string_view parse_topic(const json& id) {
  if (!id.is_string()) return {};
  const std::string_view text = id.get_ref<const std::string&>();
  const auto colon = text.rfind(':');
  if (!text.starts_with(kAnswerTopic) || colon == std::string_view::npos || colon > 255) return {};
  return text.substr(0, colon);
}

// Returns whether `text` is an answer to the request with this id.
bool is_answer(const std::string& text, const json& id) {
  const auto answer = parse_json(text);
  return answer && answer->is_object() && answer->contains("id") && (*answer)["id"] == id &&
         answer->contains("result") != answer->contains("error");
}

std::string rpc_error(const json& id, const Error& error, const char* word) {
  return dump_json({{"jsonrpc", "2.0"},
                    {"id", id},
                    {"error", {{"code", -32000}, {"message", error.message}, {"data", {{"word", word}}}}}});
}

}  // namespace

struct MyceliumTransport::Call {
  std::string address, peer_name;  // as configured, and in normal form
  MyceliumAddress to;
  json original_id;      // id in the request of the caller
  std::string id, text;  // as transmitted
  MyceliumClock::time_point deadline;

  std::uint64_t remaining_ms() const {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - MyceliumClock::now()).count();
    return ms > 0 ? static_cast<std::uint64_t>(ms) : 0;
  }
  std::uint32_t node_timeout_ms() const {
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(remaining_ms(), 1, kNodeTimeoutMs));
  }
};

MyceliumTransport::MyceliumTransport(const std::string& node_url)
    : node_(node_url), topic_(std::string(kAnswerTopic) + random_hex(8)) {}

Result<std::string> MyceliumTransport::exchange(const std::string& address, const std::string& request,
                                                std::uint32_t timeout_ms) {
  is_peer_reachable_ = false;
  MJ_CHECK(check_request_size(request.size()));
  const auto to = parse_mycelium(address);
  if (!to) return fail(Code::invalid, "address: " + excerpt(address, 80) + " is not a Mycelium address");
  auto parsed = parse_json(request);
  if (!parsed || !parsed->is_object()) return fail(Code::invalid, "the request is not JSON-RPC");
  Call call;
  call.address = address;
  call.to = *to;
  call.peer_name = to->key.empty() ? to_text(*to->ip) : to->key;
  call.deadline = MyceliumClock::now() + std::chrono::milliseconds(timeout_ms);
  call.original_id = parsed->contains("id") ? (*parsed)["id"] : json();
  call.id = topic_ + ":" + std::to_string(++call_count_);
  (*parsed)["id"] = call.id;
  call.text = dump_json(*parsed);
  if (call.text.size() > kMaxRequestBytes + kMaxIdOverheadBytes)
    return fail(check_request_size(call.text.size()).error(), "as JSON");
  MJ_CHECK(wait_for_send_capacity(call));
  MJ_TRY(request_id, send(call));
  return await_answer(call, std::move(request_id));
}

Result<bool> MyceliumTransport::has_send_capacity(const Call& call, std::vector<UndeliveredRequest>& requests) {
  using State = MyceliumNode::State;
  std::size_t stuck = 0, in_progress = 0;
  for (auto entry = requests.begin(); entry != requests.end();) {
    MJ_TRY(delivery, node_.delivery(entry->id, call.node_timeout_ms()));
    if (delivery.state != State::pending && delivery.state != State::sending) {
      entry = requests.erase(entry);
      continue;
    }
    if (delivery.state == State::pending || delivery.acked != entry->acked) {
      entry->acked = delivery.acked;
      entry->since_ms = now_ms();
    }
    ++(now_ms() - entry->since_ms >= kStuckTimeoutMs ? stuck : in_progress);
    ++entry;
  }
  return in_progress == 0 && stuck < kMaxStuck;
}

Result<void> MyceliumTransport::wait_for_send_capacity(const Call& call) {
  const auto position = undelivered_.find(call.peer_name);
  if (position == undelivered_.end()) return {};
  while (true) {
    MJ_TRY(has_capacity, has_send_capacity(call, position->second));
    if (has_capacity) break;
    if (call.remaining_ms() == 0)
      return fail(Code::unavailable, call.address + ": the Mycelium node still tries to deliver an earlier request; " +
                                         "no further request is sent to it until then");
    sleep_ms(std::min<std::uint64_t>(call.remaining_ms(), kMaxAnswerPollMs));
  }
  if (position->second.empty()) undelivered_.erase(position);
  return {};
}

Result<std::string> MyceliumTransport::send(const Call& call) {
  return node_.push(call.to, kSupervisorTopic, call.text, call.node_timeout_ms());
}

// Waits for the answer. The node may be unreachable for some time. A restarted node does not have the request any more,
// so the request is sent again.
Result<std::string> MyceliumTransport::await_answer(const Call& call, std::string request_id) {
  using State = MyceliumNode::State;
  std::optional<Error> last_error;
  std::uint32_t pause = kMinPollMs;
  auto next_check = MyceliumClock::now() + std::chrono::milliseconds(kStateCheckIntervalMs);
  for (; call.remaining_ms() > 0; sleep_ms(std::min<std::uint64_t>(call.remaining_ms(), pause))) {
    pause = std::min(pause * 2, kMaxAnswerPollMs);
    auto message = node_.pop(topic_, call.node_timeout_ms());
    while (message && *message) {
      if (auto answer = parse_answer(call, **message)) {
        MJ_CHECK(check_request_size(answer->size(), "answer"));
        return std::move(*answer);
      }
      ++ignored_;
      message = node_.pop(topic_, call.node_timeout_ms());
    }
    if (message && MyceliumClock::now() >= next_check) {
      const auto delivery = node_.delivery(request_id, call.node_timeout_ms());
      if (delivery && delivery->state == State::unknown) {
        if (auto resent = send(call)) request_id = std::move(*resent);
      }
      next_check = MyceliumClock::now() + std::chrono::milliseconds(kStateCheckIntervalMs);
    }
    last_error = message ? std::nullopt : std::optional<Error>(message.error());
  }
  if (last_error) return fail(Code::unavailable, call.address + ": " + last_error->message);
  const auto delivery = node_.delivery(request_id, kMaxAnswerPollMs);
  const State state = delivery ? delivery->state : State::unknown;
  if (state == State::pending || state == State::sending)
    undelivered_[call.peer_name].push_back({request_id, delivery->acked, now_ms()});
  is_peer_reachable_ = state == State::sending;
  if (state == State::pending)
    return fail(Code::unavailable, call.address + ": Mycelium has not reached it in time; it keeps trying for 300 s");
  if (state == State::sending)
    return fail(Code::unavailable,
                call.address + ": was reached over Mycelium, but has not received the whole request in time");
  return fail(Code::unavailable, call.address + ": was reached over Mycelium, but no supervisor answers in time");
}

std::optional<std::string> MyceliumTransport::parse_answer(const Call& call, const MyceliumMessage& message) {
  if (!matches_address(call.to, message.from)) return std::nullopt;
  if (message.payload.size() > kMaxRequestBytes + kMaxIdOverheadBytes) return std::nullopt;
  auto answer = parse_json(message.payload);
  if (!answer || !answer->is_object() || !answer->contains("id") || (*answer)["id"] != call.id) return std::nullopt;
  if (answer->contains("result") == answer->contains("error")) return std::nullopt;
  (*answer)["id"] = call.original_id;
  return dump_json(*answer);
}

MyceliumListener::MyceliumListener(const std::string& node_url, RequestHandler handler)
    : MyceliumListener(node_url,
                       NodeRequestHandler([answer = std::move(handler)](std::string_view request, const std::string&) {
                         return answer(request);
                       })) {}

MyceliumListener::MyceliumListener(const std::string& node_url, NodeRequestHandler handler)
    : url_(node_url), handler_(std::move(handler)), node_(node_url, &stop_) {
  auto thread = start_thread([this] { run(); });
  if (thread) {
    thread_ = std::move(*thread);
  } else {
    log(LogLevel::error, "mycelium", "{} is not listened to: {}", url_, thread.error().message);
  }
}

MyceliumListener::~MyceliumListener() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void MyceliumListener::run() {
  std::uint32_t pause_ms = kMinPollMs;
  while (!stop_) {
    const auto has_worked = run_once();
    if (stop_) break;
    log_state(has_worked ? nullptr : &has_worked.error());
    if (has_worked && *has_worked) {
      pause_ms = kMinPollMs;
      continue;
    }
    pause(has_worked ? pause_ms : kUnavailablePollMs);
    pause_ms = std::min(pause_ms * 2, kMaxIdlePollMs);
  }
}

Result<bool> MyceliumListener::run_once() {
  if (own_key_.empty()) {
    MJ_TRY(key, node_.key(kNodeTimeoutMs));
    own_key_ = std::move(key);
    log(LogLevel::info, "mycelium", "accepts requests at the node {}: its public address is {}", url_, own_key_);
  }
  MJ_TRY(has_work, receive_requests());
  const auto deadline = MyceliumClock::now() + std::chrono::milliseconds(kMaxBatchMs);
  while (const auto message = queue_.pop()) {
    has_work = true;
    MJ_CHECK(answer(*message));
    if (stop_ || MyceliumClock::now() >= deadline) break;
  }
  return has_work;
}

// Receives all messages, so that the messages of a busy peer do not delay others. The time is limited, so that received
// requests are answered soon. If a message is lost from here on, its sender repeats the request.
Result<bool> MyceliumListener::receive_requests() {
  const auto deadline = MyceliumClock::now() + std::chrono::milliseconds(kMaxBatchMs);
  bool has_work = false;
  while (MyceliumClock::now() < deadline && !stop_) {
    MJ_TRY(message, node_.pop(kSupervisorTopic, kNodeTimeoutMs));
    if (!message) break;
    has_work = true;
    if (message->to.key != own_key_) {
      ++ignored_;
    } else if (!queue_.enqueue(std::move(*message)) && dropped_++ == 0) {
      log(LogLevel::warn, "mycelium", "peers send more at the node {} than can be answered: some of it is dropped",
          url_);
    }
  }
  return has_work;
}

// Answers of another supervisor on this topic are not answered; otherwise two supervisors would exchange messages
// endlessly.
Result<void> MyceliumListener::answer(const MyceliumMessage& message) {
  const auto request = parse_json(message.payload);
  const bool is_object = request && request->is_object();
  if (is_object && !request->contains("method") && (request->contains("result") || request->contains("error"))) {
    ++ignored_;
    return {};
  }
  const json id = is_object && request->contains("id") ? (*request)["id"] : json();
  std::string text;
  if (message.payload.size() > kMaxRequestBytes + kMaxIdOverheadBytes) {
    text = rpc_error(id, check_request_size(message.payload.size()).error(), "too_large");
  } else {
    text = handler_(message.payload, message.from.key);
    if (text.size() > kMaxRequestBytes + kMaxIdOverheadBytes) {
      text = rpc_error(id, check_request_size(text.size(), "answer").error(), "too_large");
    } else if (!is_answer(text, id)) {
      text = rpc_error(id, {Code::internal, "the supervisor answers no JSON-RPC"}, "internal");
    }
  }
  ++answered_;
  const std::string_view topic = parse_topic(id);
  if (topic.empty()) return node_.reply(message, text, kNodeTimeoutMs);
  MJ_TRY(request_id, node_.push({message.from.key, {}}, topic, text, kNodeTimeoutMs));
  (void)request_id;
  return {};
}

void MyceliumListener::log_state(const Error* error) {
  connected_ = error == nullptr;
  if (error == nullptr) {
    if (is_unavailable_) log(LogLevel::info, "mycelium", "the node {} is available again", url_);
    is_unavailable_ = false;
    return;
  }
  own_key_.clear();  // another node may run at the address later
  if (!is_unavailable_) log(LogLevel::warn, "mycelium", "{}", error->message);
  is_unavailable_ = true;
}

void MyceliumListener::pause(std::uint32_t ms) {
  for (std::uint32_t slept = 0; slept < ms && !stop_; slept += kMinPollMs) sleep_ms(kMinPollMs);
}

}  // namespace mycojobs
