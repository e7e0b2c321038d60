#include "inspect/verify/context_verify.h"

#include <iterator>

#include "inspect/verify/deployment_verify.h"
#include "inspect/verify/flow_verify.h"
#include "inspect/verify/object_verify.h"

namespace mycojobs {

Result<VerifyReport> verify_context(const VerifiedStores& stores, Id context, const ProgressCallback& progress) {
  MJ_TRY(report, verify(stores.records, context, progress));
  const auto add_findings = [&](std::vector<Finding>& findings) {
    std::move(findings.begin(), findings.end(), std::back_inserter(report.findings));
  };
  MJ_TRY(object_findings, verify_objects(stores.objects, context));
  add_findings(object_findings);
  MJ_TRY(flow_findings, verify_flows(stores.flows, stores.records, context));
  add_findings(flow_findings);
  MJ_TRY(deployment_findings, verify_deployments(stores.deployments, stores.records, context));
  add_findings(deployment_findings);
  return report;
}

}  // namespace mycojobs
