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
constexpr std::size_t kIdBytes = 4096;   // maximum number of bytes that the replaced id adds to a request or an answer
constexpr std::uint32_t kNodeMs = 5000;  // time limit of a call to the node, which is on this host
constexpr std::uint32_t kShortestMs = 10, kMaxDurationMs = 100;  // interval between polls for an answer
constexpr std::uint32_t kIdleMs = 250, kUnavailableMs = 1000;    // intervals between polls of a listener
constexpr std::uint32_t kInMs = 250;      // maximum time for receiving requests, and for answering them
constexpr std::uint32_t kStateMs = 1000;  // interval between checks that the node still has a request
constexpr std::uint64_t kStuckMs = 2000;  // time without a new chunk: 20 times the time that a node waits for one

// A node has one key and all addresses that share the first 64 bits of its own address.
bool is_of(const MyceliumAddress& asked, const MyceliumAddress& answers) {
  return asked.key.empty() ? in_range(*answers.ip, *asked.ip, 64) : answers.key == asked.key;
}

std::uint64_t now_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(MyceliumClock::now().time_since_epoch()).count());
}

void sleep_ms(std::uint64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Returns the topic in an id of this transport; empty for an id of another client.
std::string_view topic_of(const json& id) {
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
  std::string address, place;  // as given, and in normal form
  MyceliumAddress to;
  json own_id;           // id of the caller
  std::string id, text;  // as sent
  MyceliumClock::time_point end;

  std::uint64_t left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - MyceliumClock::now()).count();
    return left > 0 ? static_cast<std::uint64_t>(left) : 0;
  }
  std::uint32_t node_ms() const { return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(left_ms(), 1, kNodeMs)); }
};

MyceliumTransport::MyceliumTransport(const std::string& node_url)
    : node_(node_url), topic_(std::string(kAnswerTopic) + random_hex(8)) {}

Result<std::string> MyceliumTransport::exchange(const std::string& address, const std::string& request,
                                                std::uint32_t timeout_ms) {
  is_peer_there_ = false;
  MJ_CHECK(check_request_size(request.size()));
  const auto to = parse_mycelium(address);
  if (!to) return fail(Code::invalid, "address: " + excerpt(address, 80) + " is not a Mycelium address");
  auto parsed = parse_json(request);
  if (!parsed || !parsed->is_object()) return fail(Code::invalid, "the request is not JSON-RPC");
  Call call;
  call.address = address;
  call.to = *to;
  call.place = to->key.empty() ? to_text(*to->ip) : to->key;
  call.end = MyceliumClock::now() + std::chrono::milliseconds(timeout_ms);
  call.own_id = parsed->contains("id") ? (*parsed)["id"] : json();
  call.id = topic_ + ":" + std::to_string(++number_);
  (*parsed)["id"] = call.id;
  call.text = dump_json(*parsed);
  if (call.text.size() > kMaxRequestBytes + kIdBytes)
    return fail(check_request_size(call.text.size()).error(), "as JSON");
  MJ_CHECK(wait_for_send_capacity(call));
  MJ_TRY(sent, send(call));
  return await(call, std::move(sent));
}

Result<bool> MyceliumTransport::has_send_capacity(const Call& call, std::vector<UndeliveredRequest>& all) {
  using State = MyceliumNode::State;
  std::size_t stuck = 0, underway = 0;
  for (auto each = all.begin(); each != all.end();) {
    MJ_TRY(now, node_.delivery(each->id, call.node_ms()));
    if (now.state != State::pending && now.state != State::sending) {
      each = all.erase(each);
      continue;
    }
    if (now.state == State::pending || now.acked != each->acked) {
      each->acked = now.acked;
      each->since_ms = now_ms();
    }
    ++(now_ms() - each->since_ms >= kStuckMs ? stuck : underway);
    ++each;
  }
  return underway == 0 && stuck < kMaxStuck;
}

Result<void> MyceliumTransport::wait_for_send_capacity(const Call& call) {
  const auto found = undelivered_.find(call.place);
  if (found == undelivered_.end()) return {};
  while (true) {
    MJ_TRY(room, has_send_capacity(call, found->second));
    if (room) break;
    if (call.left_ms() == 0)
      return fail(Code::unavailable, call.address + ": the Mycelium node still tries to deliver an earlier request; " +
                                         "no further request is sent to it until then");
    sleep_ms(std::min<std::uint64_t>(call.left_ms(), kMaxDurationMs));
  }
  if (found->second.empty()) undelivered_.erase(found);
  return {};
}

Result<std::string> MyceliumTransport::send(const Call& call) {
  return node_.push(call.to, kSupervisorTopic, call.text, call.node_ms());
}

