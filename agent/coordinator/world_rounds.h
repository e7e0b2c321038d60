// What a coordinator does for the workflows of a context that it leads, one round after the other:
//
//   inbox --> events and receipts are decided --> steps are taken by the engine --> committed --> effects are published
//
// Effects are published only once the step that asked for them is durable (10); who dies in between finds them again in
// the world (to_publish()). A commit that somebody else was faster than is thrown away, with its world. One thread; the
// engine has processes of its own, and threads for a round's steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/flow_run.h"
#include "coordinator/world.h"
#include "mycojobs/clock.h"
#include "mycojobs/flows.h"
#include "mycojobs/store.h"
#include "mycojobs/workflows.h"
#include "workflow/engine.h"

namespace mycojobs {

// A step by the engine's processes, as the kernel has it. Error unavailable, unsupported: of the engine, not the step's.
Result<StepAnswer> take_step(workflow::WorkflowEngine&, Id context, const WorkflowManifest&, const WorkflowSpec&,
                             const StepRequest&);

class WorldRounds {
 public:
  struct Parts {
    Store& store;
    FlowStore& flows;
    WorkflowStore& worlds;
    workflow::WorkflowEngine& engine;
    const Clock& clock;
  };
  WorldRounds(Parts parts, Id context) : parts_(parts), context_(context) {}

  // How long until the next one, ms, if nothing happens meanwhile; 0: there is more. Error unavailable.
  Result<std::uint64_t> round();
  // We lead since now: what was under way is looked for.
  Result<void> recover();

 private:
  struct World {
    LoadedWorld loaded;
    std::string said;  // the last error of it
  };
  Result<void> work(const std::string& name);
  Result<World*> world_of(const std::string& name);
  Result<bool> work_once(LoadedWorld&);
  Result<std::size_t> take_mail(LoadedWorld&);
  Result<void> take_one(LoadedWorld&, const WorldMail&);
  Result<void> receive(LoadedWorld&, ReceiptArrived);
  Result<std::optional<ReceiptArrived>> receipt_of_job(LoadedWorld&, const std::string& job_key);
  Result<std::optional<ReceiptArrived>> receipt_of_flow(LoadedWorld&, const std::string& flow_key);
  Result<std::size_t> take_steps(LoadedWorld&);
  Result<std::size_t> fire_timers(LoadedWorld&, std::uint64_t& next_ms);
  Result<std::size_t> publish(LoadedWorld&);
  Result<std::string> carry_out(LoadedWorld&, const EffectToPublish&);
  Result<std::string> submit_job(LoadedWorld&, const EffectToPublish&, const EffectSpec&, const std::string& params);
  Result<std::string> start_flow(LoadedWorld&, const EffectToPublish&, const nlohmann::json& params);
  Result<std::string> send_signal(LoadedWorld&, const EffectToPublish&, const nlohmann::json& params);
  Result<void> look_for_ends(LoadedWorld&);
  Result<Sample> sample();

  Parts parts_;
  Id context_;
  RunCache runs_{1000};
  std::map<std::string, World> worlds_;
};

}  // namespace mycojobs
