#include "store/key_losses.h"

#include <array>

namespace mycojobs {
namespace {

constexpr std::string_view kNextUse = "nothing: the next use writes it again";

constexpr auto kKeyLosses = std::to_array<KeyLoss>({
    {"mj:queues",
     "`queue list` still finds queues by their lists and journals; limits of waiting and the check after a start of "
     "the "
     "server pass over a queue until a new journal of it begins"},
    {"mj:pushed", kNextUse},
    {"mj:settling", "nothing: a job that waits for one that has ended is found and mended"},
    {"mj:looking", kNextUse},
    {"mj:holding",
     "nothing while slots become free; a job whose key has a free slot already is found by `verify` and mended"},
    {"mj:horizon", "facts of jobs that were just retired may be taken for jobs whose claim is gone"},
    {"mj:paused", "paused queues go on"},
    {"mj:notices", "ends that were not told yet are told to nobody"},
    {"mj:missing", "an entry that waited for its record is gone: push it again"},
    {"mj:dead", "the list of dead letters is empty; their jobs keep their ends"},
    {"mj:anomalies", "the history of anomalies is gone"},
    {"mj:refusals", "the history of refusals is gone"},
    {"mj:artifacts", "nothing: agents that know the names write them again"},
    {"mj:kept-searched", kNextUse},
    {"mj:kept-created", "jobs that were never queued, and messages, are not counted in mj:kept any more"},
    {"mj:log:<job key>", "the output of the job is gone"},
    {"mj:next:<caller>", "an id of a deleted job may be given again; ids of jobs that exist are not"},
    {"mj:actor-looks", kNextUse},
    {"mj:next:actor", "an id of a deleted actor may be given again"},
    {"mj:next:runner", "an id of a deleted runner may be given again"},
    {"mj:next:message:<caller>", "an id of a deleted message may be given again"},
    {"mj:hold:runner:<id>", "nothing: the next heartbeat of the agent takes the id again"},
    {"mj:runners", "nothing: records are looked through every ten minutes"},
    {"mj:topic:<topic>", "messages that waited on the topic are not taken: push their keys again"},
    {"mj:topic-missing:<topic>", "a message that waited for its record is not taken: push its key again"},
    {"mj:message:<message key>",
     "its jobs run on or stay planned, and the message gets no end: end planned jobs with `job cancel`, and send the "
     "message again. One from elsewhere counts as new if it comes again"},
    {"mj:inbox-turns", kNextUse},
    {"mj:world-applies", kNextUse},
    {"mj:world:<world>", "the workflows of the world are gone: restore it from a backup"},
    {"mj:world-in:<world>",
     "events that were not worked off are gone: send them again; ends of effects are found again"},
    {"mj:world-blobs:<world>",
     "instances with a long state stand still: restore it from a backup; a snapshot is taken again"},
    {"mj:world-manifests:<world>", "instances stand still until the same manifest is applied again"},
    {"mj:world-keys:<world>", "an event that is sent again with its idempotency key is taken again"},
    {"mj:world-key-ages:<world>", "idempotency keys of events stay for longer than 7 days"},
    {"mj:osis:object:<namespace>:<kind>:<id>", "the object is gone; its entries in the indexes are removed"},
    {"mj:osis:kind:<namespace>:<kind>", "the kind declares no fields until a script declares them again"},
    {"mj:osis:writer", kNextUse},
    {"mj:osis:waiting", kNextUse},
    {"mj:run:<flow>",
     "a flow under way goes on from its checkpoint; without one it is set back to new, and `flow start` begins it "
     "again "
     "with the ends that its jobs have reached. An ended flow keeps its end and has no history"},
    {"mj:checkpoint:<flow>", "nothing: the run is read from its journal"},
    {"mj:next:flow", "an id of a deleted flow may be given again; ids of flows that exist are not"},
    {"mj:definition:<hash>", "flows of it stand still until a flow of the same definition is created, which stores it"},
    {"mj:schedule:<name>", "the schedule is gone: add it again. `verify` names it"},
    {"mj:coordinator", kNextUse},
    {"mj:format", kNextUse},
    {"mj:server", kNextUse},
    {"mj:health", kNextUse},
    {"mj:heads", "the next start of the server does not compare the journals with what they were"},
});

}  // namespace

std::span<const KeyLoss> key_losses() { return kKeyLosses; }

}  // namespace mycojobs
