#include "api/events/overview_feed.h"

#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "service/context_service.h"
#include "text/json.h"

namespace mycojobs::api {

std::shared_ptr<OverviewFeed::CachedOverview> OverviewFeed::find_cached(Id context) {
  const std::lock_guard lock(mutex_);
  auto& entry = cache_[context];
  if (!entry) entry = std::make_shared<CachedOverview>();
  return entry;
}

Result<OverviewFeed::OverviewPtr> OverviewFeed::load_overview(CachedOverview& cached, Id context) {
  if (!cached.store) {
    MJ_TRY(store, services_.backends.open_reader());
    cached.store = std::move(store);
  }
  MJ_TRY(view, read_overview(*cached.store, context));
  nlohmann::json object = to_json(view);
  object["context"] = context;
  auto text = std::make_shared<OverviewText>();
  text->text = dump_json(object);
  for (const char* field : {"now_ms", "since_ms"}) object.erase(field);
  for (auto& runner : object["runners"]) runner.erase("seen_ms");
  text->timeless_text = dump_json(object);
  return text;
}

Result<OverviewFeed::OverviewPtr> OverviewFeed::read(const EventRequest& request) {
  constexpr std::chrono::milliseconds kMaxAge{900};
  const auto cached = find_cached(request.context);
  const service::RequestContext context = make_request_context(services_, request.caller, request.context);
  const std::lock_guard lock(cached->mutex);
  const bool has_result = !cached->overview || *cached->overview != nullptr;
  if (!has_result || std::chrono::steady_clock::now() - cached->read_at >= kMaxAge) {
    cached->overview = load_overview(*cached, request.context);
    cached->read_at = std::chrono::steady_clock::now();
    cached->readers.clear();
  }
  if (!cached->overview || context.is_operator || cached->readers.contains(context.actor)) return cached->overview;
  auto may_read = service::check_permission(context, *cached->store, Action::read);
  if (!may_read) {
    if (may_read.error().code == Code::unavailable) {
      cached->overview = tl::unexpected<Error>(may_read.error());
      cached->read_at = std::chrono::steady_clock::now();
    } else {
      report_refusal(services_, may_read.error());
    }
    return tl::unexpected<Error>(std::move(may_read).error());
  }
  cached->readers.insert(context.actor);
  return cached->overview;
}

}  // namespace mycojobs::api
