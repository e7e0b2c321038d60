#include "worker/runs/object_task.h"

#include "store/acl_context.h"

namespace mycojobs {
namespace {

// Pages are joined into one answer up to this size; the last page can add 4 MiB.
constexpr std::size_t kMaxJoinedBytes = 3U << 20;

}  // namespace

ObjectTask::ObjectTask(std::string name, std::string_view json)
    : name_(std::move(name)), bytes_(json.size()), call_(fail(Code::internal, "")) {
  auto parsed = parse_object_call(json);
  id_ = std::move(parsed.id);
  call_ = std::move(parsed.call);
}

ObjectTask::State ObjectTask::finish_with_error(const Error& error) {
  answer_ = build_error_answer(id_, error);
  return State::done;
}

ObjectTask::State ObjectTask::handle_error(const Error& error) {
  if (error.code == Code::unavailable) return State::store_unavailable;
  return finish_with_error(error);
}

ObjectTask::State ObjectTask::finish(std::string_view result_json) {
  answer_ = build_answer(id_, result_json);
  return State::done;
}

Result<void> ObjectTask::check_rights(RecordStore& store, ObjectStore& objects, const ObjectCaller& caller) {
  Action action = call_->is_write() ? Action::administer : Action::read;
  if (call_->method == ObjectCall::Method::declare) {  // an existing declaration may be repeated with the right to read
    MJ_TRY(is_declared, objects.is_declared(caller.context, call_->kind, call_->index_fields, call_->text_fields));
    if (!is_declared) action = Action::administer;
  }
  MJ_TRY(acl, read_acl_context(store, caller.context, EntryPoint::script));
  refusal_ = find_refusal(caller.actor, action, acl, {.name = "objects"});
  if (refusal_) return tl::unexpected<Error>(make_refusal_error(*refusal_));
  may_write_ = action == Action::administer;
  return {};
}

ObjectTask::State ObjectTask::step(RecordStore& store, ObjectStore& objects, const ObjectCaller& caller) {
  if (!call_) return finish_with_error(call_.error());
  if (!rights_checked_) {
    if (auto permission = check_rights(store, objects, caller); !permission) return handle_error(permission.error());
    rights_checked_ = true;
  }
  return is_indexing_ ? index_next(objects, caller) : run_operation(objects, caller);
}

ObjectTask::State ObjectTask::run_operation(ObjectStore& objects, const ObjectCaller& caller) {
  using Method = ObjectCall::Method;
  switch (call_->method) {
    case Method::declare:
      return declare(objects, caller);
    case Method::put:
    case Method::remove:
    case Method::transaction:
      return write(objects, caller);
    case Method::list:
    case Method::find:
    case Method::search:
      return read_page(objects, caller);
    case Method::get: {
      const auto object = objects.get(caller.context, call_->kind, call_->id);
      return object ? finish(object_json(*object)) : handle_error(object.error());
    }
    case Method::count: {
      const auto count = objects.count(caller.context, call_->kind);
      return count ? finish("{\"count\":" + std::to_string(*count) + "}") : handle_error(count.error());
    }
    case Method::kinds: {
      auto kinds = objects.kinds(caller.context);
      if (!kinds) return handle_error(kinds.error());
      if (!call_->all_namespaces)
        std::erase_if(*kinds, [&](const auto& info) { return info.kind.name_space != call_->kind.name_space; });
      return finish(kinds_json(*kinds));
    }
  }
  return finish_with_error({Code::internal, "the method is unknown"});
}

ObjectTask::State ObjectTask::index_next(ObjectStore& objects, const ObjectCaller& caller) {
  const auto has_more = objects.index_more(caller.context, call_->kind);
  if (!has_more) return handle_error(has_more.error());
  is_indexing_ = *has_more;
  return State::in_progress;
}

ObjectTask::State ObjectTask::declare(ObjectStore& objects, const ObjectCaller& caller) {
  if (is_declared_) return finish("{}");
  const auto result = objects.declare(caller.claim, call_->kind, call_->index_fields, call_->text_fields);
  if (!result) return handle_error(result.error());
  if (!result->busy.empty()) return State::lock_busy;
  is_declared_ = true;
  is_indexing_ = result->indexing;
  return State::in_progress;
}

ObjectTask::State ObjectTask::write(ObjectStore& objects, const ObjectCaller& caller) {
  const auto result = objects.write(caller.claim, name_, call_->ops);
  if (!result) return handle_error(result.error());
  if (!result->busy.empty()) return State::lock_busy;
  if (call_->method != ObjectCall::Method::transaction) return finish(stamp_json(result->stamps.at(0)));
  std::string results;
  for (const ObjectStamp& stamp : result->stamps) results += (results.empty() ? "" : ",") + stamp_json(stamp);
  return finish("{\"results\":[" + results + "]}");
}

ObjectTask::State ObjectTask::read_page(ObjectStore& objects, const ObjectCaller& caller) {
  using Method = ObjectCall::Method;
  const ObjectCall& call = *call_;
  const std::size_t remaining = call.limit - page_.size();
  auto page = call.method == Method::list ? objects.list(caller.context, call.kind, call.cursor, remaining)
              : call.method == Method::find
                  ? objects.find(caller.context, call.kind, call.query, call.cursor, remaining)
                  : objects.search(caller.context, call.kind, call.search_text, call.cursor, remaining);
  if (!page) return handle_error(page.error());
  if (page->indexing) {
    is_indexing_ = true;
    return State::in_progress;
  }
  for (StoredObject& object : page->objects) {
    page_bytes_ += object.json.size() + 256;
    page_.push_back(std::move(object));
  }
  call_->cursor = page->next_cursor;
  const bool is_full = page_.size() >= call.limit || page_bytes_ >= kMaxJoinedBytes;
  return is_full || page->next_cursor.empty() ? finish(page_json(page_, page->next_cursor)) : State::in_progress;
}

}  // namespace mycojobs
