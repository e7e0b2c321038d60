#include "store/redis_flows.h"

namespace mycojobs {

Result<std::unique_ptr<FlowStore>> make_redis_flows(OpenLink) {
  return fail(Code::unsupported, "this build has no flows");
}

}  // namespace mycojobs
