-- Jobs and other records: submitting, reading, listing, cancelling, and queuing again.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# submit: ids dispatch_journal job_indexes stored_usage
-- Writes new jobs of one caller, all of them or none.
-- ARGV: caller (id), is_queued (flag: also queue the jobs), count, the quotas in bytes of a caller and of the context,
-- then for each job: id (0: allocate), queue, accepted (key of an existing job with the same content, or empty),
-- idempotency key (or empty), fields (list), contents of its files (list of field, content, ...). No two jobs have the
-- same id or idempotency key, and either all jobs have an id or none.
-- Reply: {new, time in s, time in ms, {id, detail}...}, where the detail is empty for accepted jobs; or {there,
-- {{index, exists or used, key, record}...}} if jobs exist that were not accepted; or {wrong, index, error} if a key of
-- a job has a wrong type. Nothing is written in the last two cases.
-- Errors: MJFULL if a quota is exceeded or the caller has no free id.
-- Repeat: safe for jobs with an id or an idempotency key; these are reported as existing.
local caller, is_queued, count = next_arg(), next_arg() == '1', to_number(next_arg())
read_quota()
local counter, names_key = kNextIdKey .. caller, kIdempotencyKey .. caller
local err = check_index_types() or check_type(counter, 'string') or check_type(names_key, 'hash')
if err then return err end
-- After more than this many bytes of existing records, the reply omits the others.
local kMaxReplyBytes = 8388608
local queue_errors, jobs, existing, reply_bytes, last_id, total_charge = {}, {}, {}, 0, nil, 0  -- charge in bytes

local function job_key(id) return 'job:' .. caller .. ':' .. to_integer_text(id) end
local function next_key()
  last_id = find_free_ids(last_id or to_number(redis.call('GET', counter)), 1, function(id) return is_used(job_key(id)) end)
  if last_id then return job_key(last_id) end
  return nil, redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left')
end
-- Returns the error for the index of priorities. The list of a queue is checked once for all jobs of that queue.
local function check_priorities_type(queue, priority)
  return valid_priority(priority) ~= '0' and check_type(kPriorityKey .. queue, 'zset') or nil
end
-- Returns the key for a new job; or nil and {exists or used, key}; or nil and an error.
local function find_job_key(id, idempotency_key)
  local first_job = idempotency_key and redis.call('HGET', names_key, idempotency_key)
  if first_job then return nil, {key_type(first_job) == 'hash' and 'exists' or 'used', first_job} end
  if id == 0 then return next_key() end
  local job = job_key(id)
  local err = check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
  if err then return nil, err end
  if redis.call('EXISTS', job) == 1 then return nil, {'exists', job} end
  if is_used(job) then return nil, {'used', job} end
  return job
