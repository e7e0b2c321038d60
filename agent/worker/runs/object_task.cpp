#include "worker/runs/object_task.h"

#include "store/acl_context.h"

namespace mycojobs {
namespace {

// Pages are joined into one answer up to this size; the last page can add 4 MiB.
constexpr std::size_t kJoinBytes = 3U << 20;

}  // namespace

ObjectTask::ObjectTask(std::string name, std::string_view json)
    : name_(std::move(name)), bytes_(json.size()), call_(fail(Code::internal, "")) {
  auto read = read_object_call(json);
  id_ = std::move(read.id);
  call_ = std::move(read.call);
}

ObjectTask::State ObjectTask::cancel_task(const Error& error) {
  answer_ = error_answer(id_, error);
  return State::done;
}

ObjectTask::State ObjectTask::refuse(const Error& error) {
  if (error.code == Code::unavailable) return State::away;
  return cancel_task(error);
}

ObjectTask::State ObjectTask::reply(std::string_view result_json) {
  answer_ = mycojobs::answer(id_, result_json);
  return State::done;
}

Result<void> ObjectTask::check_rights(RecordStore& store, ObjectStore& objects, const ObjectCaller& who) {
  Action action = call_->writes() ? Action::administer : Action::read;
  if (call_->method == ObjectCall::Method::declare) {  // an existing declaration may be repeated with the right to read
    MJ_TRY(known, objects.is_declared(who.context, call_->of, call_->index, call_->texts));
    if (!known) action = Action::administer;
  }
  MJ_TRY(place, read_acl_context(store, who.context, EntryPoint::script));
  refusal_ = find_refusal(who.caller, action, place, {.name = "objects"});
  if (refusal_) return tl::unexpected<Error>(refusal_error(*refusal_));
  may_write_ = action == Action::administer;
  return {};
}

ObjectTask::State ObjectTask::step(RecordStore& store, ObjectStore& objects, const ObjectCaller& who) {
  if (!call_) return cancel_task(call_.error());
  if (!allowed_) {
    if (auto checked = check_rights(store, objects, who); !checked) return refuse(checked.error());
    allowed_ = true;
  }
  return indexing_ ? index(objects, who) : run_operation(objects, who);
}

ObjectTask::State ObjectTask::run_operation(ObjectStore& objects, const ObjectCaller& who) {
  using Method = ObjectCall::Method;
  switch (call_->method) {
    case Method::declare:
      return declare(objects, who);
    case Method::put:
    case Method::remove:
    case Method::transaction:
      return write(objects, who);
    case Method::list:
    case Method::find:
    case Method::search:
      return read_page(objects, who);
    case Method::get: {
      const auto object = objects.get(who.context, call_->of, call_->id);
      return object ? reply(object_json(*object)) : refuse(object.error());
    }
    case Method::count: {
      const auto count = objects.count(who.context, call_->of);
      return count ? reply("{\"count\":" + std::to_string(*count) + "}") : refuse(count.error());
    }
    case Method::kinds: {
      auto kinds = objects.kinds(who.context);
      if (!kinds) return refuse(kinds.error());
      if (!call_->all_spaces) std::erase_if(*kinds, [&](const auto& each) { return each.of.space != call_->of.space; });
      return reply(kinds_json(*kinds));
    }
  }
  return cancel_task({Code::internal, "the method is unknown"});
}

ObjectTask::State ObjectTask::index(ObjectStore& objects, const ObjectCaller& who) {
  const auto more = objects.index_more(who.context, call_->of);
  if (!more) return refuse(more.error());
  indexing_ = *more;
  return State::more;
}

ObjectTask::State ObjectTask::declare(ObjectStore& objects, const ObjectCaller& who) {
  if (declared_) return reply("{}");
  const auto done = objects.declare(who.claim, call_->of, call_->index, call_->texts);
  if (!done) return refuse(done.error());
  if (!done->busy.empty()) return State::busy;
  declared_ = true;
  indexing_ = done->indexing;
  return State::more;
}

ObjectTask::State ObjectTask::write(ObjectStore& objects, const ObjectCaller& who) {
  const auto done = objects.write(who.claim, name_, call_->ops);
  if (!done) return refuse(done.error());
  if (!done->busy.empty()) return State::busy;
  if (call_->method != ObjectCall::Method::transaction) return reply(stamp_json(done->stamps.at(0)));
  std::string results;
  for (const ObjectStamp& each : done->stamps) results += (results.empty() ? "" : ",") + stamp_json(each);
  return reply("{\"results\":[" + results + "]}");
}

ObjectTask::State ObjectTask::read_page(ObjectStore& objects, const ObjectCaller& who) {
  using Method = ObjectCall::Method;
  const ObjectCall& call = *call_;
  const std::size_t left = call.limit - found_.size();
  auto page = call.method == Method::list   ? objects.list(who.context, call.of, call.after, left)
              : call.method == Method::find ? objects.find(who.context, call.of, call.query, call.after, left)
                                            : objects.search(who.context, call.of, call.text, call.after, left);
  if (!page) return refuse(page.error());
  if (page->indexing) {
    indexing_ = true;
    return State::more;
  }
  for (StoredObject& each : page->objects) {
    found_bytes_ += each.json.size() + 256;
    found_.push_back(std::move(each));
  }
  call_->after = page->after;
  const bool full = found_.size() >= call.limit || found_bytes_ >= kJoinBytes;
  return full || page->after.empty() ? reply(page_json(found_, page->after)) : State::more;
}

}  // namespace mycojobs
