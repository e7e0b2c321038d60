-- Jobs and other records come in, are read, cancelled, queued again.

--# submit: ids journal places kept
-- New jobs of one caller: all of them, or none. queued: with their queue entries. No two of them have the same id or the
-- same idempotency key, and none has an id where another is to be given one. accepted: a key that is there already, and
-- says the same.
-- Answers {new, s, ms, {id, detail}...}: an empty detail: accepted; {there, {index, exists | used, key, record}...}: of
-- some that are there and were not accepted, nothing was written; {wrong, index, error}: neither.
local caller, queued, count = arg(), arg() == '1', num(arg())
read_quota()
local counter, names = 'mj:next:' .. caller, 'mj:idempotency:' .. caller
local shared = wrong_shared() or wrong(counter, 'string') or wrong(names, 'hash')
if shared then return shared end
local kMostBytes = 8388608  -- of records in an answer, and the one that is longer
local queues, jobs, there, bytes, last_id, kept = {}, {}, {}, 0, nil, 0

local function key_of(id) return 'job:' .. caller .. ':' .. dec(id) end
local function next_key()
  last_id = free_ids(last_id or num(redis.call('GET', counter)), 1, function(id) return is_used(key_of(id)) end)
  if last_id then return key_of(last_id) end
  return nil, redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left')
end
-- The list is checked once for each queue: this checks the index of priorities.
local function wrong_priorities(queue, priority)
  return valid_priority(priority) ~= '0' and wrong('mj:priority:' .. queue, 'zset') or nil
end
-- The key of the job if it is new; else what was found: {exists | used, key}; else an error.
local function look(id, name)
  local first = name and redis.call('HGET', names, name)
  if first then return nil, {type_of(first) == 'hash' and 'exists' or 'used', first} end
  if id == 0 then return next_key() end
  local job = key_of(id)
  local err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
  if err then return nil, err end
  if redis.call('EXISTS', job) == 1 then return nil, {'exists', job} end
  if is_used(job) then return nil, {'used', job} end
  return job
