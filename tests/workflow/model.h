// A naive model of a world of workflows, and random rounds that compare the kernel with it. Each seed has its own
// machines. A machine is a table that generates both the Lua code for the engine (Machine::lua()) and the expected
// outputs (Machine::output()). The model implements the invariants with JSON, lists and maps, and shares no code with
// the kernel.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "workflow/stage.h"

namespace mycojobs::workflow_tests {

inline const InstanceId kSink{"m/sink@1", ""};
inline constexpr int kNoState = -1;  // the state of a machine without state

// The behaviour of a machine in one case.
struct Move {
  enum class Does { goes, raises, asks_undeclared, asks_wrongly, says_wrongly };
  struct Event {
    std::string schema;
    int shift = 0;  // added to the key
  };
  Does does = Does::goes;
  std::optional<int> next;    // nothing: null
  int factor = 1, add = 0;    // applied to the machine's number
  std::vector<Event> events;  // carry the received number - 1 and are omitted at 0, so chains end
  std::vector<int> effects;
};
struct Machine {
  std::string name;
  bool keyed = false, context = false, rejected = false;  // rejected: handles refused receipts
  std::map<std::string, std::string> tags;                // tags of the accepted events, by schema
  // The key is state and tag. Without an entry, the state is unchanged.
  std::map<std::pair<int, std::string>, std::array<Move, 2>> moves;
  json output(const json& state, const json& event, const json& ctx, int key) const;
  std::string lua() const;
};
struct Machines {
  std::vector<Machine> all;
  std::vector<std::pair<std::string, std::string>> subscriptions;  // schema, workflow
  const Machine& at(const std::string& workflow) const;
  bool takes(const std::string& schema) const;
  json manifest() const;
  std::string lua() const;
};
// Returns `keyed` machines with keys, and kSink. The names are always the same, so that one set can replace another.
Machines random_machines(std::mt19937_64&, int keyed);

struct ModelMail {
  json value;
  std::uint64_t now_ms = 0;
};
struct ModelIntent {
  std::string effect, workflow_hash;
  std::uint64_t index = 0, sequence = 0;
  bool published = false;
};
struct ModelCell {
  json state;
  std::deque<ModelMail> mail;
  std::map<std::string, ModelIntent> pending;
  bool failed = false;
  std::string code;
};

class Model {
 public:
  std::map<std::string, Machines> codes;  // by hash
  std::string code;                       // hash of the active code
  std::map<InstanceId, ModelCell> cells;
  std::vector<InstanceId> ring;
  std::map<std::string, InstanceId> settled;
  std::size_t refused = 0, unfit = 0;

  const Machine& machine(const InstanceId& id) const { return codes.at(cells.at(id).code).at(id.workflow); }
  static bool fits(const std::string& schema, const json& value);
  void event(const std::string& schema, const json& value, std::uint64_t now_ms);
  void cancel(const InstanceId&);
  void remove(const InstanceId&);
  // Returns whether the output fails the instance; output() returns the expected output of the next step.
  static bool breaks(const InstanceId&, const json& output);
  json output(const InstanceId&) const;
  void step(const InstanceId&, const json& output, const std::vector<EffectToPublish>& published, std::uint64_t now_ms);
  // fault: the payload does not match its schema.
  void receipt(const std::string& intent, const std::string& status, const json& payload, bool fault,
               std::uint64_t now_ms);
  std::vector<std::string> waiting() const;  // the pending intents
  bool at_rest() const { return ring.empty() && waiting().empty(); }
  // Describes the differences; "" if there are none.
  std::string compare(const DeploymentState&) const;

 private:
  void deliver(const InstanceId&, const std::string& schema, const json& value, std::uint64_t now_ms);
  void put(const InstanceId&, ModelMail);
  void fail(const InstanceId&);
  void end_if_spent(const InstanceId&);
};

// A bug planted around the kernel. decide: replaces decide() of the kernel.
struct Mutant {
  std::string name;
  std::function<Result<WorkflowDecision>(const DeploymentState&, const ManifestCatalog&, const WorkflowInput&)> decide;
  std::function<std::vector<InstanceId>(const DeploymentState&, std::size_t, const std::set<InstanceId>&)> next =
      next_instances;
  bool publishes_early = false;  // publishes the effects of a lost decision
};
Mutant no_mutant();
std::vector<Mutant> mutants();

class ModelRound {
 public:
  // engine: runs the Lua code of the machines; without an engine, the tables are used.
  ModelRound(std::uint64_t seed, Mutant, StepEngine engine = nullptr);
  // Returns the failure with the last actions of the round, or "".
  std::string run(int actions = 150);
  const std::vector<WorkflowFact>& journal() const { return stage_.journal; }
  const DeploymentState& world() const { return stage_.deployment; }
  std::map<std::string, int> seen;  // number of occurrences by event

 private:
  struct PendingRequest {  // a request that an engine is processing
    InstanceId cell;
    InboxEventId mail;
    json output;
    StepAnswer answer;
  };
  void act();
  void send();
  void ask();
  void answer();
  void launch();
  void receipt();
  void deliver_receipt(const std::string& intent);
  void apply();
  void end();
  void snapshot();
  void restart();
  void rest();
  // Decides; with some probability the decision is lost. Returns nothing if the input was refused (why_) or the
  // decision was lost.
  std::optional<WorkflowDecision> take(decltype(WorkflowInput::content));
  void check(bool right, const std::string& what);
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  std::mt19937_64 random_;
  const Mutant mutant_;
  Stage stage_;
  Model model_;
  std::vector<std::string> codes_;
  std::vector<PendingRequest> asked_;
  std::vector<std::string> launched_, lost_;  // intents: published, and of lost decisions
  std::set<std::string> committed_;
  std::map<std::string, std::string> blobs_;  // the blobs of the snapshot
  std::string snapshot_, wrong_, why_;
  bool was_lost_ = false;
  Code code_ = Code::internal;  // of the last refusal
};

}  // namespace mycojobs::workflow_tests
