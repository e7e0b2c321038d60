// Random machines: one table yields the Lua code for the engine and the outputs that the model expects.
#include <utility>

#include "workflow/model.h"

namespace mycojobs::workflow_tests {
namespace {

constexpr int kKeys = 5, kNumbers = 1000, kParameters = 10;

std::string quoted(const std::string& text) { return "'" + text + "'"; }
std::string plus(int number) { return " + " + std::to_string(number); }
std::string entrypoint_of(const std::string& workflow) { return workflow.substr(2, workflow.find('@') - 2); }

int below(std::mt19937_64& random, int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); }

Move random_move(std::mt19937_64& random, int states, bool keyed) {
  using Does = Move::Does;
  constexpr Does kWrong[] = {Does::raises, Does::asks_undeclared, Does::asks_wrongly, Does::says_wrongly};
  constexpr const char* kSchemas[] = {"m/Go@1", "m/Go@1", "m/Poke@1", "m/Note@1"};
  constexpr int kEvents[] = {0, 0, 1, 1, 1, 2}, kEffects[] = {0, 0, 1, 1, 2};
  Move move;
  if (below(random, 100) < 7) move.does = kWrong[below(random, 4)];
  if (below(random, 100) >= 18) move.next = below(random, states);
  move.factor = 1 + below(random, 5), move.add = below(random, 50);
  for (int i = kEvents[below(random, 6)]; i > 0; --i)
    move.events.push_back({kSchemas[below(random, 4)], below(random, kKeys)});
  if (keyed)
    for (int i = kEffects[below(random, 5)]; i > 0; --i) move.effects.push_back(below(random, kParameters));
  return move;
}

Machine random_machine(std::mt19937_64& random, const std::string& name, bool keyed, bool takes_go) {
  Machine machine{name, keyed, below(random, 2) == 0, below(random, 2) == 0, {}, {}};
  if (takes_go || (keyed && below(random, 2) > 0)) machine.tags["m/Go@1"] = below(random, 2) == 0 ? "Go" : "Come";
  if (keyed && below(random, 2) > 0) machine.tags["m/Poke@1"] = below(random, 2) == 0 ? "Poke" : "Prod";
  std::vector<std::string> seen{keyed ? "Receipt" : ""};
  for (const auto& [schema, tag] : machine.tags) seen.push_back(tag);
  if (keyed && machine.rejected) seen.emplace_back("Rejected");
  if (!keyed) machine.tags["m/Note@1"] = "";
  const int states = 1 + below(random, 3);
  for (int state = kNoState; state < states; ++state)
    for (const auto& tag : seen)
      if (below(random, 8) > 0)  // otherwise the state is kept
        machine.moves[{state, tag}] = {random_move(random, states, keyed), random_move(random, states, keyed)};
  return machine;
}

// Returns the Lua code of a move; it must agree with Machine::output().
std::string to_lua(const Move& move) {
  using Does = Move::Does;
  if (move.does == Does::raises) return "error('boom')";
  std::string state = "nil", events, effects;
  if (move.next)
    state = "{pc = " + std::to_string(*move.next) + ", n = (n * " + std::to_string(move.factor) + " + seen" +
            plus(move.add) + ") % " + std::to_string(kNumbers) + "}";
  for (const auto& event : move.events)
    events += "{schema = " + quoted(event.schema) + ", value = {" +
              (event.schema == "m/Note@1" ? std::string()
                                          : "k = (key" + plus(event.shift) + ") % " + std::to_string(kKeys) + ", ") +
              "n = seen - 1}}, ";
  for (const int shift : move.effects)
    effects +=
        "{kind = 'm/do@1', params = {n = (n + seen" + plus(shift) + ") % " + std::to_string(kParameters) + "}}, ";
  events = "seen > 0 and {" + events + "} or nil";
  if (move.does == Does::says_wrongly) events = "{{schema = 'm/Note@1', value = {n = 'x'}}}";
  if (move.does == Does::asks_wrongly) effects += "{kind = 'm/do@1', params = {n = 'x'}}";
  if (move.does == Does::asks_undeclared) effects += "{kind = 'm/never@1', params = 1}";
  return "return " + state + ", " + events + ", {" + effects + "}";
}

json make_arms(const Machine& machine) {
  json arms = json::array({{{"title", "Receipt"}, {"$ref", "sys/EffectReceiptEnvelope@1"}}});
  for (const auto& [schema, tag] : machine.tags) arms.push_back({{"title", tag}, {"$ref", schema}});
  if (machine.rejected) arms.push_back({{"title", "Rejected"}, {"$ref", "sys/EffectReceiptRejected@1"}});
  return {{"oneOf", arms}};
}

}  // namespace