end
for i = 1, count do
  local id, queue, accepted, idempotency_key, fields, files = to_number(next_arg()), next_arg(), next_arg(), next_arg(), list_arg(), list_arg()
  local record = to_table(fields)
  if idempotency_key == '' then idempotency_key = nil end
  if queue_errors[queue] == nil then queue_errors[queue] = is_queued and check_type(queue, 'list') or false end
  local job, conflict = find_job_key(id, idempotency_key)
  err = queue_errors[queue] or conflict and conflict.err and conflict or is_queued and check_priorities_type(queue, record.priority)
    or job and check_job_files(job, files)
  if err then return {'wrong', to_integer_text(i), err.err} end
  if not conflict then
    jobs[i] = {key = job, queue = queue, idempotency_key = idempotency_key, fields = fields, record = record, files = files, charge_bytes = record_charge(fields, files)}
    total_charge = total_charge + jobs[i].charge_bytes
  elseif accepted == conflict[2] and conflict[1] == 'exists' then
    jobs[i] = {key = accepted}
  elseif reply_bytes <= kMaxReplyBytes then
    local conflict_record = conflict[1] == 'exists' and redis.call('HGETALL', conflict[2]) or {}
    for _, text in ipairs(conflict_record) do reply_bytes = reply_bytes + #text end
    existing[#existing + 1] = {to_integer_text(i), conflict[1], conflict[2], conflict_record}
  end
end
if #existing > 0 then return {'there', existing} end
local setting, limit = charge(caller, total_charge, kQuotaEighths)
if setting then return quota_error(caller, setting, limit) end

-- Writes to the same key are combined into one command, since the number of commands determines how long the script
-- takes.
local reply, new_names, pushes, change_times, created = {'new', now_s, to_integer_text(now_ms)}, {}, {}, {}, {}
for _, new_job in ipairs(jobs) do
  local job, fields, detail = new_job.key, new_job.fields, ''
  if fields then
    local record = new_job.record
    detail = not is_queued and 'created' or to_number(record.run_at_ms) > now_ms and 'delayed' or 'queued'
    fields[#fields + 1] = 'detail'
    fields[#fields + 1] = detail
    if is_queued then
      fields[#fields + 1] = 'queued_ms'
      fields[#fields + 1] = to_integer_text(now_ms)
    end
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'status', kJobStatusDispatched, 'created_at', now_s, 'updated_at', now_s,
      unpack(fields))
    write_job_files(job, new_job.files)
    if new_job.idempotency_key then
      new_names[#new_names + 1] = new_job.idempotency_key
      new_names[#new_names + 1] = job
    end
    if is_queued then
      pushes[new_job.queue] = pushes[new_job.queue] or {}
      enqueue_new_job(job, new_job.queue, record, pushes[new_job.queue], 'kept', to_integer_text(new_job.charge_bytes))
      keep_inputs(job, record.inputs, record.dependends)
    else
      created[#created + 1] = job
      created[#created + 1] = to_integer_text(new_job.charge_bytes)
    end
    change_times[#change_times + 1] = to_integer_text(now_us)
    change_times[#change_times + 1] = job
  end
  reply[#reply + 1] = {string.match(job, '%d+$'), detail}
end
if #new_names > 0 then redis.call('HSET', names_key, unpack(new_names)) end
if #created > 0 then call_index('HSET', kStoredBytesUnqueuedKey, unpack(created)) end
for queue, pushed_jobs in pairs(pushes) do
  if #pushed_jobs > 0 and redis.call('LPUSH', queue, unpack(pushed_jobs)) == #pushed_jobs then publish_filled_queue(queue) end
end
if #change_times > 0 then call_index('ZADD', kJobsKey, unpack(change_times)) end
if last_id then redis.call('SET', counter, to_integer_text(last_id)) end
return reply

--# create_record: actor_keys ids dispatch_journal stored_usage
-- Writes a record that is in no queue: an actor, context, runner or message.
-- ARGV: prefix (of the key), counter (key), id (0: allocate), fields (list), the quotas in bytes of a caller and of the
-- context.
-- Reply: {new, exists, used or taken, key, record}. The first text is `used` if the key was used before and its record
-- was deleted, and `taken` if another actor has the public key.
-- Errors: MJFULL if a quota is exceeded or no id is free.
-- Repeat: safe with an id: the reply is exists. Without an id a repeat writes another record.
local prefix, counter, id, fields = next_arg(), next_arg(), to_number(next_arg()), list_arg()
read_quota()
local is_runner, pubkey = prefix == 'runner:', prefix == 'actor:' and to_table(fields).pubkey
if pubkey == '' then pubkey = nil end
local err = check_type(counter, 'string') or (is_runner and check_type(kRunnersKey, 'zset'))
  or (pubkey and check_type(kActorKeysKey, 'hash'))
if err then return err end
local allocates_id = id == 0
if allocates_id then
  id = find_free_ids(to_number(redis.call('GET', counter)), 1, function(candidate) return is_used(prefix .. to_integer_text(candidate)) end)
  if not id then return redis.error_reply('MJFULL ' .. to_printable(prefix) .. ' has no free id left') end
end
local key = prefix .. to_integer_text(id)
err = check_type(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return {'exists', key, redis.call('HGETALL', key)} end
if is_used(key) then return {'used', key, {}} end
if pubkey and has_other_owner(pubkey, to_integer_text(id)) then return {'taken', key, {}} end
local caller, charge_bytes = string.match(prefix, '^message:(%d+):$'), record_charge(fields)
if caller then
  local setting, limit = charge(caller, charge_bytes, kQuotaEighths)
  if setting then return quota_error(caller, setting, limit) end
  call_index('HSET', kStoredBytesUnqueuedKey, key, to_integer_text(charge_bytes))
end
redis.call('HSET', key, 'id', to_integer_text(id), 'created_at', now_s, 'updated_at', now_s, unpack(fields))
if is_runner then redis.call('ZADD', kRunnersKey, 'NX', 0, to_integer_text(id)) end
if pubkey then add_key_owner(pubkey, to_integer_text(id)) end
if allocates_id then redis.call('SET', counter, to_integer_text(id)) end
return {'new', key, redis.call('HGETALL', key)}

--# start_job: dispatch_journal job_indexes
-- Queues a job that was created without a queue entry.
-- ARGV: job (key), queue.
-- Reply: {missing, queued or known, record}. The first text is `known` if the job is queued, is planned, runs or has
-- ended.
-- Repeat: safe; the reply is known.
local job, queue = next_arg(), next_arg()
local err = check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash') or check_type(queue, 'list') or check_index_types()
if err then return err end
if redis.call('EXISTS', job) == 0 then return {'missing', {}} end
local function make_known_reply() return {'known', redis.call('HGETALL', job)} end
if redis.call('EXISTS', kClaimKey .. job) == 1 or redis.call('HGET', job, 'status') ~= kJobStatusDispatched then return make_known_reply() end
local record = to_table(redis.call('HGETALL', job))
err = check_queue_types(queue, valid_priority(record.priority))
if err then return err end
if not is_only_created(job, {}, record.detail) and is_in_recent_entries(queue, job) then return make_known_reply() end
local is_delayed = to_number(record.run_at_ms) > now_ms
redis.call('HSET', job, 'detail', is_delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', to_integer_text(now_ms))
enqueue_new_job(job, queue, record)
if to_number(record.flow_id) == 0 then keep_inputs(job, record.inputs, record.dependends) end
update_change_time(job)
return {'queued', redis.call('HGETALL', job)}

--# load:
-- Reads a hash, or some of its fields.
-- ARGV: key, max_bytes, names (list; empty for all fields).
-- Reply: {0, {name, value, ...}}; {1} if the key does not exist; {2, field, bytes} if the hash is longer.
-- Repeat: safe; read-only.
local key, max_bytes, names = next_arg(), to_number(next_arg()), list_arg()
local err = check_type(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
if #names == 0 then
  local field, size = find_oversized_field(key, max_bytes)
  if field then return {2, field, to_integer_text(size)} end
  return {0, redis.call('HGETALL', key)}
end
local fields, bytes = {}, 0
for _, name in ipairs(names) do
  local size = redis.call('HSTRLEN', key, name)
  bytes = bytes + size
  if bytes > max_bytes then return {2, to_printable(name), to_integer_text(size)} end
  local value = redis.call('HGET', key, name)
  if value then
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
return {0, fields}

--# load_some:
-- Reads the same fields of several hashes. Fields longer than 1 MiB and keys of other types are left out.
-- ARGV: keys (list), names (list).
-- Reply: {{name, value, ...}...} for the first keys, until the values have 8 MiB.
-- Repeat: safe; read-only.
local keys, names = list_arg(), list_arg()
local rows, bytes = {}, 0
for i, key in ipairs(keys) do
  local fields = {}
  for _, name in ipairs(key_type(key) == 'hash' and names or {}) do
    local size = redis.call('HSTRLEN', key, name)
    local value = size <= 1048576 and redis.call('HGET', key, name)
    if value then
      fields[#fields + 1], fields[#fields + 2] = name, value
      bytes = bytes + size
    end
  end
  rows[i] = fields
  if bytes > 8388608 then break end
end
return rows

--# ended_job: dispatch_journal
-- Reads the record of a job together with the fields of its claim that describe its end. Clients cannot write the
-- claim.
-- ARGV: job (key), max_bytes (of the record).
-- Reply: {0, record, {name, value, ...} of the claim, 1 if status, detail and error of the record are those of an end
-- that the system has set}; {1} or {2, field, bytes} as in load.
-- Repeat: safe; read-only.
local job, max_bytes = next_arg(), to_number(next_arg())
local claim_key = kClaimKey .. job
local err = check_type(job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 then return {1} end
local field, size = find_oversized_field(job, max_bytes)
if field then return {2, field, to_integer_text(size)} end
local record, claim = redis.call('HGETALL', job), {}
for _, name in ipairs(key_type(claim_key) == 'hash' and {'state', 'status', 'detail', 'end', 'claim_id', 'runner', 'idem'} or {}) do
  local value = redis.call('HGET', claim_key, name)
  if value then claim[#claim + 1], claim[#claim + 2] = name, value end
end
local record_fields, claim_fields = to_table(record), to_table(claim)
local by_system = digest({'status', record_fields.status or '', 'detail', record_fields.detail or '', 'error', record_fields.error or ''})
return {0, record, claim, claim_fields['end'] == by_system and '1' or '0'}

--# await_log: dispatch_journal
-- Creates the empty log of a job that has not ended, so that clients may block on the log until its first entry: a line
-- or the end. The end of a job without a log is in its record only.
-- ARGV: job (key).
-- Reply: 1 if the log exists, 0 if it does not and will not.
-- Errors: MJTYPE if the log has a wrong type.
-- Repeat: safe.
local job = next_arg()
local key = kLogKey .. job
local err = check_type(key, 'stream') or check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return 1 end
local state, status = redis.call('HGET', kClaimKey .. job, 'state'), redis.call('HGET', job, 'status')
local has_ended = state == kJobStateEnded or not state and status ~= kJobStatusDispatched and status ~= kJobStatusStarted
  and status ~= kJobStatusWaitingForPrerequisites
if has_ended then return 0 end
-- The entry is deleted at once. Its id is lower than that of the first entry of each log.
redis.call('XADD', key, '0-1', 'awaited', 1)
redis.call('XDEL', key, '0-1')
return 1

--# job_list:
-- Lists jobs, the latest change first. The first page also has jobs of plain clients that are in a queue but not in
-- mj:jobs.
-- ARGV: max_examined (jobs), max_jobs (jobs to return), cursor and skip (position from the last reply; empty and 0:
-- begin), since_us, then the filters, where empty matches all: status, state, name (part of it), script_type, caller
-- (id); queues (list) to search for jobs of plain clients.
-- Reply: {number of examined jobs, cursor and skip for the next page (empty and 0 after the last page), {jobs...},
-- {jobs of plain clients...}}. Each job is {key, time of the last change in us, type of the key, record}.
-- Repeat: safe; read-only.
local max_examined, max_jobs, cursor, skip, since_us = to_number(next_arg()), to_number(next_arg()), next_arg(), to_number(next_arg()), next_arg()
local status, state, name, script_type, caller, queues = next_arg(), next_arg(), next_arg(), next_arg(), next_arg(), list_arg()
local err = check_type(kJobsKey, 'zset')
if err then return err end
local kRecord = {'id', 'caller_id', 'context_id', 'script_type', 'status', 'detail', 'error', 'name', 'flow_id', 'created_at',
  'updated_at', 'attempt', 'deliveries', 'runner_id', 'priority', 'queued_ms', 'started_ms', 'ended_ms', 'run_at_ms'}

-- A node that its flow has skipped has the status `error` without a failure. A filter for errors must name its detail.
local kSkippedDetails = {skipped = true, not_needed = true}

-- Returns whether a job matches the filters. Most jobs do not match, so only the needed fields are read here.
local function matches_filter(job, record_type)
  if caller ~= '' and string.match(job, '^job:(%d+):') ~= caller then return false end
  if status .. state .. name .. script_type == '' then return true end
  local values = record_type == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'script_type', 'name') or {}
  local job_state, detail = values[1] or '', values[2] or ''
  if status == kJobStatusError and state == '' and kSkippedDetails[detail] then return false end
  return (status == '' or job_state == status) and (state == '' or job_state == state or detail == state)
    and (script_type == '' or values[3] == script_type) and (name == '' or string.find(values[4] or '', name, 1, true))
end
-- Returns the type and the record of a job that exists and matches the filters, otherwise nothing.
local function load_matching_job(job)
  if not is_job_key(job) then return end
  local record_type, record = key_type(job), {}
  if record_type == 'none' or not matches_filter(job, record_type) then return end
  if record_type == 'hash' then
    for i, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then
        record[#record + 1] = kRecord[i]
        record[#record + 1] = value
      end
    end
  end
  return record_type, record
end

local examined, unindexed_jobs, jobs, kMaxQueues = 0, {}, {}, 100
if cursor == '' then
  if key_type(kQueuesKey) == 'set' then
    for _, queue in ipairs(redis.call('SRANDMEMBER', kQueuesKey, kMaxQueues)) do queues[#queues + 1] = queue end
  end
  local is_examined = {}
  for i = 1, math.min(#queues, kMaxQueues) do
    for _, job in ipairs(key_type(queues[i]) == 'list' and redis.call('LRANGE', queues[i], 0, math.max(max_examined, 100) - 1) or {}) do
      if examined >= max_examined then break end
      if not is_examined[job] and is_job_key(job) and not redis.call('ZSCORE', kJobsKey, job) then
        examined, is_examined[job] = examined + 1, true
        local record_type, record = load_matching_job(job)
        local fields = to_table(record or {})
        local changed_us = record_type and 1000000 * math.max(to_number(fields.updated_at), to_number(fields.created_at)) or 0
        if changed_us == 0 or changed_us > now_us then changed_us = now_us end
        if record_type and changed_us >= to_number(since_us) then unindexed_jobs[#unindexed_jobs + 1] = {job, to_integer_text(changed_us), record_type, record} end
      end
    end
  end
end

local page = redis.call('ZRANGE', kJobsKey, cursor == '' and '+inf' or cursor, since_us, 'BYSCORE', 'REV', 'LIMIT', skip, max_examined,
  'WITHSCORES')
local next_cursor, page_entries = cursor, 0
for i = 1, #page, 2 do
  if #jobs >= max_jobs then break end
  page_entries = page_entries + 1
  local job, changed_us = page[i], to_integer_text(to_number(page[i + 1]))
  examined = examined + 1
  if changed_us ~= next_cursor then next_cursor, skip = changed_us, 0 end
  skip = skip + 1
  local record_type, record = load_matching_job(job)
  if record_type then jobs[#jobs + 1] = {job, changed_us, record_type, record} end
end
if page_entries < max_examined and 2 * page_entries == #page then next_cursor, skip = '', 0 end
return {examined, next_cursor, skip, jobs, unindexed_jobs}

--# cancel: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Cancels a job.
-- ARGV: job (key).
-- Reply: ended, asked, over or missing, as cancel_job() returns it.
-- Repeat: safe; the reply is over after the end.
local job = next_arg()
local err = check_index_types() or check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
if err then return err end
return cancel_job(job, read_claim(job))

--# requeue: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Queues a job that ended as `error` again.
-- ARGV: job (key).
-- Reply: empty if it is queued, missing, or the reason why not.
-- Repeat: safe; a queued job is refused.
local job = next_arg()
local err = check_index_types() or check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 and redis.call('EXISTS', kClaimKey .. job) == 0 then return 'missing' end
return requeue_ended_job(job, read_claim(job)) or ''
