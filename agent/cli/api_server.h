// The API beside a coordinator, a `dev` or an agent, as the settings want it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/server.h"
#include "cli/parts.h"

namespace mycojobs {

// anonymous: loopback needs no token. Nothing: the setting `api.listen` is empty, or its default address is taken by
// somebody else, which is told.
Result<std::unique_ptr<ApiServer>> start_coordinator_api(const Parts&, const Settings&, StoreFactory&,
                                                         const std::vector<Id>& contexts, bool anonymous, Health);
// Nothing: the setting `supervisor.listen` is empty.
Result<std::unique_ptr<ApiServer>> start_supervisor_api(const Parts&, const Settings&, StoreFactory&, Health);
// Nothing: the setting `health.listen` is empty.
Result<std::unique_ptr<HealthServer>> start_health_server(const Settings&, Health);

}  // namespace mycojobs
