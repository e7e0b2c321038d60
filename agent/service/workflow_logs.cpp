#include "service/workflow_logs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/parse.h"
#include "model/codec.h"
#include "service/job_service.h"
#include "text/plural.h"
#include "text/utf8.h"

namespace mycojobs::service {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsPerScan = 1000;
constexpr std::size_t kLinesPerScan = 256;

// A requested effect with a log that may still grow.
struct PendingEffect {
  std::uint64_t step = 0, index = 0;  // height of the requesting step; index of the effect in the step
  std::uint64_t published = 0;        // height of the fact that names the job or flow; 0: not published yet
  std::uint64_t seq = 0;              // number of the last line that was read
  std::string effect, intent, effect_ref;
  std::uint64_t at_ms = 0;  // time of publication
};

// The position at the end of a page. Its text form consists of numbers separated by dots, in the order of the fields:
// height, has_facts, has_ended, and {step, index, published, seq} of each effect.
struct LogCursor {
  std::uint64_t height = 0;                   // of the last fact that was read
  bool has_facts = false, has_ended = false;  // of the instance, up to this height
  std::vector<PendingEffect> effects;         // effects with logs that may still grow
};

std::string format_cursor(const LogCursor& cursor) {
  std::string out = std::to_string(cursor.height) + (cursor.has_facts ? ".1" : ".0") + (cursor.has_ended ? ".1" : ".0");
  for (const PendingEffect& effect : cursor.effects) {
    for (const std::uint64_t number : {effect.step, effect.index, effect.published, effect.seq})
      out += '.' + std::to_string(number);
  }
  return out;
}

Result<LogCursor> parse_cursor(std::string_view text) {
  constexpr std::size_t kHeaderNumbers = 3, kNumbersPerEffect = 4;
  std::vector<std::uint64_t> numbers;
  for (bool has_more = !text.empty(); has_more;) {
    const std::size_t dot = text.find('.');
    has_more = dot != std::string_view::npos;
    if (!parse_u64(text.substr(0, dot), numbers.emplace_back()))
      return fail(Code::invalid, "after: is not a value that a page returned");
    text.remove_prefix(has_more ? dot + 1 : text.size());
  }
  LogCursor cursor;
  if (numbers.empty()) return cursor;
  const bool is_complete =
      numbers.size() >= kHeaderNumbers && (numbers.size() - kHeaderNumbers) % kNumbersPerEffect == 0;
  // One step can request 64 effects more than the limit of followed effects.
  if (!is_complete || numbers.size() > kHeaderNumbers + kNumbersPerEffect * 2 * kMaxPendingEffects)
    return fail(Code::invalid, "after: is not a value that a page returned");
  cursor.height = numbers[0], cursor.has_facts = numbers[1] != 0, cursor.has_ended = numbers[2] != 0;
  for (std::size_t i = kHeaderNumbers; i < numbers.size(); i += kNumbersPerEffect) {
    PendingEffect& effect = cursor.effects.emplace_back();
    effect.step = numbers[i], effect.index = numbers[i + 1], effect.published = numbers[i + 2],
    effect.seq = numbers[i + 3];
  }
  return cursor;
}

// Updates the position with the facts of one instance.
class LogCursorUpdater {
 public:
  LogCursorUpdater(LogCursor& cursor, const InstanceId& cell, const WorkflowFact& fact)
      : cursor_(cursor), cell_(cell), fact_(fact) {}

