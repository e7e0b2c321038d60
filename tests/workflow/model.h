// A naive model of a world of workflows, and random rounds of the kernel against it. Each seed has machines of its own:
// a table, from which comes the Lua that the engine runs (Machine::lua()) and what the model knows (Machine::output()).
// The model is written from the invariants with JSON, lists and maps; it shares no code with the kernel.
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

inline const CellId kSink{"m/sink@1", ""};
inline constexpr int kNoState = -1;  // of a machine whose state is null

// What a machine does in one case.
struct Move {
  enum class Does { goes, raises, asks_undeclared, asks_wrongly, says_wrongly };
  struct Event {
    std::string schema;
    int shift = 0;  // of the key
  };
  Does does = Does::goes;
  std::optional<int> next;    // nothing: null
  int factor = 1, add = 0;    // of its number
  std::vector<Event> events;  // of what it has seen one less, and none of 0: so it ends
  std::vector<int> effects;
};
struct Machine {
  std::string name;
  bool keyed = false, context = false, rejected = false;             // rejected: it has that arm
  std::map<std::string, std::string> tags;                           // of the events that it takes, by their schema
  std::map<std::pair<int, std::string>, std::array<Move, 2>> moves;  // by state and tag; none: it stays as it is
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
// So many with keys, and kSink. Always the same names: one may replace the other.
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
  std::string code;                       // in force
  std::map<CellId, ModelCell> cells;
  std::vector<CellId> ring;
  std::map<std::string, CellId> settled;
  std::size_t refused = 0, unfit = 0;

  const Machine& machine(const CellId& id) const { return codes.at(cells.at(id).code).at(id.workflow); }
  static bool fits(const std::string& schema, const json& value);
  void event(const std::string& schema, const json& value, std::uint64_t now_ms);
  void cancel(const CellId&);
  void remove(const CellId&);
  // What the step must give; whether the instance fails by it.
  static bool breaks(const CellId&, const json& output);
  json output(const CellId&) const;
  void step(const CellId&, const json& output, const std::vector<EffectToPublish>& published, std::uint64_t now_ms);
  // fault: the payload does not fit.
  void receipt(const std::string& intent, const std::string& status, const json& payload, bool fault,
               std::uint64_t now_ms);
  std::vector<std::string> waiting() const;  // intents that are pending
  bool at_rest() const { return ring.empty() && waiting().empty(); }
  // What differs; "" if nothing does.
  std::string compare(const WorldState&) const;

 private:
  void deliver(const CellId&, const std::string& schema, const json& value, std::uint64_t now_ms);
  void put(const CellId&, ModelMail);
  void fail(const CellId&);
  void end_if_spent(const CellId&);
};

// A bug that is planted around the kernel. decide: what stands in for it.
struct Mutant {
  std::string name;
  std::function<Result<WorkflowDecision>(const WorldState&, const ManifestCatalog&, const WorkflowInput&)> decide;
  std::function<std::vector<CellId>(const WorldState&, std::size_t, const std::set<CellId>&)> next = next_cells;
  bool publishes_early = false;  // what a lost decision asked for
};
Mutant no_mutant();
std::vector<Mutant> mutants();

class ModelRound {
 public:
  // engine: what runs the machines' text; none: their tables do.
  ModelRound(std::uint64_t seed, Mutant, WorkflowEngine engine = nullptr);
  // What went wrong, with the round's last actions; "" if nothing did.
  std::string run(int actions = 150);
  const std::vector<WorkflowFact>& journal() const { return stage_.journal; }
  const WorldState& world() const { return stage_.world; }
  std::map<std::string, int> seen;  // what happened how often

 private:
  struct Asked {  // a request that an engine works on
    CellId cell;
    MailId mail;
    json output;
    StepAnswer answer;
  };
  void act();
  void send();
  void ask();
  void answer();
  void launch();
  void receipt();
  void receipt_of(const std::string& intent);
  void apply();
  void end();
  void snapshot();
  void restart();
  void rest();
  // Decides; the decision is lost with some chance. Nothing: refused (why_), or lost.
  std::optional<WorkflowDecision> take(decltype(WorkflowInput::what));
  void check(bool right, const std::string& what);
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  std::mt19937_64 random_;
  const Mutant mutant_;
  Stage stage_;
  Model model_;
  std::vector<std::string> codes_;
  std::vector<Asked> asked_;
  std::vector<std::string> launched_, lost_;  // intents: outside, and of decisions that were lost
  std::set<std::string> committed_;
  std::map<std::string, std::string> blobs_;  // of the snapshot
  std::string snapshot_, wrong_, why_;
  bool was_lost_ = false;
  Code code_ = Code::internal;  // of the last refusal
};

}  // namespace mycojobs::workflow_tests
