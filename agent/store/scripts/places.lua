--# places
-- Where jobs are, for each: {type of the record, record, type of the claim, claim, {name, value, ...}, {jobs it waits for}}.
local positions, jobs = arg() == '1', list_arg()
local kRecord = {'id', 'caller_id', 'context_id', 'name', 'script_type', 'timeout', 'retries', 'prerequisites', 'dependends',
  'status', 'detail', 'error', 'attempt', 'deliveries', 'epoch', 'runner_id', 'claim_id', 'lease_until_ms', 'queued_ms', 'started_ms',
  'ended_ms', 'run_at_ms', 'priority', 'queue_timeout_ms', 'concurrency_key', 'concurrency_limit', 'created_at'}
local function score(key, job) return type_of(key) == 'zset' and redis.call('ZSCORE', key, job) or nil end

local answers = {}
for i, job in ipairs(jobs) do
  local record_type, claim_type = type_of(job), type_of('mj:claim:' .. job)
  local record, claim = {}, claim_type == 'hash' and redis.call('HGETALL', 'mj:claim:' .. job) or {}
  if record_type == 'hash' then
    for n, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then record[#record + 1] = kRecord[n]; record[#record + 1] = value end
    end
  end
  local fields, more = to_table(claim), {'now_ms', dec(now_ms)}
  local function note(name, value)
    if value then more[#more + 1] = name; more[#more + 1] = tostring(value) end
  end
  local queue = queue_of(job, fields)
  note('queue', queue)
  note('lease_until_ms', score('mj:leases', job))
  note('due_ms', score('mj:delayed', job))
  note('check_ms', score('mj:prerequisites', job))
  note('in_ended', score('mj:ended', job))
  note('in_jobs', score('mj:jobs', job))
  if record_type == 'none' and type_of('mj:missing') == 'zset' then
    for _, member in ipairs(redis.call('ZRANGE', 'mj:missing', 0, 999)) do
      if string.sub(member, 1, #job + 1) == job .. ' ' then note('missing', 1) end
    end
  end
  note('in_priority', score('mj:priority:' .. queue, job))
  local key = fields.ckey or (record_type == 'hash' and redis.call('HGET', job, 'concurrency_key')) or ''
  if key ~= '' and type_of('mj:running:' .. key) == 'set' and redis.call('SISMEMBER', 'mj:running:' .. key, job) == 1 then
    note('takes_slot', 1)
  end
  local held = fields.held or key
  if held ~= '' and type_of('mj:held:' .. held) == 'list' and redis.call('LPOS', 'mj:held:' .. held, job) then note('held', 1) end
  if positions and type_of(queue) == 'list' then note('in_queue', #redis.call('LPOS', queue, job, 'COUNT', 0)) end
  if type_of('mj:log:' .. job) == 'stream' then
    local last = redis.call('XREVRANGE', 'mj:log:' .. job, '+', '-', 'COUNT', 1)[1]
    if last and last[2][1] == 'end' then note('log_ended', 1) end
  end
  local waits = type_of('mj:waits:' .. job) == 'set' and redis.call('SMEMBERS', 'mj:waits:' .. job) or {}
  table.sort(waits)
  answers[i] = {record_type, record, claim_type, claim, more, waits}
end
return answers
