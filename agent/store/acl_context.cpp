#include "store/acl_context.h"

#include <array>

#include "model/codec.h"

namespace mycojobs {

Result<AclContext> read_acl_context(RecordStore& store, Id context, EntryPoint way) {
  constexpr std::array<std::string_view, 4> kLists{"admins", "submitters", "executors", "readers"};
  AclContext place{context, {}, way};
  Context wanted;
  wanted.id = context;
  auto fields = store.load_fields(context, redis_key(wanted), kLists);
  if (!fields && fields.error().code == Code::not_found) return place;
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  auto decoded = decode<Context>(*fields);
  if (!decoded.ok()) return fail(Code::invalid, redis_key(wanted) + ": " + join(decoded.problems));
  decoded.record.id = context;
  place.record = std::move(decoded.record);
  return place;
}

}  // namespace mycojobs