  void operator()(const EventAccepted& fact) const {
    for (const EventTarget& target : fact.targets) {
      if (target.instance == cell_ && target.skip_reason.empty()) cursor_.has_ended = false;
    }
  }
  void operator()(const StepTaken& fact) const {
    for (std::size_t i = 0; i < fact.intents.size(); ++i)
      cursor_.effects.push_back({fact_.height, i, 0, 0, fact.intents[i].effect, fact.intents[i].hash, "", 0});
  }
  void operator()(const EffectPublished& fact) const {
    const auto effect_entry = std::find_if(cursor_.effects.begin(), cursor_.effects.end(),
                                           [&](const PendingEffect& effect) { return effect.intent == fact.intent; });
    if (effect_entry == cursor_.effects.end()) return;
    const bool is_record = fact.effect_ref.starts_with("job:") || fact.effect_ref.starts_with("flow:");
    if (!is_record) {  // timers and approvals have no log
      cursor_.effects.erase(effect_entry);
    } else {
      effect_entry->published = fact_.height;
      effect_entry->effect_ref = fact.effect_ref;
      effect_entry->at_ms = fact_.at_ms;
    }
  }
  void operator()(const ReceiptAdmitted& fact) const { remove_unpublished(&fact.intent); }
  void operator()(const ReceiptMismatched& fact) const { remove_unpublished(&fact.intent); }
  void operator()(const InstanceFailed&) const { end_instance(); }
  void operator()(const InstanceCompleted&) const { end_instance(); }
  void operator()(const InstanceDeleted&) const { end_instance(); }
  template <class Other>
  void operator()(const Other&) const {}

 private:
  // Removes the effects of this intent that were not published and never will be; null means all intents.
  void remove_unpublished(const std::string* intent) const {
    std::erase_if(cursor_.effects, [&](const PendingEffect& effect) {
      return effect.published == 0 && (intent == nullptr || effect.intent == *intent);
    });
  }
  void end_instance() const {
    cursor_.has_ended = true;
    remove_unpublished(nullptr);
  }
  LogCursor& cursor_;
  const InstanceId& cell_;
  const WorkflowFact& fact_;
};

// Reads one page of the logs of all effects of an instance.
class InstanceLogReader {
 public:
  InstanceLogReader(const RequestContext& caller, const WorkflowStores& stores, NamedInstance instance,
                    LogCursor cursor)
      : caller_(caller), stores_(stores), instance_(std::move(instance)), cursor_(std::move(cursor)) {}

  Result<InstanceLog> read_page(std::size_t limit) {
    for (PendingEffect& effect : cursor_.effects) MJ_CHECK(load_effect(effect));
    MJ_CHECK(read_new_facts());
    if (!cursor_.has_facts && cursor_.height >= height_)
      return fail(Code::not_found, display_name(instance_.cell) + ": it has no history");
    InstanceLog out;
    std::vector<PendingEffect> remaining_effects;
    for (PendingEffect& effect : cursor_.effects) {
      const bool is_unfinished = effect.published == 0 || out.frames.size() >= limit;
      MJ_TRY(has_more, is_unfinished ? Result<bool>(true) : read_lines(effect, limit, out.frames));
      if (has_more)
        remaining_effects.push_back(std::move(effect));
      else
        out.finished_effects.push_back(effect.effect_ref);
    }
    const bool has_capacity = remaining_effects.size() < kMaxPendingEffects;
    cursor_.effects = std::move(remaining_effects);
    out.after = format_cursor(cursor_);
    out.has_more = out.frames.size() >= limit || (cursor_.height < height_ && has_capacity);
    out.ended = cursor_.has_ended && cursor_.effects.empty() && cursor_.height >= height_;
    return out;
  }

