#include "store/memory/memory_answer.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <memory>

namespace mycojobs::memory {
namespace {

Answer line_of(Answer::Kind kind, std::string_view line) {
  Answer out{kind, std::string(line), 0, {}};
  std::replace_if(
      out.text.begin(), out.text.end(), [](char c) { return c == '\r' || c == '\n'; }, ' ');
  return out;
}

void add_line(std::string& out, char sign, std::string_view text) {
  out += sign;
  out += text;
  out += "\r\n";
}

// RESP2.
void add(std::string& out, const Answer& answer) {
  switch (answer.kind) {
    case Answer::Kind::nil:
      return add_line(out, '$', "-1");
    case Answer::Kind::status:
      return add_line(out, '+', answer.text);
    case Answer::Kind::error:
      return add_line(out, '-', answer.text);
    case Answer::Kind::number:
      return add_line(out, ':', std::to_string(answer.number));
    case Answer::Kind::text:
      add_line(out, '$', std::to_string(answer.text.size()));
      out += answer.text;
      out += "\r\n";
      return;
    case Answer::Kind::list:
      add_line(out, '*', std::to_string(answer.items.size()));
      for (const Answer& item : answer.items) add(out, item);
      return;
  }
}

}  // namespace

Answer status(std::string_view line) { return line_of(Answer::Kind::status, line); }
Answer error(std::string_view line) { return line_of(Answer::Kind::error, line); }

Reply to_reply(const Answer& answer) {
  std::string protocol;
  add(protocol, answer);
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(), redisReaderFree);
  void* reply = nullptr;
  // Fails for what is nested deeper than hiredis allows: no reply, as a broken connection would give.
  if (redisReaderFeed(reader.get(), protocol.data(), protocol.size()) == REDIS_OK) {
    redisReaderGetReply(reader.get(), &reply);
  }
  return Reply(std::shared_ptr<const redisReply>(
      static_cast<redisReply*>(reply), [](const redisReply* r) { freeReplyObject(const_cast<redisReply*>(r)); }));
}

}  // namespace mycojobs::memory