// The node may be unreachable for some time during the wait. A restarted node has forgotten the request and receives it
// again.
Result<std::string> MyceliumTransport::await(const Call& call, std::string sent) {
  using State = MyceliumNode::State;
  std::optional<Error> trouble;
  std::uint32_t pause = kShortestMs;
  auto next_check = MyceliumClock::now() + std::chrono::milliseconds(kStateMs);
  for (; call.left_ms() > 0; sleep_ms(std::min<std::uint64_t>(call.left_ms(), pause))) {
    pause = std::min(pause * 2, kMaxDurationMs);
    auto message = node_.pop(topic_, call.node_ms());
    while (message && *message) {
      if (auto answer = answer_to(call, **message)) {
        MJ_CHECK(check_request_size(answer->size(), "answer"));
        return std::move(*answer);
      }
      ++ignored_;
      message = node_.pop(topic_, call.node_ms());
    }
    if (message && MyceliumClock::now() >= next_check) {
      const auto delivery = node_.delivery(sent, call.node_ms());
      if (delivery && delivery->state == State::unknown) {
        if (auto again = send(call)) sent = std::move(*again);
      }
      next_check = MyceliumClock::now() + std::chrono::milliseconds(kStateMs);
    }
    trouble = message ? std::nullopt : std::optional<Error>(message.error());
  }
  if (trouble) return fail(Code::unavailable, call.address + ": " + trouble->message);
  const auto delivery = node_.delivery(sent, kMaxDurationMs);
  const State state = delivery ? delivery->state : State::unknown;
  if (state == State::pending || state == State::sending)
    undelivered_[call.place].push_back({sent, delivery->acked, now_ms()});
  is_peer_there_ = state == State::sending;
  if (state == State::pending)
    return fail(Code::unavailable, call.address + ": Mycelium has not reached it in time; it keeps trying for 300 s");
  if (state == State::sending)
    return fail(Code::unavailable,
                call.address + ": was reached over Mycelium, but has not received the whole request in time");
  return fail(Code::unavailable, call.address + ": was reached over Mycelium, but no supervisor answers in time");
}

std::optional<std::string> MyceliumTransport::answer_to(const Call& call, const MyceliumMessage& message) {
  if (!is_of(call.to, message.from)) return std::nullopt;
  if (message.payload.size() > kMaxRequestBytes + kIdBytes) return std::nullopt;
  auto answer = parse_json(message.payload);
  if (!answer || !answer->is_object() || !answer->contains("id") || (*answer)["id"] != call.id) return std::nullopt;
  if (answer->contains("result") == answer->contains("error")) return std::nullopt;
  (*answer)["id"] = call.own_id;
  return dump_json(*answer);
}

MyceliumListener::MyceliumListener(const std::string& node_url, RequestHandler answerer)
    : MyceliumListener(
          node_url, NodeRequestHandler([answers = std::move(answerer)](std::string_view request, const std::string&) {
            return answers(request);
          })) {}

MyceliumListener::MyceliumListener(const std::string& node_url, NodeRequestHandler answerer)
    : url_(node_url), answerer_(std::move(answerer)), node_(node_url, &stop_) {
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
  std::uint32_t pause_ms = kShortestMs;
  while (!stop_) {
    const auto done = turn();
    if (stop_) break;
    note(done ? nullptr : &done.error());
    if (done && *done) {
      pause_ms = kShortestMs;
      continue;
    }
    pause(done ? pause_ms : kUnavailableMs);
    pause_ms = std::min(pause_ms * 2, kIdleMs);
  }
}

Result<bool> MyceliumListener::turn() {
  if (own_key_.empty()) {
    MJ_TRY(key, node_.key(kNodeMs));
    own_key_ = std::move(key);
    log(LogLevel::info, "mycelium", "accepts requests at the node {}: its public address is {}", url_, own_key_);
  }
  MJ_TRY(any, enqueue_request());
  const auto until = MyceliumClock::now() + std::chrono::milliseconds(kInMs);
  while (const auto message = turns_.next()) {
    any = true;
    MJ_CHECK(answer(*message));
    if (stop_ || MyceliumClock::now() >= until) break;
  }
  return any;
}

// Receives all messages, so that the messages of a busy peer do not delay others. The time is limited, so that received
// requests are answered soon. If a message is lost from here on, its sender repeats the request.
Result<bool> MyceliumListener::enqueue_request() {
  const auto until = MyceliumClock::now() + std::chrono::milliseconds(kInMs);
  bool any = false;
  while (MyceliumClock::now() < until && !stop_) {
    MJ_TRY(message, node_.pop(kSupervisorTopic, kNodeMs));
    if (!message) break;
    any = true;
    if (message->to.key != own_key_) {
      ++ignored_;
    } else if (!turns_.put(std::move(*message)) && dropped_++ == 0) {
      log(LogLevel::warn, "mycelium", "peers send more at the node {} than can be answered: some of it is dropped",
          url_);
    }
  }
  return any;
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
  if (message.payload.size() > kMaxRequestBytes + kIdBytes) {
    text = rpc_error(id, check_request_size(message.payload.size()).error(), "too_large");
  } else {
    text = answerer_(message.payload, message.from.key);
    if (text.size() > kMaxRequestBytes + kIdBytes) {
      text = rpc_error(id, check_request_size(text.size(), "answer").error(), "too_large");
    } else if (!is_answer(text, id)) {
      text = rpc_error(id, {Code::internal, "the supervisor answers no JSON-RPC"}, "internal");
    }
  }
  ++answered_;
  const std::string_view topic = topic_of(id);
  if (topic.empty()) return node_.reply(message, text, kNodeMs);
  MJ_TRY(sent, node_.push({message.from.key, {}}, topic, text, kNodeMs));
  (void)sent;
  return {};
}

void MyceliumListener::note(const Error* error) {
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
  for (std::uint32_t slept = 0; slept < ms && !stop_; slept += kShortestMs) sleep_ms(kShortestMs);
}

}  // namespace mycojobs
