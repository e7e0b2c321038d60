// The server-side scripts. Each file of scripts/ contains the scripts of one subject. The build concatenates each
// script with the definitions of scripts/lib that it uses, and embeds the texts into the program
// (store/scripts/assemble.py).
#pragma once

#include <string_view>

namespace mycojobs {

struct Script {
  std::string_view name, sha1, text;
};

namespace scripts {
extern const Script actor_of_key, agree_on_format, answer_message, arrive_message, await_log, cancel, cancel_message,
    change_record, claim, close_message, context_revision, create_record, database_contexts, delete_actor,
    delete_context, delete_job, delete_record, expire, expire_instance, facts, flow_adopt, flow_await, flow_catalog,
    flow_catalog_drop, flow_commit, flow_create, flow_due, flow_jobs, flow_lead, flow_list, flow_places, flow_put,
    flow_put_jobs, flow_raise, flow_read, flow_repair, flow_reserve, flow_retire, flow_schedule_put, ended_job,
    flow_schedule_places, flow_schedule_remove, flow_schedule_repair, flow_stop_leading, flow_waits, follow_log, grant,
    hold_files, hold_runner, index_actors, job_list, journal_at, known_queues, leases, load, load_some, mail_due,
    message_places, note_refusal, notices_due, object_declare, object_ids, object_index, object_kinds, object_page,
    object_reindex, object_release, object_search, object_write, pending_messages, places, post_message,
    prerequisite_answer, prerequisites_due, prerequisites_settled, purge_queue, release_runner, renew, repair,
    repair_message, report, requeue, reserve_jobs, retire_messages, route_message, settle_dead_letter, settle_mail,
    settle_notice, silent_runners, start_job, submit, survey, take_message, tally, tick, timed_work, topic_send,
    unclaim, upload_begin, upload_complete, upload_expire, world_cell, world_collect, world_commit, world_due,
    world_facts, world_glance, world_mail, world_places, world_post, world_put_manifest, world_read, world_repair;
}  // namespace scripts

}  // namespace mycojobs
