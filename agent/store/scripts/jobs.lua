-- Jobs and other records: submitting, reading, listing, cancelling, and queuing again.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# submit: ids dispatch_journal job_indexes kept
-- Writes new jobs of one caller, all of them or none.
-- ARGV: caller (id), queued (flag: also queue the jobs), count, the quotas in bytes of a caller and of the context,
-- then for each job: id (0: allocate), queue, accepted (key of an existing job with the same content, or empty),
-- idempotency key (or empty), fields (list). No two jobs have the same id or idempotency key, and either all jobs have
-- an id or none.
-- Reply: {new, time in s, time in ms, {id, detail}...}, where the detail is empty for accepted jobs; or {there,
-- {{index, exists or used, key, record}...}} if jobs exist that were not accepted; or {wrong, index, error} if a key of
-- a job has a wrong type. Nothing is written in the last two cases.
-- Errors: MJFULL if a quota is exceeded or the caller has no free id.
-- Repeat: safe for jobs with an id or an idempotency key; these are reported as existing.
local caller, queued, count = arg(), arg() == '1', to_number(arg())
read_quota()
local counter, names = 'mj:next:' .. caller, 'mj:idempotency:' .. caller
local shared = check_shared_types() or check_type(counter, 'string') or check_type(names, 'hash')
if shared then return shared end
-- The reply contains existing records until they have this many bytes; the record that exceeds the limit is included.
local kMaxBytes = 8388608
local queues, jobs, there, bytes, last_id, kept = {}, {}, {}, 0, nil, 0

local function key_of(id) return 'job:' .. caller .. ':' .. to_integer_text(id) end
local function next_key()
  last_id = free_ids(last_id or to_number(redis.call('GET', counter)), 1, function(id) return is_used(key_of(id)) end)
  if last_id then return key_of(last_id) end
  return nil, redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left')
end
-- Returns the error for the index of priorities. The list of a queue is checked once for all jobs of that queue.
local function check_priorities_type(queue, priority)
  return valid_priority(priority) ~= '0' and check_type('mj:priority:' .. queue, 'zset') or nil
end
-- Returns the key for a new job; or nil and {exists or used, key}; or nil and an error.
local function scan_jobs(id, name)
  local first = name and redis.call('HGET', names, name)
  if first then return nil, {type_of(first) == 'hash' and 'exists' or 'used', first} end
  if id == 0 then return next_key() end
  local job = key_of(id)
  local err = check_type(job, 'hash') or check_type('mj:claim:' .. job, 'hash')
  if err then return nil, err end
  if redis.call('EXISTS', job) == 1 then return nil, {'exists', job} end
  if is_used(job) then return nil, {'used', job} end
  return job