 private:
  tl::unexpected<Error> invalid_cursor_error() const {
    return fail(Code::invalid, "after: not of the journal of " + display_name(instance_.cell));
  }
  // Returns the fact at a height if it is of this instance and kind.
  template <class Kind>
  Result<std::pair<Kind, std::uint64_t>> read_fact(std::uint64_t height) {
    if (height == 0) return invalid_cursor_error();
    MJ_TRY(read, stores_.deployments.read(caller_.context, instance_.deployment, height - 1, 1));
    if (read.facts.empty()) return invalid_cursor_error();
    auto fact = decode_workflow_fact(read.facts.front());
    if (!fact) return fail(fact.error(), instance_.deployment + ": height " + std::to_string(height));
    auto* kind = std::get_if<Kind>(&fact->content);
    if (kind == nullptr || !(kind->instance == instance_.cell)) return invalid_cursor_error();
    return std::pair(std::move(*kind), fact->at_ms);
  }
  // Fills in the fields of an effect from the facts to which the numbers of the cursor refer.
  Result<void> load_effect(PendingEffect& effect) {
    MJ_TRY(step, read_fact<StepTaken>(effect.step));
    if (effect.index >= step.first.intents.size()) return invalid_cursor_error();
    const Intent& intent = step.first.intents[effect.index];
    effect.effect = intent.effect, effect.intent = intent.hash;
    if (effect.published == 0) return {};
    MJ_TRY(published, read_fact<EffectPublished>(effect.published));
    if (published.first.intent != intent.hash) return invalid_cursor_error();
    effect.effect_ref = published.first.effect_ref, effect.at_ms = published.second;
    return {};
  }

  // The encoded bytes of a fact of the instance contain its workflow and its key. Facts without them are skipped
  // without decoding, since most facts of a large deployment are of other instances.
  bool may_concern_instance(const std::string& fact) const {
    return fact.find(instance_.cell.workflow) != std::string::npos &&
           fact.find(instance_.cell.key) != std::string::npos;
  }
  // Reads the facts after the cursor.
  Result<void> read_new_facts() {
    const std::uint64_t last_height = cursor_.height + kMaxLogFacts;
    for (;;) {
      MJ_TRY(read, stores_.deployments.read(caller_.context, instance_.deployment, cursor_.height, kFactsPerScan));
      height_ = read.height;
      if (cursor_.height > height_)
        return invalid_cursor_error();  // cursor of a longer journal: the journal was restored
      for (const std::string& bytes : read.facts) {
        if (cursor_.height >= last_height || cursor_.effects.size() >= kMaxPendingEffects) return {};
        ++cursor_.height;
        if (may_concern_instance(bytes)) MJ_CHECK(apply_fact(bytes));
      }
      if (cursor_.height >= read.height) return {};
      if (read.facts.empty())
        return fail(Code::invalid, instance_.deployment + ": the fact at height " + std::to_string(cursor_.height + 1) +
                                       " no longer exists");
    }
  }
  Result<void> apply_fact(const std::string& bytes) {
    auto fact = decode_workflow_fact(bytes);
    if (!fact) return fail(fact.error(), instance_.deployment + ": height " + std::to_string(cursor_.height));
    const std::vector<InstanceId> cells = affected_instances(*fact);
    if (std::find(cells.begin(), cells.end(), instance_.cell) == cells.end()) return {};
    cursor_.has_facts = true;
    std::visit(LogCursorUpdater(cursor_, instance_.cell, *fact), fact->content);
    return {};
  }

