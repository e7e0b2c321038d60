-- Numbers about a context for metrics. The scripts have no KEYS and only read; keys with a wrong type count as empty.

--# known_queues:
-- Lists queues for the survey.
-- ARGV: max_queues, max_runners.
-- Reply: {{queues with a journal, at most max_queues...}, {field `executors` of local runners, of the first
-- max_runners...}}.
local max_queues, max_runners = to_number(next_arg()), to_number(next_arg())
local queues, executors = {}, {}
if key_type(kQueuesKey) == 'set' then
  if redis.call('SCARD', kQueuesKey) <= max_queues then
    queues = redis.call('SMEMBERS', kQueuesKey)
  else
    queues = redis.call('SRANDMEMBER', kQueuesKey, to_integer_text(max_queues))
  end
end
if key_type(kRunnersKey) == 'zset' then
  for _, id in ipairs(redis.call('ZRANGE', kRunnersKey, 0, max_runners - 1)) do
    local record = 'runner:' .. id
    local values = key_type(record) == 'hash' and redis.call('HMGET', record, 'local', 'executors') or {}
    if values[1] == 'true' then executors[#executors + 1] = values[2] or '' end
  end
end
return {queues, executors}

--# survey:
-- Counts jobs by state. Only the lengths of indexes and the next job of each queue are read, so the time does not
-- depend on the number of jobs.
-- ARGV: queues (a count, then that many names).
-- Reply: {{queue, entries of its list, entries with a priority, 1 if it is paused, ms for which its next job has waited
-- or empty if unknown}...}, then the numbers of live claims, delayed jobs, jobs with open prerequisites, ended jobs,
-- dead letters, active flows, entries of the outbox, entries of the inbox.
local queues = list_arg()

local function count(command, key, expected_type)
  return key_type(key) == expected_type and redis.call(command, key) or 0
end
-- Returns for how many ms the job has waited, or nil if its record does not contain a time.
local function waiting_time(job)
  if not job or not is_job_key(job) or key_type(job) ~= 'hash' then return nil end
  local times = redis.call('HMGET', job, 'queued_ms', 'run_at_ms', 'created_at')
  local since = math.max(to_number(times[1]), to_number(times[2]))
  if since == 0 then since = 1000 * to_number(times[3]) end
  return since > 0 and math.max(0, now_ms - since) or nil
end

local rows = {}
local has_paused = key_type(kPausedKey) == 'set'
for i, queue in ipairs(queues) do
  local priority_key = kPriorityKey .. queue
  local entries, prioritised = count('LLEN', queue, 'list'), count('ZCARD', priority_key, 'zset')
  local max_wait_ms = entries + prioritised == 0 and 0 or nil
  if entries > 0 then max_wait_ms = waiting_time(redis.call('LINDEX', queue, -1)) end
  if prioritised > 0 then
    local priority_wait_ms = waiting_time(redis.call('ZRANGE', priority_key, 0, 0)[1])
    max_wait_ms = priority_wait_ms and math.max(max_wait_ms or 0, priority_wait_ms) or max_wait_ms
  end
  local paused = has_paused and redis.call('SISMEMBER', kPausedKey, queue) or 0
  rows[i] = {queue, entries, prioritised, paused, max_wait_ms and to_integer_text(max_wait_ms) or ''}
end
return {rows, count('ZCARD', kLeasesKey, 'zset'), count('ZCARD', kDelayedKey, 'zset'),
  count('ZCARD', kPrerequisitesKey, 'zset'), count('ZCARD', kEndedKey, 'zset'), count('XLEN', kDeadLettersKey, 'stream'),
  count('ZCARD', kFlowsActiveKey, 'zset'), count('ZCARD', kOutboxKey, 'zset'), count('ZCARD', kInboxKey, 'zset')}
