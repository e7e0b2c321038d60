-- What a context holds, in numbers.

--# survey:
-- Of each queue, at most max: {name, entries, those beside the list, 1 if it is paused, for how many ms the next one has
-- waited}. Then how many live claims, delayed jobs, jobs that wait for something outside, ended jobs, dead letters, active
-- flows, and what is in the outbox and the inbox. Reads the length of each and no more, so that it costs the same however
-- many jobs there are.
local max, queues = num(arg()), list_arg()
local known = {}
for _, queue in ipairs(queues) do known[queue] = true end
if type_of('mj:queues') == 'set' then
  for _, queue in ipairs(redis.call('SMEMBERS', 'mj:queues')) do
    if not known[queue] then
      known[queue] = true
      queues[#queues + 1] = queue
    end
  end
end

local function count(call, key, want)
  return type_of(key) == want and redis.call(call, key) or 0
end
local function waited(job)
  if not job or not is_job_key(job) or type_of(job) ~= 'hash' then return 0 end
  local moments = redis.call('HMGET', job, 'queued_ms', 'run_at_ms', 'created_at')
  local since = math.max(num(moments[1]), num(moments[2]))
  if since == 0 then since = 1000 * num(moments[3]) end
  return since > 0 and math.max(0, now_ms - since) or 0
end

local rows = {}
for i = 1, math.min(max, #queues) do
  local queue = queues[i]
  local beside = 'mj:priority:' .. queue
  local entries, prioritised = count('LLEN', queue, 'list'), count('ZCARD', beside, 'zset')
  local oldest = 0
  if entries > 0 then oldest = waited(redis.call('LINDEX', queue, -1)) end
  if prioritised > 0 then oldest = math.max(oldest, waited(redis.call('ZRANGE', beside, 0, 0)[1])) end
  local paused = type_of('mj:paused') == 'set' and redis.call('SISMEMBER', 'mj:paused', queue) or 0
  rows[i] = {queue, entries, prioritised, paused, dec(oldest)}
end
return {rows, count('ZCARD', 'mj:leases', 'zset'), count('ZCARD', 'mj:delayed', 'zset'),
  count('ZCARD', 'mj:prerequisites', 'zset'), count('ZCARD', 'mj:ended', 'zset'), count('XLEN', 'mj:dead', 'stream'),
  count('ZCARD', 'mj:flows:active', 'zset'), count('ZCARD', 'mj:outbox', 'zset'), count('ZCARD', 'mj:inbox', 'zset')}
