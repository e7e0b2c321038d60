#include "store/prerequisite_answer.h"

#include "domain/prerequisites.h"
#include "store/redis_store.h"

namespace mycojobs {

Result<bool> RedisStore::answer_prerequisite(Id context, const std::string& job_key, const PrerequisiteAnswer& answer) {
  // It becomes a part of a field's name, and of what is looked for in the record.
  if (!is_approval_name(answer.name)) return fail(Code::invalid, "name: is no name of an approval");
  const std::string why = answer.comment.empty() ? "" : ": " + answer.comment;
  const std::string told = "approval:" + answer.name + " was given by " + std::to_string(answer.actor) + why;
  const std::string reason =
      answer.approved ? "" : "approval:" + answer.name + " was rejected by " + std::to_string(answer.actor) + why;
  MJ_TRY(reply, run(context, scripts::prerequisite_answer, Arguments{job_key, answer.name, told, reason}));
  const std::string word(reply.text());
  if (word == "ok") return true;
  if (word == "again" || (word == "met" && answer.approved)) return false;
  if (word == "missing") return fail(Code::not_found, job_key + " does not exist");
  if (word == "over") return fail(Code::conflict, job_key + " has ended");
  if (word == "met") return fail(Code::conflict, job_key + " waits no longer: its prerequisites were met");
  if (word == "early")
    return fail(Code::conflict,
                job_key + " waits in its queue, and no agent has looked at it yet: once one has, answer");
  if (word == "unasked")
    return fail(Code::not_found, job_key + " does not wait for approval:" + answer.name + "; `mycojobs job explain " +
                                     job_key.substr(4) + "` names what it waits for");
  return fail(Code::conflict, job_key + " is a job of flow " + word + ": `mycojobs flow approve " + word + " " +
                                  answer.name + "`, or `mycojobs flow reject " + word + " " + answer.name + "`");
}

Result<bool> answer_prerequisite(Store& store, Id context, const std::string& job_key,
                                 const PrerequisiteAnswer& answer) {
  auto* redis = dynamic_cast<RedisStore*>(&store);
  if (redis == nullptr) return fail(Code::unsupported, "this store takes no answers");
  return redis->answer_prerequisite(context, job_key, answer);
}

}  // namespace mycojobs
