#include "store/redis/redis_link.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>

#include "base/parse.h"
#include "model/enums.h"
#include "text/utf8.h"

namespace mycojobs {

bool Reply::nil() const { return !reply_ || reply_->type == REDIS_REPLY_NIL; }
bool Reply::error() const { return reply_ && reply_->type == REDIS_REPLY_ERROR; }
std::string_view Reply::text() const {
  if (!reply_ || reply_->str == nullptr) return {};
  const bool has_text = reply_->type == REDIS_REPLY_STRING || reply_->type == REDIS_REPLY_STATUS || error();
  return has_text ? std::string_view(reply_->str, reply_->len) : std::string_view{};
}
std::uint64_t Reply::number() const {
  if (reply_ && reply_->type == REDIS_REPLY_INTEGER) return static_cast<std::uint64_t>(std::max(0LL, reply_->integer));
  std::uint64_t number = 0;
  return parse_u64(text(), number) ? number : 0;
}
std::size_t Reply::size() const { return reply_ && reply_->type == REDIS_REPLY_ARRAY ? reply_->elements : 0; }
Reply Reply::at(std::size_t index) const {
  if (index >= size()) return Reply(nullptr);
  return Reply(std::shared_ptr<const redisReply>(
      reply_, reply_->element[index]));  // the aliasing constructor keeps the whole reply alive
}
Fields Reply::fields() const {
  Fields out;
  out.reserve(size() / 2);
  for (std::size_t i = 0; i + 1 < size(); i += 2) out.emplace_back(at(i).text(), at(i + 1).text());
  return out;
}

Arguments& Arguments::add(std::string_view text) {
  list_.push_back(text);
  return *this;
}
Arguments& Arguments::add(std::string&& text) {
  return add(std::string_view(*own_.emplace_back(std::make_unique<std::string>(std::move(text)))));
}
Arguments& Arguments::add(std::uint64_t number) { return add(std::to_string(number)); }
Arguments& Arguments::add_list(const Fields& fields) {
  add(static_cast<std::uint64_t>(fields.size() * 2));
  for (const auto& [name, value] : fields) add(name).add(value);
  return *this;
}

namespace {

// Records duration and errors of the calls of another link. The duration of a blocking command (extra_ms) is not
// recorded, because most of it is an intended wait.
class MeteredLink final : public Link {
 public:
  MeteredLink(std::unique_ptr<Link> way, std::shared_ptr<Metrics> metrics)
      : way_(std::move(way)), metrics_(std::move(metrics)) {}
  Result<Reply> command(const Arguments& arguments, std::uint32_t extra_ms) override {
    const std::string_view name = arguments.list().empty() ? "" : arguments.list().front();
    if (extra_ms > 0) return counted(name, way_->command(arguments, extra_ms));
    return timed(name, [&] { return way_->command(arguments, 0); });
  }
  Result<Reply> run(const Script& script, const Arguments& arguments) override {
    return timed(script.name, [&] { return way_->run(script, arguments); });
  }
  std::optional<int> begin(const Script& script, const Arguments& arguments) override {
    began_ = std::chrono::steady_clock::now();
    return way_->begin(script, arguments);
  }
  Result<Reply> finish(const Script& script, const Arguments& arguments) override {
    return timed(script.name, began_, [&] { return way_->finish(script, arguments); });
  }
  const std::string& server_run_id() const override { return way_->server_run_id(); }
  bool has_been_leader() const override { return way_->has_been_leader(); }

 private:
  template <class Call>
  Result<Reply> timed(std::string_view name, const Call& call) {
    return timed(name, std::chrono::steady_clock::now(), call);
  }
  template <class Call>
  Result<Reply> timed(std::string_view name, std::chrono::steady_clock::time_point began, const Call& call) {
    Result<Reply> reply = call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    metrics_->observe(Metric::store_calls, {name}, took.count());
    return counted(name, std::move(reply));
  }
  Result<Reply> counted(std::string_view name, Result<Reply> reply) {
    if (!reply) metrics_->add(Metric::store_errors, {name, to_string(reply.error().code)});
    return reply;
  }

  std::unique_ptr<Link> way_;
  std::shared_ptr<Metrics> metrics_;
  std::chrono::steady_clock::time_point began_;
};

Result<void> check_context(Id context) {
  if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
  return {};
}

}  // namespace

Result<Link*> ContextLinks::link(Id context) {
  auto found = links_.find(context);
  if (found == links_.end()) {
    std::erase_if(links_, [](const auto& each) { return !each.second->has_been_leader(); });
    MJ_TRY(opened, open_(context));
    if (observed_.metrics->is_enabled()) opened = std::make_unique<MeteredLink>(std::move(opened), observed_.metrics);
    found = links_.emplace(context, std::move(opened)).first;
  }
  return found->second.get();
}

Link* ContextLinks::known_link(Id context) {
  const auto found = links_.find(context);
  return found == links_.end() ? nullptr : found->second.get();
}

Result<Reply> ContextLinks::run(Id context, const Script& script, const Arguments& arguments) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  return redis->run(script, arguments);
}

Result<Reply> ContextLinks::command(Id context, const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  auto reply = redis->command(arguments, extra_ms);
  // The server's error WRONGTYPE does not name the key; it is the first argument of the command.
  if (!reply && reply.error().message.find("WRONGTYPE") != std::string::npos && arguments.list().size() > 1)
    return fail(std::move(reply).error(), ascii(arguments.list()[1], 120));
  return reply;
}

}  // namespace mycojobs
