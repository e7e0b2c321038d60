#include "inspect/verify/context_verify.h"

#include <algorithm>
#include <iterator>

#include "inspect/verify/deployment_verify.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/object_verify.h"

namespace mycojobs {

Result<VerifyReport> verify_context(const VerifiedStores& in, Id context, const ProgressCallback& progress) {
  MJ_TRY(report, verify(in.records, context, progress));
  const auto add = [&](std::vector<Finding>& more) {
    std::move(more.begin(), more.end(), std::back_inserter(report.findings));
  };
  MJ_TRY(of_objects, verify_objects(in.objects, context));
  add(of_objects);
  MJ_TRY(of_flows, verify_flows(in.flows, in.records, context));
  add(of_flows);
  MJ_TRY(of_deployments, verify_deployments(in.deployments, in.records, context));
  add(of_deployments);
  return report;
}

}  // namespace mycojobs
