#include "executors/plugin/questions.h"

#include <nlohmann/json.hpp>

#include "domain/codec.h"
#include "domain/flow_data.h"
#include "executors/outcome_to_end.h"
#include "executors/seen_inputs.h"

namespace mycojobs::plugin {

using nlohmann::json;

namespace {

// As texts: a plugin of any age reads them.
json inputs_of(const JobFacts& facts) {
  json out = json::object();
  const SeenInputs seen = seen_inputs(facts);
  for (const auto& [name, input] : seen.single) out[name] = input->result;
  for (const auto& [node, inputs] : seen.joined) {
    out[node] = json::array();
    for (const JobInput* input : inputs) out[node].push_back(input == nullptr ? json::object() : json(input->result));
  }
  return out;
}

}  // namespace

std::string job_question(const JobFacts& facts) {
  const Job& job = facts.job;
  return dump_json({{"id", job.id},
                    {"caller_id", job.caller_id},
                    {"context_id", job.context_id},
                    {"name", job.name},
                    {"attempt", job.attempt},
                    {"script_type", job.script_type},
                    {"script", job.script},
                    {"environment", json(job.env_vars)},
                    {"timeout", job.timeout ? json(*job.timeout) : json(nullptr)},
                    {"deadline_unix_ms", facts.deadline_unix_ms},
                    {"inputs", inputs_of(facts)},
                    {"flow", *flow_data_of(job).told}});
}

Ended ended_of(const Job& job) {
  return {job.id, job.caller_id, job.context_id, job.name, job.script_type, job.attempt, {}, {}};
}

std::string outcome_question(const Ended& ended, const Outcome& outcome) {
  return dump_json({{"job",
                     {{"id", ended.id},
                      {"caller_id", ended.caller_id},
                      {"context_id", ended.context_id},
                      {"name", ended.name},
                      {"attempt", ended.attempt},
                      {"script_type", ended.script_type}}},
                    {"status", word(outcome.status)},
                    {"exit_code", outcome.exit_code},
                    {"signal", outcome.signal},
                    {"stderr", ended.stderr_tail},
                    {"result", json(ended.result)},
                    {"usage", json::parse(usage_json(outcome.usage))}});
}

}  // namespace mycojobs::plugin