end
for i = 1, count do
  local id, queue, accepted, name, fields = to_number(arg()), arg(), arg(), arg(), list_arg()
  local wanted = to_table(fields)
  if name == '' then name = nil end
  if queues[queue] == nil then queues[queue] = queued and check_type(queue, 'list') or false end
  local job, found = scan_jobs(id, name)
  local err = queues[queue] or found and found.err and found or queued and check_priorities_type(queue, wanted.priority)
  if err then return {'wrong', to_integer_text(i), err.err} end
  if not found then
    jobs[i] = {job = job, queue = queue, name = name, fields = fields, wanted = wanted, kept = record_charge(fields)}
    kept = kept + jobs[i].kept
  elseif accepted == found[2] and found[1] == 'exists' then
    jobs[i] = {job = accepted}
  elseif bytes <= kMaxBytes then
    local record = found[1] == 'exists' and redis.call('HGETALL', found[2]) or {}
    for _, text in ipairs(record) do bytes = bytes + #text end
    there[#there + 1] = {to_integer_text(i), found[1], found[2], record}
  end
end
if #there > 0 then return {'there', there} end
local setting, limit = charge(caller, kept, kAtQuota)
if setting then return quota_error(caller, setting, limit) end

-- Writes to the same key are combined into one command, since the number of commands determines how long the script
-- takes.
local answer, named, pushes, seen, created = {'new', now_s, to_integer_text(now_ms)}, {}, {}, {}, {}
for _, each in ipairs(jobs) do
  local job, fields, detail = each.job, each.fields, ''
  if fields then
    local wanted = each.wanted
    detail = not queued and 'created' or to_number(wanted.run_at_ms) > now_ms and 'delayed' or 'queued'
    fields[#fields + 1] = 'detail'
    fields[#fields + 1] = detail
    if queued then
      fields[#fields + 1] = 'queued_ms'
      fields[#fields + 1] = to_integer_text(now_ms)
    end
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'status', 'dispatched', 'created_at', now_s, 'updated_at', now_s,
      unpack(fields))
    if each.name then
      named[#named + 1] = each.name
      named[#named + 1] = job
    end
    if queued then
      pushes[each.queue] = pushes[each.queue] or {}
      queue_or_delay_new(job, each.queue, wanted, pushes[each.queue], 'kept', to_integer_text(each.kept))
    else
      created[#created + 1] = job
      created[#created + 1] = to_integer_text(each.kept)
    end
    seen[#seen + 1] = to_integer_text(now_us)
    seen[#seen + 1] = job
  end
  answer[#answer + 1] = {string.match(job, '%d+$'), detail}
end
if #named > 0 then redis.call('HSET', names, unpack(named)) end
if #created > 0 then call_index('HSET', kKeptCreated, unpack(created)) end
for queue, list in pairs(pushes) do
  if #list > 0 then redis.call('LPUSH', queue, unpack(list)) end
end
if #seen > 0 then call_index('ZADD', 'mj:jobs', unpack(seen)) end
if last_id then redis.call('SET', counter, to_integer_text(last_id)) end
return answer

--# create_record: actor_keys ids dispatch_journal kept
-- Writes a record that is in no queue: an actor, context, runner or message.
-- ARGV: prefix (of the key), counter (key), id (0: allocate), fields (list), the quotas in bytes of a caller and of the
-- context.
-- Reply: {new, exists, used or taken, key, record}. used: the key was used before and its record was deleted; taken:
-- another actor has the public key.
-- Errors: MJFULL if a quota is exceeded or no id is free.
-- Repeat: safe with an id: the reply is exists. Without an id a repeat writes another record.
local prefix, counter, id, fields = arg(), arg(), to_number(arg()), list_arg()
read_quota()
local indexed, pubkey = prefix == 'runner:', prefix == 'actor:' and to_table(fields).pubkey
if pubkey == '' then pubkey = nil end
local err = check_type(counter, 'string') or (indexed and check_type('mj:runners', 'zset'))
  or (pubkey and check_type('mj:actor-keys', 'hash'))
if err then return err end
local allocate = id == 0
if allocate then
  id = free_ids(to_number(redis.call('GET', counter)), 1, function(each) return is_used(prefix .. to_integer_text(each)) end)
  if not id then return redis.error_reply('MJFULL ' .. to_printable(prefix) .. ' has no free id left') end
end
local key = prefix .. to_integer_text(id)
err = check_type(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return {'exists', key, redis.call('HGETALL', key)} end
if is_used(key) then return {'used', key, {}} end
if pubkey and has_other_owner(pubkey, to_integer_text(id)) then return {'taken', key, {}} end
local caller, kept = string.match(prefix, '^message:(%d+):$'), record_charge(fields)
if caller then
  local setting, limit = charge(caller, kept, kAtQuota)
  if setting then return quota_error(caller, setting, limit) end
  call_index('HSET', kKeptCreated, key, to_integer_text(kept))
end
redis.call('HSET', key, 'id', to_integer_text(id), 'created_at', now_s, 'updated_at', now_s, unpack(fields))
if indexed then redis.call('ZADD', 'mj:runners', 'NX', 0, to_integer_text(id)) end
if pubkey then add_key_owner(pubkey, to_integer_text(id)) end
if allocate then redis.call('SET', counter, to_integer_text(id)) end
return {'new', key, redis.call('HGETALL', key)}

--# start_job: dispatch_journal job_indexes
-- Queues a job that was created without a queue entry.
-- ARGV: job (key), queue.
-- Reply: {missing, queued or known, record}. known: the job is queued, is planned, runs or has ended.
-- Repeat: safe; the reply is known.
local job, queue = arg(), arg()
local err = check_type(job, 'hash') or check_type('mj:claim:' .. job, 'hash') or check_type(queue, 'list') or check_shared_types()
if err then return err end
if redis.call('EXISTS', job) == 0 then return {'missing', {}} end
local function load_known_jobs() return {'known', redis.call('HGETALL', job)} end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 or redis.call('HGET', job, 'status') ~= 'dispatched' then return load_known_jobs() end
local wanted = to_table(redis.call('HGETALL', job))
err = check_queue_types(queue, valid_priority(wanted.priority))
if err then return err end
if not is_only_created(job, {}, wanted.detail) and is_in_recent_entries(queue, job) then return load_known_jobs() end
local delayed = to_number(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'detail', delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', to_integer_text(now_ms))
queue_or_delay_new(job, queue, wanted)
touch_job(job)
return {'queued', redis.call('HGETALL', job)}

--# load:
-- Reads a hash, or some of its fields.
-- ARGV: key, max (bytes), names (list; empty: all fields).
-- Reply: {0, {name, value, ...}}; {1} if the key does not exist; {2, field, bytes} if the hash is longer than max.
-- Repeat: safe; read-only.
local key, max, names = arg(), to_number(arg()), list_arg()
local err = check_type(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
if #names == 0 then
  local field, size = longest_field_over(key, max)
  if field then return {2, field, to_integer_text(size)} end
  return {0, redis.call('HGETALL', key)}
end
local found, bytes = {}, 0
for _, name in ipairs(names) do
  local size = redis.call('HSTRLEN', key, name)
  bytes = bytes + size
  if bytes > max then return {2, to_printable(name), to_integer_text(size)} end
  local value = redis.call('HGET', key, name)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end
return {0, found}

--# load_some:
-- Reads the same fields of several hashes. Fields longer than 1 MiB and keys of other types are left out.
-- ARGV: keys (list), names (list).
-- Reply: {{name, value, ...}...} for the first keys, until the values have 8 MiB.
-- Repeat: safe; read-only.
local keys, names = list_arg(), list_arg()
local found, bytes = {}, 0
for i, key in ipairs(keys) do
  local fields = {}
  for _, name in ipairs(type_of(key) == 'hash' and names or {}) do
    local size = redis.call('HSTRLEN', key, name)
    local value = size <= 1048576 and redis.call('HGET', key, name)
    if value then
      fields[#fields + 1], fields[#fields + 2] = name, value
      bytes = bytes + size
    end
  end
  found[i] = fields
  if bytes > 8388608 then break end
end
return found

--# ended_job: dispatch_journal
-- Reads the record of a job together with the fields of its claim that describe its end. Clients cannot write the
-- claim.
-- ARGV: job (key), max (bytes of the record).
-- Reply: {0, record, {name, value, ...} of the claim, 1 if status, detail and error of the record are those of an end
-- that the system has set}; {1} or {2, field, bytes} as in load.
-- Repeat: safe; read-only.
local job, max = arg(), to_number(arg())
local mark = 'mj:claim:' .. job
local err = check_type(job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 then return {1} end
local field, size = longest_field_over(job, max)
if field then return {2, field, to_integer_text(size)} end
local record, claim = redis.call('HGETALL', job), {}
for _, name in ipairs(type_of(mark) == 'hash' and {'state', 'status', 'detail', 'end', 'claim_id', 'runner', 'idem'} or {}) do
  local value = redis.call('HGET', mark, name)
  if value then claim[#claim + 1], claim[#claim + 2] = name, value end
end
local says, is = to_table(record), to_table(claim)
local by_system = digest({'status', says.status or '', 'detail', says.detail or '', 'error', says.error or ''})
return {0, record, claim, is['end'] == by_system and '1' or '0'}

--# job_list:
-- Lists jobs, the latest change first. The first page also has jobs of plain clients that are in a queue but not in
-- mj:jobs.
-- ARGV: max (jobs to examine), most (jobs to return), after and skip (position from the last reply; empty and 0:
-- begin), since_us, then the filters, where empty matches all: status, state, name (part of it), script_type, caller
-- (id); queues (list) to search for jobs of plain clients.
-- Reply: {number of examined jobs, after and skip for the next page (empty and 0 after the last page), {jobs...}, {jobs
-- of plain clients...}}. Each job is {key, time of the last change in us, type of the key, record}.
-- Repeat: safe; read-only.
local max, most, after, skip, since_us = to_number(arg()), to_number(arg()), arg(), to_number(arg()), arg()
local status, state, name, script_type, caller, queues = arg(), arg(), arg(), arg(), arg(), list_arg()
local err = check_type('mj:jobs', 'zset')
if err then return err end
local kRecord = {'id', 'caller_id', 'context_id', 'script_type', 'status', 'detail', 'error', 'name', 'flow_id', 'created_at',
  'updated_at', 'attempt', 'deliveries', 'runner_id', 'priority', 'queued_ms', 'started_ms', 'ended_ms', 'run_at_ms'}

-- A node that its flow has skipped has the status `error` without a failure. A filter for errors must name its detail.
local kLeftOut = {skipped = true, not_needed = true}

-- Returns whether a job matches the filters. Most jobs do not match, so only the needed fields are read here.
local function matches_filter(job, is)
  if caller ~= '' and string.match(job, '^job:(%d+):') ~= caller then return false end
  if status .. state .. name .. script_type == '' then return true end
  local v = is == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'script_type', 'name') or {}
  local stands, detail = v[1] or '', v[2] or ''
  if status == 'error' and state == '' and kLeftOut[detail] then return false end
  return (status == '' or stands == status) and (state == '' or stands == state or detail == state)
    and (script_type == '' or v[3] == script_type) and (name == '' or string.find(v[4] or '', name, 1, true))
end
-- Returns the type and the record of a job that exists and matches the filters, otherwise nothing.
local function scan_jobs(job)
  if not is_job_key(job) then return end
  local is, record = type_of(job), {}
  if is == 'none' or not matches_filter(job, is) then return end
  if is == 'hash' then
    for i, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then
        record[#record + 1] = kRecord[i]
        record[#record + 1] = value
      end
    end
  end
  return is, record
end

local looked, unseen, jobs, kMaxQueues = 0, {}, {}, 100
if after == '' then
  if type_of('mj:queues') == 'set' then
    for _, queue in ipairs(redis.call('SRANDMEMBER', 'mj:queues', kMaxQueues)) do queues[#queues + 1] = queue end
  end
  local known = {}
  for i = 1, math.min(#queues, kMaxQueues) do
    for _, job in ipairs(type_of(queues[i]) == 'list' and redis.call('LRANGE', queues[i], 0, math.max(max, 100) - 1) or {}) do
      if looked >= max then break end
      if not known[job] and is_job_key(job) and not redis.call('ZSCORE', 'mj:jobs', job) then
        looked, known[job] = looked + 1, true
        local is, record = scan_jobs(job)
        local fields = to_table(record or {})
        local moment = is and 1000000 * math.max(to_number(fields.updated_at), to_number(fields.created_at)) or 0
        if moment == 0 or moment > now_us then moment = now_us end
        if is and moment >= to_number(since_us) then unseen[#unseen + 1] = {job, to_integer_text(moment), is, record} end
      end
    end
  end
end

local page = redis.call('ZRANGE', 'mj:jobs', after == '' and '+inf' or after, since_us, 'BYSCORE', 'REV', 'LIMIT', skip, max,
  'WITHSCORES')
local last, seen = after, 0
for i = 1, #page, 2 do
  if #jobs >= most then break end
  seen = seen + 1
  local job, moment = page[i], to_integer_text(to_number(page[i + 1]))
  looked = looked + 1
  if moment ~= last then last, skip = moment, 0 end
  skip = skip + 1
  local is, record = scan_jobs(job)
  if is then jobs[#jobs + 1] = {job, moment, is, record} end
end
if seen < max and 2 * seen == #page then last, skip = '', 0 end
return {looked, last, skip, jobs, unseen}

--# cancel: dispatch_journal job_indexes messages deployments kept job_ends
-- Cancels a job.
-- ARGV: job (key).
-- Reply: ended, asked, over or missing, as cancel_job() returns it.
-- Repeat: safe; the reply is over after the end.
local job = arg()
local err = check_shared_types() or check_type(job, 'hash') or check_type('mj:claim:' .. job, 'hash')
if err then return err end
return cancel_job(job, read_claim(job))

--# requeue: dispatch_journal job_indexes messages deployments kept job_ends
-- Queues a job that ended as `error` again.
-- ARGV: job (key).
-- Reply: empty if it is queued, missing, or the reason why not.
-- Repeat: safe; a queued job is refused.
local job = arg()
local err = check_shared_types() or check_type(job, 'hash') or check_type('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 and redis.call('EXISTS', 'mj:claim:' .. job) == 0 then return 'missing' end
return requeue_ended_job(job, read_claim(job)) or ''
