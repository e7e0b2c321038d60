// mycojobs verify, mycojobs doctor --rebuild
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "cli/commands.h"
#include "cli/opened.h"
#include "cli/progress_line.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "inspect/flow_verify.h"
#include "inspect/objects.h"
#include "inspect/rebuild.h"
#include "inspect/verify.h"

namespace mycojobs {
namespace {

Progress shown_by(ProgressLine& line) {
  return [&line](std::string_view phase, std::uint64_t done, std::uint64_t total) { line.show(phase, done, total); };
}

constexpr std::size_t kShownOfEach = 3;

std::string kind_of(const Finding& finding) {
  return finding.violation ? paint(Tone::bad, "violation") : paint(Tone::faint, "note");
}

// How many there are of each rule, violations first; then the findings, of each rule the first few.
void print_report(Id context, const VerifyReport& report, bool all) {
  print(fmt::format("context {}: {} jobs, {} facts, {} queues\n", context, report.jobs, report.facts, report.queues));
  if (report.findings.empty()) return;
  std::map<std::string, std::vector<const Finding*>> by_rule;
  for (const Finding& finding : report.findings) by_rule[finding.rule].push_back(&finding);
  std::vector<std::vector<std::string>> totals;
  std::vector<std::vector<std::string>> rows;
  std::size_t left_out = 0;
  for (const bool violations : {true, false}) {
    for (const VerifyRule& rule : verify_rules()) {
      const auto found = by_rule.find(std::string(rule.name));
      if (rule.violation != violations || found == by_rule.end()) continue;
      const auto& findings = found->second;
      totals.push_back(
          {kind_of(*findings.front()), found->first, std::to_string(findings.size()), std::string(rule.meaning)});
      const std::size_t some = all ? findings.size() : std::min(findings.size(), kShownOfEach);
      left_out += findings.size() - some;
      for (std::size_t i = 0; i < some; ++i)
        rows.push_back(
            {kind_of(*findings[i]), found->first, printable(findings[i]->subject), printable(findings[i]->text)});
    }
  }
  print_table(totals);
  print("\n");
  print_table(rows);
  if (left_out > 0) print(fmt::format("and {} more: --all lists every one\n", left_out));
}

Result<int> verify_all(const Invocation& call) {
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(flows, opened.session.stores->open_flows());
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t violations = 0;
  std::size_t notes = 0;
  for (Id context : call.settings.contexts) {
    Result<VerifyReport> report;
    {
      ProgressLine line(call.parts.clock);
      report = verify(*opened.store, context, shown_by(line));
    }
    if (!report) return fail(report.error(), fmt::format("context {}", context));
    MJ_TRY(of_objects, verify_objects(*objects, context));
    std::move(of_objects.begin(), of_objects.end(), std::back_inserter(report->findings));
    MJ_TRY(of_flows, verify_flows(*flows, *opened.store, context));
    std::move(of_flows.begin(), of_flows.end(), std::back_inserter(report->findings));
    nlohmann::json findings = nlohmann::json::array();
    for (const Finding& finding : report->findings) {
      ++(finding.violation ? violations : notes);
      findings.push_back({{"violation", finding.violation},
                          {"rule", finding.rule},
                          {"subject", finding.subject},
                          {"text", finding.text}});
    }
    contexts.push_back({{"context", context},
                        {"jobs", report->jobs},
                        {"facts", report->facts},
                        {"queues", report->queues},
                        {"findings", std::move(findings)}});
    if (!call.json) print_report(context, *report, call.has("all"));
  }
  if (call.json) {
    print(dump_json({{"clean", violations == 0}, {"violations", violations}, {"contexts", contexts}}, 2) + "\n");
  } else {
    print(violations == 0 ? paint(Tone::good, "clean") : paint(Tone::bad, counted(violations, "violation")));
    print(notes == 0 ? "\n" : ", " + counted(notes, "note") + "\n");
  }
  if (violations > 0) say("`mycojobs doctor --rebuild --dry-run` tells what can be put right from the journals");
  return violations == 0 ? 0 : 1;
}

Result<int> rebuild_all(const Invocation& call) {
  const bool dry_run = call.has("dry-run");
  MJ_TRY(opened, open_to_answer(call));
  MJ_TRY(objects, opened.session.stores->open_objects());
  MJ_TRY(flows, opened.session.stores->open_flows());
  nlohmann::json contexts = nlohmann::json::array();
  std::size_t differences = 0;
  for (Id context : call.settings.contexts) {
    Result<RebuildReport> report;
    {
      ProgressLine line(call.parts.clock);
      report = rebuild(*opened.store, context, dry_run, shown_by(line));
    }
    if (!report) return fail(report.error(), fmt::format("context {}", context));
    MJ_TRY(of_objects, rebuild_objects(*objects, context, dry_run));
    std::move(of_objects.begin(), of_objects.end(), std::back_inserter(report->differences));
    MJ_TRY(of_flows, rebuild_flows(*flows, *opened.store, context, dry_run));
    std::move(of_flows.begin(), of_flows.end(), std::back_inserter(report->differences));
    differences += report->differences.size();
    contexts.push_back({{"context", context}, {"jobs", report->jobs}, {"differences", report->differences}});
    if (call.json) continue;
    print(fmt::format("context {}: {}, {}{}\n", context, counted(report->jobs, "job"),
                      counted(report->differences.size(), "difference"),
                      report->differences.empty() ? "" : (dry_run ? ", not mended" : ", mended")));
    for (const std::string& line : report->differences) print("  " + one_line(line) + "\n");
  }
  if (call.json) {
    print(dump_json({{"dry_run", dry_run}, {"differences", differences}, {"contexts", contexts}}, 2) + "\n");
  }
  return dry_run && differences > 0 ? 1 : 0;
}

}  // namespace

int verify_command(Invocation& call) { return finish(verify_all(call)); }
int doctor_rebuild(Invocation& call) { return finish(rebuild_all(call)); }

}  // namespace mycojobs
