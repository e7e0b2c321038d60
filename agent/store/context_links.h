// The connections of one store object, one to each context's database, opened when it is first asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "store/link.h"

namespace mycojobs {

// A way to a context's database; context 0: to the default server, for what belongs to no context.
using OpenLink = std::function<Result<std::unique_ptr<Link>>(Id context)>;

class ContextLinks {
 protected:
  explicit ContextLinks(OpenLink open) : open_(std::move(open)) {}
  ~ContextLinks() = default;

  Result<Link*> link(Id context);
  // Of a context. Error invalid: context 0.
  Result<Reply> run(Id context, const Script&, const Arguments&);
  Result<Reply> command(Id context, const Arguments&, std::uint32_t extra_ms = 0);

 private:
  OpenLink open_;
  std::map<Id, std::unique_ptr<Link>> links_;
};

}  // namespace mycojobs
