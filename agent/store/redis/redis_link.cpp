#include "store/redis/redis_link.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "base/parse.h"
#include "model/enums.h"
#include "text/utf8.h"

namespace mycojobs {

bool Reply::is_nil() const { return !reply_ || reply_->type == REDIS_REPLY_NIL; }
bool Reply::is_error() const { return reply_ && reply_->type == REDIS_REPLY_ERROR; }
std::string_view Reply::text() const {
  if (!reply_ || reply_->str == nullptr) return {};
  const bool has_text = reply_->type == REDIS_REPLY_STRING || reply_->type == REDIS_REPLY_STATUS || is_error();
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
  // The aliasing constructor shares the ownership of the whole reply.
  return Reply(std::shared_ptr<const redisReply>(reply_, reply_->element[index]));
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
  return add(std::string_view(*owned_.emplace_back(std::make_unique<std::string>(std::move(text)))));
}
Arguments& Arguments::add(std::uint64_t number) { return add(std::to_string(number)); }
Arguments& Arguments::add_list(const Fields& fields) {
  add(static_cast<std::uint64_t>(fields.size() * 2));
  for (const auto& [name, value] : fields) add(name).add(value);
  return *this;
}

namespace {

// Records duration and errors of the calls of another link, and the state of its TLS. The duration of a blocking
// command (extra_ms) is not recorded, because most of the time is an intended wait.
class MeteredLink final : public Link {
 public:
  MeteredLink(std::unique_ptr<Link> link, std::shared_ptr<Metrics> metrics, Id context)
      : link_(std::move(link)), metrics_(std::move(metrics)), context_(context) {}
  Result<Reply> command(const Arguments& arguments, std::uint32_t extra_ms) override {
    const std::string_view name = arguments.list().empty() ? "" : arguments.list().front();
    if (extra_ms > 0) return count_error(name, link_->command(arguments, extra_ms));
    return observe_call(name, [&] { return link_->command(arguments, 0); });
  }
  Result<Reply> command_pair(const Arguments& first, const Arguments& second, std::uint32_t extra_ms) override {
    const std::string_view name = second.list().empty() ? "" : second.list().front();
    return count_error(name, link_->command_pair(first, second, extra_ms));
  }
  Result<Reply> run(const Script& script, const Arguments& arguments) override {
    return observe_call(script.name, [&] { return link_->run(script, arguments); });
  }
  std::optional<int> begin(const Script& script, const Arguments& arguments) override {
    started_at_ = std::chrono::steady_clock::now();
    return link_->begin(script, arguments);
  }
  Result<Reply> finish(const Script& script, const Arguments& arguments) override {
    return observe_call(script.name, started_at_, [&] { return link_->finish(script, arguments); });
  }
  const std::string& server_run_id() const override { return link_->server_run_id(); }
  bool has_been_connected() const override { return link_->has_been_connected(); }
  std::optional<TlsState> tls_state() const override { return link_->tls_state(); }

 private:
  static constexpr std::chrono::minutes kTlsUpdateInterval{1};
  template <class Call>
  Result<Reply> observe_call(std::string_view name, const Call& call) {
    return observe_call(name, std::chrono::steady_clock::now(), call);
  }
  template <class Call>
  Result<Reply> observe_call(std::string_view name, std::chrono::steady_clock::time_point started_at,
                             const Call& call) {
    Result<Reply> reply = call();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started_at;
    metrics_->observe(Metric::store_calls, {name}, elapsed.count());
    if (started_at + elapsed >= next_tls_update_) update_tls_gauges();
    return count_error(name, std::move(reply));
  }
  Result<Reply> count_error(std::string_view name, Result<Reply> reply) {
    if (!reply) metrics_->add(Metric::store_errors, {name, to_string(reply.error().code)});
    return reply;
  }

  void update_tls_gauges() {
    const auto state = link_->tls_state();
    next_tls_update_ = std::chrono::steady_clock::now() + kTlsUpdateInterval;
    if (!state) return;
    if (std::exchange(tls_protocol_, state->protocol) != state->protocol)
      metrics_->remove_series(Metric::redis_tls, {context_});
    metrics_->set(Metric::redis_tls, {context_, state->protocol}, 1);
    const auto set_days = [&](std::string_view certificate, std::int64_t expiry_s) {
      constexpr double kDayS = 86400;
      const double days = static_cast<double>(expiry_s - std::time(nullptr)) / kDayS;
      if (expiry_s != 0) metrics_->set(Metric::redis_certificate_expiry, {context_, certificate}, days);
    };
    set_days("server", state->peer_expiry_s);
    set_days("client", state->own_expiry_s);
  }

  std::unique_ptr<Link> link_;
  std::shared_ptr<Metrics> metrics_;
  Id context_;
  std::chrono::steady_clock::time_point next_tls_update_;
  std::string tls_protocol_;  // protocol of the published series; empty: none
  std::chrono::steady_clock::time_point started_at_;
};

Result<void> check_context(Id context) {
  if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
  return {};
}

}  // namespace

Result<Link*> ContextLinks::link(Id context) {
  auto entry = links_.find(context);
  if (entry == links_.end()) {
    std::erase_if(links_, [](const auto& candidate) { return !candidate.second->has_been_connected(); });
    MJ_TRY(new_link, open_(context));
    if (instrumentation_.metrics->is_enabled())
      new_link = std::make_unique<MeteredLink>(std::move(new_link), instrumentation_.metrics, context);
    entry = links_.emplace(context, std::move(new_link)).first;
  }
  return entry->second.get();
}

Link* ContextLinks::find_link(Id context) {
  const auto entry = links_.find(context);
  return entry == links_.end() ? nullptr : entry->second.get();
}

Result<Reply> ContextLinks::run(Id context, const Script& script, const Arguments& arguments) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  return redis->run(script, arguments);
}

Result<Reply> ContextLinks::command_pair(Id context, const Arguments& first, const Arguments& second,
                                         std::uint32_t extra_ms) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  return redis->command_pair(first, second, extra_ms);
}

Result<Reply> ContextLinks::command(Id context, const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  auto reply = redis->command(arguments, extra_ms);
  // The server's error WRONGTYPE does not name the key; it is the first argument of the command.
  if (!reply && reply.error().message.find("WRONGTYPE") != std::string::npos && arguments.list().size() > 1)
    return fail(std::move(reply).error(), to_ascii(arguments.list()[1], 120));
  return reply;
}

}  // namespace mycojobs
