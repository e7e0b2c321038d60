#include "coordinator/standing.h"

#include "domain/flow_decide.h"

namespace mycojobs {

Result<FlowStanding> flow_standing(FlowStore& store, RunCache& cache, const Place& place, Id actor, Id flow, Id maker,
                                   bool answers) {
  Thing thing{.name = "flow " + std::to_string(flow), .maker = maker};
  // Where a place is open without a record nobody is its admin: a step's approvers are asked for.
  const bool admin = place.record && may(actor, Action::administer, place, thing);
  const auto steers = may(actor, Action::steer, place, thing);
  if (steers) return FlowStanding{admin, true};
  if (!answers) return tl::unexpected<Error>(steers.error());
  thing.names_others = true;
  if (maker != 0) {
    auto run = load_run(store, place.context, flow, cache);
    if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
    thing.names_it = run && names_approver(*run->plan, actor);
    if (run) cache.keep(place.context, flow, std::move(*run));
  }
  MJ_CHECK(may(actor, Action::answer, place, thing));
  return FlowStanding{admin, false};
}

}  // namespace mycojobs
