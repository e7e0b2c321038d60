#include "store/context_links.h"

namespace mycojobs {
namespace {

Result<void> check_context(Id context) {
  if (context == 0) return fail(Code::invalid, "context 0 is where actors live; contexts begin with 1");
  return {};
}

}  // namespace

Result<Link*> ContextLinks::link(Id context) {
  auto found = links_.find(context);
  if (found == links_.end()) {
    MJ_TRY(opened, open_(context));
    found = links_.emplace(context, std::move(opened)).first;
  }
  return found->second.get();
}

Result<Reply> ContextLinks::run(Id context, const Script& script, const Arguments& arguments) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  return redis->run(script, arguments);
}

Result<Reply> ContextLinks::command(Id context, const Arguments& arguments, std::uint32_t extra_ms) {
  MJ_CHECK(check_context(context));
  MJ_TRY(redis, link(context));
  return redis->command(arguments, extra_ms);
}

}  // namespace mycojobs
