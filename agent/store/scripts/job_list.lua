--#
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
