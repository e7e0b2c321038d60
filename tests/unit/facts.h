// Histories of a job, written as text.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "jobs/dispatch_journal.h"

namespace mycojobs {

// Converts text such as "claimed c=A t=h e=5" to a fact; its time is 1000 + its revision.
inline Fact parse_fact(const std::string& line, std::uint64_t revision) {
  std::istringstream words(line);
  Fact fact;
  fact.revision = revision;
  fact.at_ms = 1000 + revision;
  fact.job_key = "job:12:1";
  words >> fact.kind;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    fact.fields.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return fact;
}

// Parses facts that are separated by ';'. A is the claim with epoch 5, B with epoch 6, C with epoch 7.
inline std::vector<Fact> parse_history(const std::string& text) {
  std::istringstream lines(text);
  std::vector<Fact> facts;
  for (std::string line; std::getline(lines, line, ';');) facts.push_back(parse_fact(line, facts.size() + 1));
  return facts;
}

// The following functions return facts as text.
inline std::string format_claim(char claim, int attempt, int deliveries) {
  return std::string("claimed c=") + claim + " t=hash" + claim + " e=" + std::to_string(claim - 'A' + 5) +
         " a=" + std::to_string(attempt) + " d=" + std::to_string(deliveries) + " r=20 i=inst l=30000";
}
inline std::string format_completion(char claim) {
  return std::string("completed c=") + claim + " e=" + std::to_string(claim - 'A' + 5) + " g=digest detail=ok";
}

inline const std::string kA = format_claim('A', 1, 1);

}  // namespace mycojobs
