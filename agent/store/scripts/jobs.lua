-- Jobs and other records come in, are read, cancelled, queued again.

--# submit: journal places
-- Writes a record and its queue entry. Answers {new | exists | used, key, record}.
local caller, id, queue, fields = arg(), num(arg()), arg(), list_arg()
local counter, names = 'mj:next:' .. caller, 'mj:idempotency:' .. caller
local err = wrong(queue, 'list') or wrong(counter, 'string') or wrong(names, 'hash') or wrong_shared()
if err then return err end
local wanted = to_table(fields)
local name = wanted.idempotency_key

local function there(job) return {'exists', job, redis.call('HGETALL', job)} end
local first = name and redis.call('HGET', names, name)
if first then
  if type_of(first) == 'hash' then return there(first) end
  return {'used', first, {}}
end
local function key_of(n) return 'job:' .. caller .. ':' .. dec(n) end
local allocate = id == 0
if allocate then
  id = num(redis.call('GET', counter)) + 1
  while redis.call('EXISTS', key_of(id), 'mj:claim:' .. key_of(id)) > 0 do id = id + 1 end
  if id > 4294967295 then return redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left') end
end
local job = key_of(id)
err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 1 then return there(job) end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 then return {'used', job, {}} end

local delayed = num(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'id', dec(id), 'status', 'dispatched', 'detail', delayed and 'delayed' or 'queued', 'created_at', now_s,
  'updated_at', now_s, 'queued_ms', dec(now_ms), unpack(fields))
if name then redis.call('HSET', names, name, job) end
place_new(job, queue, wanted)
if allocate then redis.call('SET', counter, dec(id)) end
return {'new', job, redis.call('HGETALL', job)}

--# create_record: journal actors
-- Writes a record that stands in no queue. Answers {new | exists | used | taken, key, record}; taken: another actor has
-- its public key.
local prefix, counter, names, name, id, fields = arg(), arg(), arg(), arg(), num(arg()), list_arg()
local indexed, pubkey = prefix == 'runner:', prefix == 'actor:' and to_table(fields).pubkey
if pubkey == '' then pubkey = nil end
local err = wrong(counter, 'string') or (indexed and wrong('mj:runners', 'zset')) or (name ~= '' and wrong(names, 'hash'))
  or (pubkey and wrong('mj:actor-keys', 'hash'))
if err then return err end
local function there(key) return {'exists', key, redis.call('HGETALL', key)} end
local function is_used(key) return redis.call('EXISTS', key, 'mj:claim:' .. key) > 0 end
local first = name ~= '' and redis.call('HGET', names, name)
if first then
  if type_of(first) == 'hash' then return there(first) end
  return {'used', first, {}}
end
local allocate = id == 0
if allocate then
  id = num(redis.call('GET', counter)) + 1
  while is_used(prefix .. dec(id)) do id = id + 1 end
  if id > 4294967295 then return redis.error_reply('MJFULL ' .. shown(prefix) .. ' has no free id left') end
end
local key = prefix .. dec(id)
err = wrong(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return there(key) end
if is_used(key) then return {'used', key, {}} end
if pubkey and is_anothers(pubkey, dec(id)) then return {'taken', key, {}} end
redis.call('HSET', key, 'id', dec(id), 'created_at', now_s, 'updated_at', now_s, unpack(fields))
if is_job_key(key) then happened(key) end
if name ~= '' then redis.call('HSET', names, name, key) end
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
if was_pushed(queue, job) then return known() end
local delayed = num(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'detail', delayed and 'delayed' or 'queued', 'updated_at', now_s, 'queued_ms', dec(now_ms))
place_new(job, queue, wanted)
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

--# job_list:
-- {jobs looked at, score and skip for the next page or '' and 0, {jobs...}, {jobs that nobody has seen yet...}}; of each
-- {job, moment in us, type of its key, record}.
local max, after, skip, since_us = num(arg()), arg(), num(arg()), arg()
local status, state, name, script_type, caller, queues = arg(), arg(), arg(), arg(), arg(), list_arg()
local err = wrong('mj:jobs', 'zset')
if err then return err end
local kRecord = {'id', 'caller_id', 'context_id', 'script_type', 'status', 'detail', 'error', 'name', 'flow_id', 'created_at',
  'updated_at', 'attempt', 'deliveries', 'runner_id', 'priority', 'queued_ms', 'started_ms', 'ended_ms', 'run_at_ms'}

local function is_wanted(job, record)
  if caller ~= '' and string.match(job, '^job:(%d+):') ~= caller then return false end
  local is, detail = record.status or '', record.detail or ''
  return (status == '' or is == status) and (state == '' or is == state or detail == state)
    and (script_type == '' or record.script_type == script_type)
    and (name == '' or string.find(record.name or '', name, 1, true))
end
local function look(job)
  if not is_job_key(job) then return end
  local is, record = type_of(job), {}
  if is == 'none' then return end
  if is == 'hash' then
    for i, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then
        record[#record + 1] = kRecord[i]
        record[#record + 1] = value
      end
    end
  end
  local fields = to_table(record)
  if is_wanted(job, fields) then return is, record, fields end
end

local looked, unseen, jobs = 0, {}, {}
if after == '' then
  if type_of('mj:queues') == 'set' then
    for _, queue in ipairs(redis.call('SMEMBERS', 'mj:queues')) do queues[#queues + 1] = queue end
  end
  local known = {}
  for i = 1, math.min(#queues, 100) do
    for _, job in ipairs(type_of(queues[i]) == 'list' and redis.call('LRANGE', queues[i], 0, math.max(max, 100) - 1) or {}) do
      if looked >= max then break end
      if not known[job] and is_job_key(job) and not redis.call('ZSCORE', 'mj:jobs', job) then
        looked, known[job] = looked + 1, true
        local is, record, fields = look(job)
        local moment = is and 1000000 * math.max(num(fields.updated_at), num(fields.created_at)) or 0
        if moment == 0 or moment > now_us then moment = now_us end
        if is and moment >= num(since_us) then unseen[#unseen + 1] = {job, dec(moment), is, record} end
      end
    end
  end
end

local page = redis.call('ZRANGE', 'mj:jobs', after == '' and '+inf' or after, since_us, 'BYSCORE', 'REV', 'LIMIT', skip, max,
  'WITHSCORES')
local last = after
for i = 1, #page, 2 do
  local job, moment = page[i], dec(num(page[i + 1]))
  looked = looked + 1
  if moment ~= last then last, skip = moment, 0 end
  skip = skip + 1
  local is, record = look(job)
  if is then jobs[#jobs + 1] = {job, moment, is, record} end
end
if #page < 2 * max then last, skip = '', 0 end
return {looked, last, skip, jobs, unseen}

--# cancel: journal places messages ends
-- The answer is cancel_job()'s.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
return cancel_job(job, read_claim(job))

--# requeue: journal places messages ends
-- Empty, missing, or why not.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 and redis.call('EXISTS', 'mj:claim:' .. job) == 0 then return 'missing' end
return reopen(job, read_claim(job)) or ''
