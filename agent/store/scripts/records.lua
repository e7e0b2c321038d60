-- Changing and deleting records of actors, contexts, runners, messages and jobs; denied requests.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts. If a
-- key has a wrong type, a script fails with MJTYPE before its first write.

--# change_record: actor_keys
-- Changes fields of an existing record.
-- ARGV: key, fields (list of name, value, ...; an empty value deletes the field), expected (list of name, value, ...
-- that the record must have).
-- Reply: {0, record}; {1} if there is no record; {2} if another actor has the public key; {3, field} if a field does
-- not have the expected value.
-- Repeat: safe; without `expected` the result is the same, otherwise a repeat may fail with 3.
local key, fields, expected = next_arg(), list_arg(), list_arg()
local actor, pubkey = parse_actor_id(key), to_table(fields).pubkey
local err = check_type(key, 'hash') or (actor and check_type(kActorKeysKey, 'hash'))
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
for i = 1, #expected, 2 do
  if (redis.call('HGET', key, expected[i]) or '') ~= expected[i + 1] then return {3, to_printable(expected[i])} end
end
local old_pubkey = actor and pubkey and (redis.call('HGET', key, 'pubkey') or '')
if old_pubkey and pubkey ~= '' and has_other_owner(pubkey, actor) then return {2} end
redis.call('HSET', key, 'updated_at', now_s)
for i = 1, #fields, 2 do
  if fields[i + 1] == '' then redis.call('HDEL', key, fields[i]) else redis.call('HSET', key, fields[i], fields[i + 1]) end
end
if old_pubkey and pubkey ~= '' then add_key_owner(pubkey, actor) end
if old_pubkey and old_pubkey ~= '' and old_pubkey ~= pubkey then remove_key_owner(old_pubkey, actor) end
return {0, redis.call('HGETALL', key)}

--# delete_record: actor_keys dispatch_journal stored_usage
-- Deletes the record of an actor, a context, a runner or a message.
-- ARGV: key.
-- Reply: gone; missing; or the reason why it cannot be deleted, for example jobs that wait for the runner.
-- Repeat: safe; the reply is missing.
local key = next_arg()
local runner, message = string.match(key, '^runner:(%d+)$'), string.match(key, '^message:%d+:%d+$')
local hold_key, mark_key, actor = kRunnerOwnerKey .. (runner or ''), kMessageKey .. key, parse_actor_id(key)
local err = check_type(key, 'hash') or (runner and check_type(hold_key, 'hash')) or check_type(mark_key, 'hash') or check_type(kRunnersKey, 'zset')
  or (actor and check_type(kActorKeysKey, 'hash')) or (message and check_type(kMessagesKey, 'zset'))
if err then return err end
if redis.call('EXISTS', key) == 0 then return 'missing' end
-- Returns whether the list contains the entry, or any entry if none is given.
local function is_in_list(list, entry)
  if key_type(list) ~= 'list' then return false end
  return not entry or redis.call('LPOS', list, entry)
end

if runner then
  local holder = to_table(redis.call('HGETALL', hold_key))
  if holder.instance and now_ms <= to_number(holder.until_ms) then return 'an agent on ' .. to_printable(holder.host or '?') .. ' is this runner' end
  local topic = redis.call('HGET', key, 'topic') or ''
  if topic == '' then topic = 'runner' .. runner end
  err = check_type(kRunnerQueueKey .. runner, 'list') or check_type(kTopicKey .. topic, 'list')
  if err then return err end
  if is_in_list(kRunnerQueueKey .. runner) then return 'jobs wait for it in ' .. kRunnerQueueKey .. runner end
  if is_in_list(kTopicKey .. topic) then return 'messages wait for it on the topic ' .. to_printable(topic) end
  redis.call('UNLINK', key, hold_key)
  redis.call('ZREM', kRunnersKey, runner)
  return 'gone'
end
if message then
  local record = redis.call('HMGET', key, 'topic', 'status', 'message_type')
  local open_jobs = to_number(redis.call('HGET', mark_key, 'left') or nil)
  if open_jobs > 0 then return to_integer_text(open_jobs) .. ' of its jobs have not ended' end
  if record[2] == kMessageStatusAcknowledged and record[3] ~= 'chat' and record[3] ~= 'mail' then return 'its result is awaited' end
  err = check_type('msg_in', 'list') or check_type(kReceivedKey, 'hash')
  if err then return err end
  for _, list in ipairs({kTopicKey .. (record[1] or ''), 'msg_out', 'msg_out_coordinator'}) do
    err = check_type(list, 'list')
    if err then return err end
    if is_in_list(list, key) then return 'it waits in ' .. to_printable(list) end
  end
  local mark_fields = to_table(redis.call('HGETALL', mark_key))
  if mark_fields.state == kMessageStateArrived or mark_fields.state == kMessageStateAway then return 'it is ' .. mark_fields.state end
  if mark_fields.answer == kAnswerStateDue then return 'its sender has not received its end yet' end
  if is_in_list('msg_in', key) then redis.call('LREM', 'msg_in', 0, key) end
  release_message_charge(key)
  if to_number(mark_fields.fresh_until) > now_ms then  -- the mark must recognise a repeat of the message until then
    redis.call('ZADD', kMessagesKey, to_integer_text(now_ms), key)
    redis.call('UNLINK', key)
    return 'gone'
  end
