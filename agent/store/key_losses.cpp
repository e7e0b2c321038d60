#include "store/key_losses.h"

#include <array>

namespace mycojobs {
namespace {

constexpr std::string_view kNextUse = "nothing: the next use writes it again";

constexpr auto kKeyLosses = std::to_array<KeyLossImpact>({
    {"mj:queues",
     "`queue list` still finds queues by their lists and journals; limits of waiting and the check after a start of "
     "the "
     "server skip a queue until a new journal of the queue begins"},
    {"mj:pushed", kNextUse},
    {"mj:settling", "nothing: a job that waits for an ended job is found and repaired"},
    {"mj:looking", kNextUse},
    {"mj:holding",
     "nothing while slots become free; a job whose key already has a free slot is found and repaired by `verify`"},
    {"mj:horizon", "facts of recently retired jobs may be reported as jobs without a claim"},
    {"mj:paused", "paused queues are resumed"},
    {"mj:notices", "pending notifications of ends are not sent"},
    {"mj:missing", "an entry that waited for its record is lost: push it again"},
    {"mj:dead", "the list of dead letters is empty; their jobs keep their ends"},
    {"mj:anomalies", "the history of anomalies is lost"},
    {"mj:refusals", "the history of refusals is lost"},
    {"mj:artifacts", "nothing: agents that know the names write them again"},
    {"mj:kept-searched", kNextUse},
    {"mj:kept-created", "jobs that were never queued, and messages, are not counted in mj:kept any more"},
    {"mj:log:<job key>", "the output of the job is lost"},
    {"mj:next:<caller>", "the id of a deleted job may be assigned again; ids of existing jobs are not"},
    {"mj:actor-looks", kNextUse},
    {"mj:next:actor", "the id of a deleted actor may be assigned again"},
    {"mj:next:runner", "the id of a deleted runner may be assigned again"},
    {"mj:next:message:<caller>", "the id of a deleted message may be assigned again"},
    {"mj:hold:runner:<id>", "nothing: the next heartbeat of the agent claims the id again"},
    {"mj:runners", "nothing: records are scanned every ten minutes"},
    {"mj:topic:<topic>", "messages that waited on the topic are not processed: push their keys again"},
    {"mj:topic-missing:<topic>", "a message that waited for its record is not processed: push its key again"},
    {"mj:message:<message key>",
     "its jobs continue or stay planned, and the message has no end: end planned jobs with `job cancel` and send the "
     "message again. A message from another context counts as new if it is received again"},
    {"mj:inbox-turns", kNextUse},
    {"mj:world-applies", kNextUse},
    {"mj:world:<world>", "the workflows of the deployment are lost: restore it from a backup"},
    {"mj:world-in:<world>", "unprocessed events are lost: send them again; ends of effects are found again"},
    {"mj:world-blobs:<world>",
     "instances with a long state cannot continue: restore it from a backup; a snapshot is taken again"},
    {"mj:world-manifests:<world>", "instances wait until the same manifest is applied again"},
    {"mj:world-keys:<world>", "an event that is sent again with its idempotency key is processed again"},
    {"mj:world-key-ages:<world>", "idempotency keys of events stay for longer than 7 days"},
    {"mj:osis:object:<namespace>:<kind>:<id>", "the object is lost; its entries in the indexes are removed"},
    {"mj:osis:kind:<namespace>:<kind>", "the kind declares no fields until a script declares them again"},
    {"mj:osis:writer", kNextUse},
    {"mj:osis:waiting", kNextUse},
    {"mj:run:<flow>",
     "a running flow resumes from its checkpoint; without a checkpoint it is reset to new, and `flow start` starts it "
     "again with the ends of its jobs. An ended flow keeps its end and has no history"},
    {"mj:checkpoint:<flow>", "nothing: the run is read from its journal"},
    {"mj:next:flow", "an id of a deleted flow may be given again; ids of flows that exist are not"},
    {"mj:definition:<hash>", "its flows wait until a flow of the same definition is created, which stores it"},
    {"mj:schedule:<name>", "the schedule is lost: add it again. `verify` reports it"},
    {"mj:coordinator", kNextUse},
    {"mj:format", kNextUse},
    {"mj:server", kNextUse},
    {"mj:health", kNextUse},
    {"mj:heads", "the next start of the server does not compare the journals with what they were"},
});

}  // namespace

std::span<const KeyLossImpact> key_losses() { return kKeyLosses; }

}  // namespace mycojobs
