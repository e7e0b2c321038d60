#include "api/overview_feed.h"

#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "service/overview.h"

namespace mycojobs::api {

std::shared_ptr<OverviewFeed::Kept> OverviewFeed::kept(Id context) {
  const std::lock_guard lock(mutex_);
  auto& found = kept_[context];
  if (!found) found = std::make_shared<Kept>();
  return found;
}

Result<std::shared_ptr<const OverviewText>> OverviewFeed::read(const EventRequest& request) {
  constexpr std::chrono::milliseconds kFresh{900};
  const nlohmann::json params{{"context_id", request.context}};
  MJ_TRY(call, Call::begin(services_, params, request.caller));
  MJ_CHECK(call.told(service::may(call.by(), call.store(), Action::read)));
  const auto own = kept(request.context);
  const std::lock_guard lock(own->mutex);
  if (own->text && std::chrono::steady_clock::now() - own->at < kFresh) return own->text;
  MJ_TRY(view, overview(call.store(), request.context));
  nlohmann::json object = to_json(view);
  object["context"] = request.context;
  auto text = std::make_shared<OverviewText>();
  text->text = dump_json(object);
  for (const char* moment : {"now_ms", "since_ms"}) object.erase(moment);
  for (auto& runner : object["runners"]) runner.erase("seen_ms");
  text->rest = dump_json(object);
  own->text = std::move(text);
  own->at = std::chrono::steady_clock::now();
  return own->text;
}

}  // namespace mycojobs::api
