-- Numbers about a context for metrics. The scripts have no KEYS and only read; keys with a wrong type count as empty.

--# known_queues:
-- Lists queues for the survey.
-- ARGV: max_queues, max_runners.
-- Reply: {{queues with a journal, at most max_queues...}, {field `executors` of local runners, of the first
-- max_runners...}}.
local max_queues, max_runners = to_number(arg()), to_number(arg())
local queues, served = {}, {}
if type_of('mj:queues') == 'set' then
  if redis.call('SCARD', 'mj:queues') <= max_queues then
    queues = redis.call('SMEMBERS', 'mj:queues')
  else
    queues = redis.call('SRANDMEMBER', 'mj:queues', to_integer_text(max_queues))
  end
end
if type_of('mj:runners') == 'zset' then
  for _, id in ipairs(redis.call('ZRANGE', 'mj:runners', 0, max_runners - 1)) do
    local record = 'runner:' .. id
    local is = type_of(record) == 'hash' and redis.call('HMGET', record, 'local', 'executors') or {}
    if is[1] == 'true' then served[#served + 1] = is[2] or '' end
  end
end
return {queues, served}

--# survey:
-- Counts jobs by state. Only the lengths of indexes and the next job of each queue are read, so the time does not
-- depend on the number of jobs.
-- ARGV: queues (a count, then that many names).
-- Reply: {{queue, entries of its list, entries with a priority, 1 if it is paused, ms for which its next job has waited
-- or empty if unknown}...}, then the numbers of live claims, delayed jobs, jobs with open prerequisites, ended jobs,
-- dead letters, active flows, entries of the outbox, entries of the inbox.
local queues = list_arg()

local function count(call, key, want)
  return type_of(key) == want and redis.call(call, key) or 0
end
-- Returns for how many ms the job has waited, or nil if its record does not contain a time.
local function waiting_time(job)
  if not job or not is_job_key(job) or type_of(job) ~= 'hash' then return nil end
  local moments = redis.call('HMGET', job, 'queued_ms', 'run_at_ms', 'created_at')
  local since = math.max(to_number(moments[1]), to_number(moments[2]))
  if since == 0 then since = 1000 * to_number(moments[3]) end
  return since > 0 and math.max(0, now_ms - since) or nil
end

local rows = {}
local paused_ones = type_of('mj:paused') == 'set'
for i, queue in ipairs(queues) do
  local beside = 'mj:priority:' .. queue
  local entries, prioritised = count('LLEN', queue, 'list'), count('ZCARD', beside, 'zset')
  local oldest = entries + prioritised == 0 and 0 or nil
  if entries > 0 then oldest = waiting_time(redis.call('LINDEX', queue, -1)) end
  if prioritised > 0 then
    local urgent = waiting_time(redis.call('ZRANGE', beside, 0, 0)[1])
    oldest = urgent and math.max(oldest or 0, urgent) or oldest
  end
  local paused = paused_ones and redis.call('SISMEMBER', 'mj:paused', queue) or 0
  rows[i] = {queue, entries, prioritised, paused, oldest and to_integer_text(oldest) or ''}
end
return {rows, count('ZCARD', 'mj:leases', 'zset'), count('ZCARD', 'mj:delayed', 'zset'),
  count('ZCARD', 'mj:prerequisites', 'zset'), count('ZCARD', 'mj:ended', 'zset'), count('XLEN', 'mj:dead', 'stream'),
  count('ZCARD', 'mj:flows:active', 'zset'), count('ZCARD', 'mj:outbox', 'zset'), count('ZCARD', 'mj:inbox', 'zset')}
