#include "redis_pair.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace mycojobs {
namespace {

using memory::MemoryReply;

constexpr Id kDatabase = 9;
constexpr int kMaxReportedDifferences = 5;

MemoryReply to_memory_reply(const redisReply& reply) {
  const std::string_view text(reply.str == nullptr ? "" : reply.str, reply.str == nullptr ? 0 : reply.len);
  switch (reply.type) {
    case REDIS_REPLY_STRING:
      return memory::text_reply(text);
    case REDIS_REPLY_STATUS:
      return memory::status(text);
    case REDIS_REPLY_ERROR:
      return memory::error(text);
    case REDIS_REPLY_INTEGER:
      return memory::number_reply(reply.integer);
    case REDIS_REPLY_ARRAY:
      break;
    default:
      return memory::nil_reply();
  }
  std::vector<MemoryReply> items;
  for (std::size_t i = 0; i < reply.elements; ++i) items.push_back(to_memory_reply(*reply.element[i]));
  return memory::list_reply(std::move(items));
}

std::string to_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += "\\x" + std::to_string(static_cast<unsigned char>(c));
    }
  }
  return '"' + out + '"';
}

std::string to_text(const MemoryReply& answer, ListOrder order = ListOrder::exact) {
  switch (answer.kind) {
    case MemoryReply::Kind::nil:
      return "nil";
    case MemoryReply::Kind::status:
      return "status " + to_text(answer.text);
    case MemoryReply::Kind::error:
      return "error " + to_text(answer.text);
    case MemoryReply::Kind::number:
      return std::to_string(answer.number);
    case MemoryReply::Kind::text:
      return to_text(answer.text);
    case MemoryReply::Kind::list:
      break;
  }
  std::vector<std::string> parts;
  const std::size_t step = order == ListOrder::any_pairs && answer.items.size() % 2 == 0 ? 2 : 1;
  for (std::size_t i = 0; i < answer.items.size(); i += step) {
    parts.push_back(to_text(answer.items[i]) + (step == 2 ? " = " + to_text(answer.items[i + 1]) : ""));
  }
  if (order != ListOrder::exact) std::sort(parts.begin(), parts.end());
  std::string out = "[";
  for (const std::string& part : parts) out += (out.size() > 1 ? ", " : "") + part;
  return out + "]";
}

// XINFO also reports how Redis stores a stream.
void remove_unimitated_fields(MemoryReply& answer) {
  for (MemoryReply& item : answer.items) remove_unimitated_fields(item);
  if (answer.kind != MemoryReply::Kind::list || answer.items.empty() || answer.items[0].text != "length") return;
  for (std::size_t i = 0; i + 1 < answer.items.size();) {
    const std::string& name = answer.items[i].text;
    const bool is_internal = name.starts_with("radix-tree") || name == "groups";
    const auto at = answer.items.begin() + static_cast<std::ptrdiff_t>(i);
    if (is_internal) {
      answer.items.erase(at, at + 2);
    } else {
      i += 2;
    }
  }
}

// Valkey has other words than Redis in some errors of scripts.
std::string use_words_of_redis(std::string text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kWords{
      {{"for this call script", "for this redis lib call script"},
       {"calling command from script", "calling Redis command from script"},
       {"Unknown command called", "Unknown Redis command called"},
       {"ERR Command arguments must", "ERR Lua redis lib command arguments must"}}};
  for (const auto& [valkey, redis] : kWords) {
    for (std::size_t at = text.find(valkey); at != std::string::npos; at = text.find(valkey, at + redis.size()))
      text.replace(at, valkey.size(), redis);
  }
  return text;
}

std::string to_text(MemoryReply answer, const PairCommand& sent) {
  remove_unimitated_fields(answer);
  if (!sent.is_nested || answer.items.empty()) return to_text(answer, sent.order);
  return to_text(answer.items.back(), sent.order);
}

}  // namespace

RedisPair::RedisPair() : redis_(nullptr, redisFree) {
  const auto endpoint = parse_redis_url(TestRedis::instance().url()).value();
  redis_.reset(redisConnectUnix(endpoint.unix_path.c_str()));
  if (!redis_ || redis_->err != 0) std::abort();
  compare({"PING"});
  const std::string database = std::to_string(kDatabase);
  freeReplyObject(redisCommand(redis_.get(), "SELECT %s", database.c_str()));
  compare({"FLUSHDB"});
}

RedisPair::~RedisPair() = default;

std::vector<std::string> RedisPair::compare(const std::vector<PairCommand>& commands, const std::string& test_name) {
  for (const PairCommand& sent : commands) {
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const std::string& word : sent.words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    redisAppendCommandArgv(redis_.get(), static_cast<int>(texts.size()), texts.data(), sizes.data());
  }
  std::vector<std::string> replies;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    void* raw = nullptr;
    if (redisGetReply(redis_.get(), &raw) != REDIS_OK) {
      ADD_FAILURE() << test_name << " #" << i << ": Redis: " << redis_->errstr;
      break;
    }
    const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(raw), freeReplyObject);
    const PairCommand& sent = commands[i];
    const std::vector<std::string_view> views(sent.words.begin(), sent.words.end());
    const std::string redis_text = use_words_of_redis(to_text(to_memory_reply(*reply), sent)),
                      imitated_text = to_text(memory_.execute(kDatabase, views), sent);
    replies.push_back(imitated_text);
    if (redis_text == imitated_text || reported_ >= kMaxReportedDifferences) continue;
    ++reported_;
    std::string command;
    for (const std::string& word : sent.words) command += to_text(word) + " ";
    ADD_FAILURE() << test_name << " #" << i << ": " << command << "\n  Redis:     " << redis_text
                  << "\n  imitation: " << imitated_text;
  }
  return replies;
}

std::string RedisPair::run_imitation(const std::vector<std::string>& words) {
  const std::vector<std::string_view> views(words.begin(), words.end());
  return to_text(memory_.execute(kDatabase, views));
}

}  // namespace mycojobs
