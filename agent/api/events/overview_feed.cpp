#include "api/events/overview_feed.h"

#include <nlohmann/json.hpp>

#include "model/codec.h"
#include "service/context_service.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

bool is_unavailable_now(const Error& error) { return error.code == Code::unavailable; }

}  // namespace

std::shared_ptr<OverviewFeed::CachedText> OverviewFeed::cached_text(Id context) {
  const std::lock_guard lock(mutex_);
  auto& found = stored_[context];
  if (!found) found = std::make_shared<CachedText>();
  return found;
}

Result<OverviewFeed::Text> OverviewFeed::read_text(CachedText& own, Id context) {
  if (!own.store) {
    MJ_TRY(store, services_.backends.open_reader());
    own.store = std::move(store);
  }
  MJ_TRY(view, overview(*own.store, context));
  nlohmann::json object = to_json(view);
  object["context"] = context;
  auto text = std::make_shared<OverviewText>();
  text->text = dump_json(object);
  for (const char* moment : {"now_ms", "since_ms"}) object.erase(moment);
  for (auto& runner : object["runners"]) runner.erase("seen_ms");
  text->rest = dump_json(object);
  return text;
}

Result<OverviewFeed::Text> OverviewFeed::read(const EventRequest& request) {
  constexpr std::chrono::milliseconds kFresh{900};
  const auto kept = this->cached_text(request.context);
  const service::RequestContext by = request_context(services_, request.caller, request.context);
  const std::lock_guard lock(kept->mutex);
  const bool known = !kept->text || *kept->text != nullptr;
  if (!known || std::chrono::steady_clock::now() - kept->at >= kFresh) {
    kept->text = read_text(*kept, request.context);
    kept->at = std::chrono::steady_clock::now();
    kept->readers.clear();
  }
  if (!kept->text || by.is_operator || kept->readers.contains(by.actor)) return kept->text;
  auto may_read = service::check_permission(by, *kept->store, Action::read);
  if (!may_read) {
    if (is_unavailable_now(may_read.error())) {
      kept->text = tl::unexpected<Error>(may_read.error());
      kept->at = std::chrono::steady_clock::now();
    } else {
      note_refusal(services_, may_read.error());
    }
    return tl::unexpected<Error>(std::move(may_read).error());
  }
  kept->readers.insert(by.actor);
  return kept->text;
}

}  // namespace mycojobs::api
