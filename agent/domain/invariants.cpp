#include "domain/invariants.h"

#include <algorithm>

#include "domain/dispatch_journal.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

constexpr auto kVerifyRules = std::to_array<VerifyRule>({
    {kFactKind, true, "a fact of a kind that nobody knows"},
    {kFactField, true, "a fact that lacks a field, or with a malformed one"},
    {kFactRevision, true, "revisions of a job's facts that do not rise"},
    {kFactOrder, true, "a fact that is not possible in the state that the job was in"},
    {kFactClaim, true, "an owner's fact by a claim that is not the latest, or not live"},
    {kFactEpoch, true, "epochs of a job's claims that do not grow"},
    {kFactCount, true, "attempts or deliveries that do not follow each other"},
    {kAfterEnd, true, "a fact of a job that had ended"},
    {kSecondEnd, true, "two terminal facts in one life of a job"},
    {"fact-missing", true, "a claim lists a fact that its journal does not hold"},
    {"fact-unlisted", true, "a fact that its job's claim does not list: it would outlive the job"},
    {"fact-elsewhere", true, "facts of one job in the journals of two queues"},
    {"claim-type", true, "the key of a claim holds something else"},
    {"claim-missing", true, "facts tell of a job whose claim is gone"},
    {"claim-facts", true, "a claim that is not what the facts of its job say"},
    {"no-place", true, "a job that is not where its state says: nobody will find it"},
    {"two-places", true, "a job that is also in the place of another state"},
    {"lease-index", true, "a live claim and the index of leases disagree"},
    {"lease-overdue", true, "a lease that ran out more than a lease and a second ago: nobody recovers it"},
    {"started-unclaimed", true, "a record that says started without a live claim"},
    {"waiting-ended", true, "a job is parked on one that has ended: nothing will wake it"},
    {"held-free", true, "a job is held by its concurrency key, of which slots are free"},
    {"slot-stray", true, "a job takes a slot and does not run"},
    {"slot-missing", true, "a job runs and takes no slot"},
    {"record-epoch", true, "a record with a higher epoch than its claim: the fence has gone back"},
    {"message-count", true, "the mark of a message does not count its jobs that have not ended"},
    {"object-index", true, "objects and their indexes disagree"},
    {"flow-mark", true, "a flow whose mark is gone, or does not have a job for each node"},
    {"flow-definition", true, "the definition of a flow is gone, or is not what it was"},
    {"flow-journal", true, "entries of a flow's journal that are no facts, or facts that are gone"},
    {"flow-fact", true, "a fact of a flow that is not possible in the state that the run was in"},
    {"flow-checkpoint", true, "a checkpoint that does not say what the facts say"},
    {"flow-index", true, "a flow's mark or indexes are not what its journal says"},
    {"flow-due", true, "there is something to do for a flow, and nobody will look at it"},
    {"flow-job", true, "a job of a flow that is not where its node says"},
    {"flow-unheard", true, "a job of a flow has ended, and its flow will not hear of it"},
    {"flow-orphan", true, "a planned job whose flow is gone or has ended: it will never run"},
    {"waits-circle", false, "jobs that wait for each other: their submitter made it so"},
    {"flow-record", false, "a flow's record that a client has overwritten or deleted; its journal decides"},
    {"flow-job-again", false, "a job whose node has settled was run again by an operator"},
    {"record-words", false, "a record that a client has overwritten; its claim decides"},
    {"record-gone", false, "the record of a job was deleted before it had ended, or before it was retired"},
    {"record-type", false, "another client has overwritten a record"},
    {"entry-second", false, "a queue entry too many, which will be dropped"},
    {"entry-stray", false, "a queue entry that names no job or has no record: a dead letter to be"},
    {"bare-unqueued", false, "a record that was never pushed onto a queue"},
    {"wait-unwatched", false, "a job whose wait is limited, or is not, and the index of limited waits says otherwise"},
    {"not-listed", false, "a job that `job list` does not show: the index by what happened last lacks it"},
    {"log-open", false, "the log of an ended job lacks its last line"},
});

}  // namespace

std::span<const VerifyRule> verify_rules() { return kVerifyRules; }

Finding finding(std::string_view rule, std::string subject, const std::string& text) {
  const auto rules = verify_rules();
  const auto row = std::find_if(rules.begin(), rules.end(), [&](const VerifyRule& each) { return each.name == rule; });
  // What stands in a store may come from anybody: one line of a terminal.
  return {row == rules.end() || row->violation, std::string(rule), std::move(subject), ascii(text, text.size())};
}

}  // namespace mycojobs