end
local pubkey, content = actor and redis.call('HGET', key, 'pubkey'), message and redis.call('HGET', mark_key, 'content')
redis.call('UNLINK', key, mark_key)
if pubkey then remove_key_owner(pubkey, actor) end
if content and redis.pcall('HGET', kReceivedKey, content) == key then redis.call('HDEL', kReceivedKey, content) end
return 'gone'

--# delete_actor: actor_keys
-- Deletes the record of an actor if records of contexts have not changed.
-- ARGV: id, expected (list of database, context, field and value in turn; an empty value: the field is absent). The
-- records of the contexts may be in other databases of the same server. SELECT is called for these only, since some
-- services forbid it.
-- Reply: gone; missing; or changed if a field has another value.
-- Repeat: safe; the reply is missing.
local id, expected = next_arg(), list_arg()
local key = 'actor:' .. id
local err = check_type(key, 'hash') or check_type(kActorKeysKey, 'hash')
if err then return err end
local changed, current = false, '0'
for i = 1, #expected, 4 do
  if expected[i] ~= current then redis.call('SELECT', expected[i]) end
  current = expected[i]
  local record = 'context:' .. expected[i + 1]
  err = check_type(record, 'hash')
  if err then return err end
  changed = changed or (redis.call('HGET', record, expected[i + 2]) or '') ~= expected[i + 3]
end
if changed then return 'changed' end
if current ~= '0' then redis.call('SELECT', '0') end
if redis.call('EXISTS', key) == 0 then return 'missing' end
local pubkey = redis.call('HGET', key, 'pubkey')
redis.call('UNLINK', key)
if pubkey then remove_key_owner(pubkey, id) end
return 'gone'

--# context_revision: contexts
-- Returns compute_context_revision(). ARGV: context (id). Read-only.
return compute_context_revision(next_arg())

--# delete_context: contexts
-- Deletes the record of a context if the context has not changed since its revision was read.
-- ARGV: context (id), revision (of context_revision).
-- Reply: 1; or 0 if the context has changed.
-- Repeat: safe; the reply is 0.
local context, revision = next_arg(), next_arg()
local err = check_type('context:' .. context, 'hash')
if err then return err end
if compute_context_revision(context) ~= revision then return 0 end
redis.call('UNLINK', 'context:' .. context)
return 1

--# delete_job: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Deletes a job that has ended or was never queued, with its log and facts.
-- ARGV: job (key).
-- Reply: gone; missing; or the reason why it cannot be deleted.
-- Repeat: safe; the reply is missing.
local job = next_arg()
local err = check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash') or check_index_types() or check_type(kJournalHorizonKey, 'hash')
if err then return err end
local claim = read_claim(job)
if claim.state == kJobStateEnded then
  local reason = retention_obstacle(job, claim)
  if reason then return reason end
  delete_ended_job(job, claim)
  return 'gone'
end
if claim.state then return 'it lives: ' .. claim.state end
if redis.call('EXISTS', job) == 0 then return 'missing' end
local queue = 'queue:' .. (redis.call('HGET', job, 'script_type') or '')
if not is_only_created(job, {}, redis.call('HGET', job, 'detail')) and is_in_recent_entries(queue, job) then return 'it waits in ' .. to_printable(queue) end
release_idempotency_keys(job, claim)
release_job_charge(job, claim)
redis.call('UNLINK', job, kClaimKey .. job, kLogKey .. job, kJobFilesKey .. job)
redis.pcall('ZREM', kJobsKey, job)
return 'gone'

--# note_refusal: refusals
-- Adds an entry to the list of denied requests. ARGV: actor (id), action, resource, access_list (texts of the table of
-- rights).
-- Reply: number of the entry. A repeat adds a second entry.
local actor, action, resource, access_list = next_arg(), next_arg(), next_arg(), next_arg()
local err = check_type(kRefusalsKey, 'stream')
if err then return err end
return add_refusal(redis.call('XREVRANGE', kRefusalsKey, '+', '-', 'COUNT', 1)[1], actor, action, resource, access_list)