end
for i = 1, count do
  local id, queue, accepted, name, fields = num(arg()), arg(), arg(), arg(), list_arg()
  local wanted = to_table(fields)
  if name == '' then name = nil end
  if queues[queue] == nil then queues[queue] = queued and wrong(queue, 'list') or false end
  local job, found = look(id, name)
  local err = queues[queue] or found and found.err and found or queued and wrong_priorities(queue, wanted.priority)
  if err then return {'wrong', dec(i), err.err} end
  if not found then
    jobs[i] = {job = job, queue = queue, name = name, fields = fields, wanted = wanted, kept = record_charge(fields)}
    kept = kept + jobs[i].kept
  elseif accepted == found[2] and found[1] == 'exists' then
    jobs[i] = {job = accepted}
  elseif bytes <= kMostBytes then
    local record = found[1] == 'exists' and redis.call('HGETALL', found[2]) or {}
    for _, text in ipairs(record) do bytes = bytes + #text end
    there[#there + 1] = {dec(i), found[1], found[2], record}
  end
end
if #there > 0 then return {'there', there} end
local setting, limit = charge(caller, kept, kAtQuota)
if setting then return refusal_of_quota(caller, setting, limit) end

-- What belongs into one key is written by one command: most of the time of a long step is taken by their number.
local answer, named, pushes, seen, created = {'new', now_s, dec(now_ms)}, {}, {}, {}, {}
for _, each in ipairs(jobs) do
  local job, fields, detail = each.job, each.fields, ''
  if fields then
    local wanted = each.wanted
    detail = not queued and 'created' or num(wanted.run_at_ms) > now_ms and 'delayed' or 'queued'
    fields[#fields + 1] = 'detail'
    fields[#fields + 1] = detail
    if queued then
      fields[#fields + 1] = 'queued_ms'
      fields[#fields + 1] = dec(now_ms)
    end
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'status', 'dispatched', 'created_at', now_s, 'updated_at', now_s,
      unpack(fields))
    if each.name then
      named[#named + 1] = each.name
      named[#named + 1] = job
    end
    if queued then
      pushes[each.queue] = pushes[each.queue] or {}
      place_new(job, each.queue, wanted, pushes[each.queue], 'kept', dec(each.kept))
    else
      created[#created + 1] = job
      created[#created + 1] = dec(each.kept)
    end
    seen[#seen + 1] = dec(now_us)
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
if last_id then redis.call('SET', counter, dec(last_id)) end
return answer

--# create_record: actors ids journal kept
-- Writes a record that stands in no queue. Answers {new | exists | used | taken, key, record}; taken: another actor has
-- its public key.
local prefix, counter, id, fields = arg(), arg(), num(arg()), list_arg()
read_quota()
local indexed, pubkey = prefix == 'runner:', prefix == 'actor:' and to_table(fields).pubkey
if pubkey == '' then pubkey = nil end
local err = wrong(counter, 'string') or (indexed and wrong('mj:runners', 'zset'))
  or (pubkey and wrong('mj:actor-keys', 'hash'))
if err then return err end
local allocate = id == 0
if allocate then
  id = free_ids(num(redis.call('GET', counter)), 1, function(each) return is_used(prefix .. dec(each)) end)
  if not id then return redis.error_reply('MJFULL ' .. shown(prefix) .. ' has no free id left') end
end
local key = prefix .. dec(id)
err = wrong(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return {'exists', key, redis.call('HGETALL', key)} end
if is_used(key) then return {'used', key, {}} end
if pubkey and is_anothers(pubkey, dec(id)) then return {'taken', key, {}} end
local caller, kept = string.match(prefix, '^message:(%d+):$'), record_charge(fields)
if caller then
  local setting, limit = charge(caller, kept, kAtQuota)
  if setting then return refusal_of_quota(caller, setting, limit) end
  call_index('HSET', kKeptCreated, key, dec(kept))
end
redis.call('HSET', key, 'id', dec(id), 'created_at', now_s, 'updated_at', now_s, unpack(fields))
if indexed then redis.call('ZADD', 'mj:runners', 'NX', 0, dec(id)) end
if pubkey then own_key(pubkey, dec(id)) end
if allocate then redis.call('SET', counter, dec(id)) end
return {'new', key, redis.call('HGETALL', key)}

--# start_job: journal places
-- Queues a job whose record was written in no queue. Answers {missing | queued | known, record}; known: it is in a queue,
-- planned, runs or has run.
local job, queue = arg(), arg()
local err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash') or wrong(queue, 'list') or wrong_shared()
if err then return err end
if redis.call('EXISTS', job) == 0 then return {'missing', {}} end
local function known() return {'known', redis.call('HGETALL', job)} end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 or redis.call('HGET', job, 'status') ~= 'dispatched' then return known() end
local wanted = to_table(redis.call('HGETALL', job))
err = wrong_queue(queue, valid_priority(wanted.priority))
if err then return err end
if not is_only_created(job, {}, wanted.detail) and was_pushed(queue, job) then return known() end
local delayed = num(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'detail', delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', dec(now_ms))
place_new(job, queue, wanted)
happened(job)
return {'queued', redis.call('HGETALL', job)}

--# load:
-- A hash, or these fields of it: {0, name, value, ...}; {1}: there is none; {2, field, bytes}: it is too long to be read.
local key, max, names = arg(), num(arg()), list_arg()
local err = wrong(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
if #names == 0 then
  local field, size = too_long(key, max)
  if field then return {2, field, dec(size)} end
  return {0, redis.call('HGETALL', key)}
end
local found, bytes = {}, 0
for _, name in ipairs(names) do
  local size = redis.call('HSTRLEN', key, name)
  bytes = bytes + size
  if bytes > max then return {2, shown(name), dec(size)} end
  local value = redis.call('HGET', key, name)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end
return {0, found}

--# load_some:
-- Of each key these fields of its hash: {name, value, ...}. As many of the keys, from the first on, as make some MiB.
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

--# ended_job: journal
-- A job's record, and what is noted of its end where clients cannot write: {0, record, {name, value, ...} of the claim, 1 if
-- the record still says what the system has ended it with}; {1}, {2, field, bytes}: as load.
local job, max = arg(), num(arg())
local mark = 'mj:claim:' .. job
local err = wrong(job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 then return {1} end
local field, size = too_long(job, max)
if field then return {2, field, dec(size)} end
local record, claim = redis.call('HGETALL', job), {}
for _, name in ipairs(type_of(mark) == 'hash' and {'state', 'status', 'detail', 'end', 'claim_id', 'runner', 'idem'} or {}) do
  local value = redis.call('HGET', mark, name)
  if value then claim[#claim + 1], claim[#claim + 2] = name, value end
end
local says, is = to_table(record), to_table(claim)
local by_system = digest({'status', says.status or '', 'detail', says.detail or '', 'error', says.error or ''})
return {0, record, claim, is['end'] == by_system and '1' or '0'}

--# job_list:
-- {jobs looked at, score and skip for the next page or '' and 0, {jobs...}, {jobs that nobody has seen yet...}}; of each
-- {job, moment in us, type of its key, record}.
local max, most, after, skip, since_us = num(arg()), num(arg()), arg(), num(arg()), arg()
local status, state, name, script_type, caller, queues = arg(), arg(), arg(), arg(), arg(), list_arg()
local err = wrong('mj:jobs', 'zset')
if err then return err end
local kRecord = {'id', 'caller_id', 'context_id', 'script_type', 'status', 'detail', 'error', 'name', 'flow_id', 'created_at',
  'updated_at', 'attempt', 'deliveries', 'runner_id', 'priority', 'queued_ms', 'started_ms', 'ended_ms', 'run_at_ms'}

-- A node that its flow left out has the status `error` without a failure: a filter for errors has to name its detail.
local kLeftOut = {skipped = true, not_needed = true}

-- Most of those that a filter is asked of are not wanted: the rest of a record is read of those that are.
local function is_wanted(job, is)
  if caller ~= '' and string.match(job, '^job:(%d+):') ~= caller then return false end
  if status .. state .. name .. script_type == '' then return true end
  local v = is == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'script_type', 'name') or {}
  local stands, detail = v[1] or '', v[2] or ''
  if status == 'error' and state == '' and kLeftOut[detail] then return false end
  return (status == '' or stands == status) and (state == '' or stands == state or detail == state)
    and (script_type == '' or v[3] == script_type) and (name == '' or string.find(v[4] or '', name, 1, true))
end
local function look(job)
  if not is_job_key(job) then return end
  local is, record = type_of(job), {}
  if is == 'none' or not is_wanted(job, is) then return end
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

local looked, unseen, jobs, kMostQueues = 0, {}, {}, 100
if after == '' then
  if type_of('mj:queues') == 'set' then
    for _, queue in ipairs(redis.call('SRANDMEMBER', 'mj:queues', kMostQueues)) do queues[#queues + 1] = queue end
  end
  local known = {}
  for i = 1, math.min(#queues, kMostQueues) do
    for _, job in ipairs(type_of(queues[i]) == 'list' and redis.call('LRANGE', queues[i], 0, math.max(max, 100) - 1) or {}) do
      if looked >= max then break end
      if not known[job] and is_job_key(job) and not redis.call('ZSCORE', 'mj:jobs', job) then
        looked, known[job] = looked + 1, true
        local is, record = look(job)
        local fields = to_table(record or {})
        local moment = is and 1000000 * math.max(num(fields.updated_at), num(fields.created_at)) or 0
        if moment == 0 or moment > now_us then moment = now_us end
        if is and moment >= num(since_us) then unseen[#unseen + 1] = {job, dec(moment), is, record} end
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
  local job, moment = page[i], dec(num(page[i + 1]))
  looked = looked + 1
  if moment ~= last then last, skip = moment, 0 end
  skip = skip + 1
  local is, record = look(job)
  if is then jobs[#jobs + 1] = {job, moment, is, record} end
end
if seen < max and 2 * seen == #page then last, skip = '', 0 end
return {looked, last, skip, jobs, unseen}

--# cancel: journal places messages worlds kept ends
-- The answer is cancel_job()'s.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
return cancel_job(job, read_claim(job))

--# requeue: journal places messages worlds kept ends
-- Empty, missing, or why not.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 and redis.call('EXISTS', 'mj:claim:' .. job) == 0 then return 'missing' end
return reopen(job, read_claim(job)) or ''
