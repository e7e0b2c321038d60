#include "store/acl_context.h"

#include <array>

#include "model/codec.h"

namespace mycojobs {

Result<AclContext> read_acl_context(RecordStore& store, Id context, EntryPoint entry_point) {
  constexpr std::array<std::string_view, 4> kLists{"admins", "submitters", "executors", "readers"};
  AclContext acl{context, {}, entry_point};
  Context query;
  query.id = context;
  auto fields = store.load_fields(context, redis_key(query), kLists);
  if (!fields && fields.error().code == Code::not_found) return acl;
  if (!fields) return tl::unexpected<Error>(std::move(fields).error());
  auto decoded = decode<Context>(*fields);
  if (!decoded.ok()) return fail(Code::invalid, redis_key(query) + ": " + join(decoded.problems));
  decoded.record.id = context;
  acl.record = std::move(decoded.record);
  return acl;
}

}  // namespace mycojobs