json Machine::output(const json& state, const json& event, const json& ctx, int key) const {
  using Does = Move::Does;
  const json& value = keyed ? event.at("$value") : event;
  const int pc = state.is_null() ? kNoState : state.at("pc").get<int>(),
            n = state.is_null() ? 0 : state.at("n").get<int>();
  const json payload = value.value("payload", json::object());
  const int seen = value.value("n", payload.is_object() ? payload.value("r", 0) : 0);
  const auto now = context ? ctx.at("now_ms").get<std::uint64_t>() : 0;
  const auto found = moves.find({pc, keyed ? event.at("$tag").get<std::string>() : ""});
  if (found == moves.end()) return {{"state", state}};
  const Move& move = found->second[(static_cast<std::uint64_t>(n + seen) + now) % 2];
  if (move.does == Does::raises) return {{"error", {{"kind", "script"}, {"message", "boom"}}}};
  json out{{"state", nullptr}, {"events", json::array()}, {"effects", json::array()}};
  if (move.next) out["state"] = {{"pc", *move.next}, {"n", (n * move.factor + seen + move.add) % kNumbers}};
  if (move.does == Does::says_wrongly) {
    out["events"].push_back({{"schema", "m/Note@1"}, {"value", {{"n", "x"}}}});
  } else if (seen > 0) {
    for (const auto& event_out : move.events) {
      json answer{{"n", seen - 1}};
      if (event_out.schema != "m/Note@1") answer["k"] = (key + event_out.shift) % kKeys;
      out["events"].push_back({{"schema", event_out.schema}, {"value", answer}});
    }
  }
  for (const int shift : move.effects)
    out["effects"].push_back({{"kind", "m/do@1"}, {"params", {{"n", (n + seen + shift) % kParameters}}}});
  if (move.does == Does::asks_wrongly) out["effects"].push_back({{"kind", "m/do@1"}, {"params", {{"n", "x"}}}});
  if (move.does == Does::asks_undeclared) out["effects"].push_back({{"kind", "m/never@1"}, {"params", 1}});
  return out;
}

std::string Machine::lua() const {
  std::string text = "function " + entrypoint_of(name) +
                     "(state, event, ctx)\n  local pc, n, key = " + std::to_string(kNoState) +
                     ", 0, event.key or 0\n  if state then pc, n = state.pc, state.n end\n";
  text += keyed ? "  local tag, value = event.value['$tag'], event.value['$value']\n"
                : "  local tag, value = '', event.value\n";
  text += "  local seen = value.n or type(value.payload) == 'table' and value.payload.r or 0\n";
  text += std::string("  local odd = (n + seen + ") + (context ? "ctx.now_ms" : "0") + ") % 2\n";
  for (const auto& [when, both] : moves)
    for (std::size_t odd = 0; odd < both.size(); ++odd)
      text += "  if pc == " + std::to_string(when.first) + " and tag == " + quoted(when.second) +
              " and odd == " + std::to_string(odd) + " then " + to_lua(both[odd]) + " end\n";
  return text + "  return state\nend\n";
}

const Machine& Machines::at(const std::string& workflow) const {
  for (const auto& machine : all)
    if (machine.name == workflow) return machine;
  std::abort();
}

bool Machines::takes(const std::string& schema) const {
  for (const auto& [event, workflow] : subscriptions)
    if (event == schema) return true;
  return false;
}

std::string Machines::lua() const {
  std::string text;
  for (const auto& machine : all) text += machine.lua();
  return text;
}

json Machines::manifest() const {
  json manifest = json::parse(R"json({
    "name": "m/world@1",
    "schemas": {
      "m/Go@1": {"type": "object", "required": ["k", "n"], "properties": {
        "k": {"type": "integer", "minimum": 0, "maximum": 4}, "n": {"type": "integer"}}},
      "m/Poke@1": {"type": "object", "required": ["k", "n"], "properties": {
        "k": {"type": "integer", "minimum": 0, "maximum": 4}, "n": {"type": "integer"}}},
      "m/Note@1": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
      "m/State@1": {"type": "object", "required": ["pc", "n"], "properties": {
        "pc": {"type": "integer"}, "n": {"type": "integer"}}}},
    "effects": [
      {"name": "m/do@1", "script_type": "lua", "script": "x", "params": {"type": "object", "required": ["n"], "properties": {
        "n": {"type": "integer", "minimum": 0}}}, "receipt": {"type": "object", "required": ["r"], "properties": {"r": {"type": "integer"}}}},
      {"name": "m/never@1", "runner": "runner:7", "script": "x", "params": {}, "receipt": {}}],
    "workflows": [], "routing": {"subscriptions": []}
  })json");
  for (const auto& machine : all) {
    json workflow{{"name", machine.name},
                  {"state", "m/State@1"},
                  {"event", "m/Note@1"},
                  {"effects_emitted", json::array()},
                  {"impl", {{"module", "shop.lua"}, {"entrypoint", entrypoint_of(machine.name)}}}};
    if (machine.context) workflow["context"] = "sys/WorkflowContext@1";
    if (machine.keyed) {
      const std::string event = "m/" + entrypoint_of(machine.name) + "Event@1";
      manifest["schemas"][event] = make_arms(machine);
      workflow["event"] = event, workflow["key_schema"] = {{"type", "integer"}};
      workflow["effects_emitted"] = {"m/do@1", "sys/timer@1"};
    }
    manifest["workflows"].push_back(workflow);
  }
  for (const auto& [event, workflow] : subscriptions) {
    json row{{"event", event}, {"workflow", workflow}};
    if (at(workflow).keyed) row["key_field"] = "$value.k";
    manifest["routing"]["subscriptions"].push_back(row);
  }
  return manifest;
}

Machines random_machines(std::mt19937_64& random, int keyed) {
  Machines made;
  for (int i = 0; i < keyed; ++i)
    made.all.push_back(random_machine(random, std::string("m/") + static_cast<char>('a' + i) + "@1", true, i == 0));
  made.all.push_back(random_machine(random, kSink.workflow, false, false));
  for (const auto& machine : made.all)
    for (const auto& [schema, tag] : machine.tags) made.subscriptions.emplace_back(schema, machine.name);
  for (std::size_t i = made.subscriptions.size(); i > 1; --i)
    std::swap(made.subscriptions[i - 1],
              made.subscriptions[static_cast<std::size_t>(below(random, static_cast<int>(i)))]);
  return made;
}

}  // namespace mycojobs::workflow_tests
