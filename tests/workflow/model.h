// A naive model of a world of workflows, and random rounds of the kernel against it. The model is written from the
// invariants with JSON, lists and maps; it shares no code with the kernel but the machine's behaviour.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "workflow/stage.h"

namespace mycojobs::workflow_tests {

inline const CellId kSink{"m/sink@1", ""};
CellId busy_cell(int key);  // takes Go; has the arm Rejected
CellId peer_cell(int key);  // takes Go and Poke; has it not

json machine_manifest();
// What the machines do: a pure function of what they see.
json behave(const std::string& entrypoint, const json& state, const json& event, const json& ctx);

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
  std::string code;  // in force
  std::map<CellId, ModelCell> cells;
  std::vector<CellId> ring;
  std::map<std::string, CellId> settled;
  std::size_t refused = 0;

  static bool fits(const std::string& schema, const json& value);
  void event(const std::string& schema, const json& value, std::uint64_t now_ms);
  // What the step must give; whether the instance fails by it.
  static bool breaks(const CellId&, const json& output);
  json output(const CellId&) const;
  void step(const CellId&, const json& output, const std::vector<EffectToPublish>& published, std::uint64_t now_ms);
  // fault: the payload does not fit.
  void receipt(const std::string& intent, const std::string& status, const json& payload, bool fault,
               std::uint64_t now_ms);
  bool at_rest() const;
  // What differs; "" if nothing does.
  std::string compare(const WorldState&) const;

 private:
  void deliver(const CellId&, const json& value, std::uint64_t now_ms);
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
  ModelRound(std::uint64_t seed, Mutant);
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
  void apply();
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
  std::string snapshot_, wrong_, trail_, why_;
  bool was_lost_ = false;
  Code code_ = Code::internal;  // of the last refusal
};

}  // namespace mycojobs::workflow_tests