  static LogFrame make_frame(const PendingEffect& effect) {
    return {effect.effect, effect.intent, effect.effect_ref, {}, 0};
  }
  // Returns a system line with the next number.
  static LogFrame make_system_frame(const PendingEffect& effect, std::string text) {
    LogFrame frame = make_frame(effect);
    frame.line = {effect.at_ms, effect.seq + 1, LogStream::system, std::move(text)};
    return frame;
  }
  // Returns the number of the entry before the line, if no entry is missing.
  static std::uint64_t get_previous_seq(const Log& line) {
    return line.seq - std::clamp<std::uint64_t>(line.size, 1, line.seq);
  }
  // Returns a frame for the lines that the log has lost before `line`. The numbers in `skipped_seqs` never had a
  // line, so they are not counted as lost.
  static std::optional<LogFrame> make_gap_frame(const PendingEffect& effect, const Log& line,
                                                const std::vector<std::uint64_t>& skipped_seqs) {
    const std::uint64_t previous_seq = get_previous_seq(line);
    const auto is_lost = [&](std::uint64_t number) { return number > effect.seq && number <= previous_seq; };
    const auto skipped_count =
        static_cast<std::uint64_t>(std::count_if(skipped_seqs.begin(), skipped_seqs.end(), is_lost));
    if (previous_seq <= effect.seq + skipped_count) return std::nullopt;
    const std::uint64_t lost = previous_seq - effect.seq - skipped_count;
    LogFrame frame = make_system_frame(effect, count_with_noun(lost, "piece") + " of this log are lost\n");
    frame.line.ts_ms = line.ts_ms, frame.dropped = lost;
    return frame;
  }
  Result<LogPage> read_log(const PendingEffect& effect, std::size_t max) {
    if (stores_.logs == nullptr) return stores_.records.logs(caller_.context, effect.effect_ref, effect.seq, max, 0);
    return stores_.logs->read(stores_.records, caller_.context, effect.effect_ref, effect.seq, max, 0);
  }
  // Appends lines to `out` up to `limit` frames. Returns false if no more lines will follow.
  Result<bool> read_lines(PendingEffect& effect, std::size_t limit, std::vector<LogFrame>& out) {
    if (effect.effect_ref.starts_with("flow:")) {
      const std::string id = effect.effect_ref.substr(5);
      out.push_back(make_system_frame(
          effect, effect.effect_ref + " carries it out: `mycojobs flow logs " + id + "` has its lines\n"));
      return false;
    }
    if (auto permission = check_job_permission(caller_, stores_.records, Action::read, effect.effect_ref, 0);
        !permission) {
      if (permission.error().code != Code::denied) return tl::unexpected<Error>(std::move(permission).error());
      out.push_back(make_system_frame(effect, "the log is another's: " + permission.error().message + "\n"));
      return false;
    }
    while (out.size() < limit) {
      auto page = read_log(effect, std::min(kLinesPerScan, limit - out.size()));
      if (!page && page.error().code == Code::not_found) {
        out.push_back(
            make_system_frame(effect, "the log of " + effect.effect_ref + " no longer exists with its record\n"));
        return false;
      }
      if (!page) return tl::unexpected<Error>(std::move(page).error());
      for (Log& line : page->lines) {
        if (auto lost = make_gap_frame(effect, line, page->skipped_seqs)) {
          effect.seq = get_previous_seq(line);
          // The gap takes a frame; the line itself may be on the next page.
          out.push_back(std::move(*lost));
        }
        if (out.size() >= limit) return true;
        effect.seq = line.seq;
        out.push_back(make_frame(effect));
        out.back().line = std::move(line);
      }
      if (page->ended) return false;
      if (page->lines.empty()) return true;
    }
    return true;
  }

  const RequestContext& caller_;
  const WorkflowStores& stores_;
  NamedInstance instance_;
  LogCursor cursor_;
  std::uint64_t height_ = 0;  // height of the deployment
};

}  // namespace

Result<InstanceLog> read_instance_log(const RequestContext& caller, const WorkflowStores& stores,
                                      const InstanceReference& instance, const LogRequest& request) {
  MJ_TRY(named_instance, find_instance(caller, stores, instance));
  MJ_TRY(cursor, parse_cursor(request.after));
  return InstanceLogReader(caller, stores, std::move(named_instance), std::move(cursor)).read_page(request.limit);
}

json to_json(const LogFrame& frame) {
  json out{{"effect", frame.effect},
           {"intent", frame.intent},
           {"sequence", frame.line.seq},
           {"ts_ms", frame.line.ts_ms},
           {"stream", to_string(frame.line.stream)},
           {"text", to_utf8(frame.line.text)}};
  out[frame.effect_ref.starts_with("flow:") ? "flow" : "job"] = to_utf8(frame.effect_ref);
  if (frame.dropped > 0) out["dropped"] = frame.dropped;
  return out;
}

json to_json(const InstanceLog& log) {
  json frames = json::array();
  for (const LogFrame& frame : log.frames) frames.push_back(to_json(frame));
  return {{"frames", std::move(frames)}, {"after", log.after}, {"more", log.has_more}, {"ended", log.ended}};
}

}  // namespace mycojobs::service
