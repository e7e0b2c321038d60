-- Numbers about a context for the overview of the web page. They are read from indexes, not from all jobs.

--# tally:
-- Counts jobs, other entries and recent ends, and describes the queues. Keys with a wrong type count as empty.
-- ARGV: slot_ms (length of a time slot), slots (number of slots, at most 360), queues (a count, then that many names).
-- The script has no KEYS.
-- Reply: {{name, number, ...}, {number of jobs that ended in each slot, latest first}, {queues}}. A queue is {name,
-- entries of its list, entries with a priority, 1 if paused, next job of the list, time in ms since which it waits,
-- next job with a priority, time in ms since which it waits}.
-- Repeat: safe; read-only.
local slot_ms, slots, queues = math.max(1, to_number(next_arg())), to_number(next_arg()), list_arg()
local kMaxQueues, kMaxKeys = 200, 1000
local sizes = {zset = 'ZCARD', list = 'LLEN', stream = 'XLEN', set = 'SCARD', hash = 'HLEN'}
local function size(key, expected_type) return key_type(key) == expected_type and redis.call(sizes[expected_type], key) or 0 end

local numbers = {'now_ms', to_integer_text(now_ms)}
local function add_number(name, number)
  numbers[#numbers + 1] = name
  numbers[#numbers + 1] = to_integer_text(number)
end
for _, index in ipairs({{'jobs', kJobsKey, 'zset'}, {'running', kLeasesKey, 'zset'}, {'delayed', kDelayedKey, 'zset'},
  {'prerequisites', kPrerequisitesKey, 'zset'}, {'ended', kEndedKey, 'zset'}, {'dead', kDeadLettersKey, 'stream'},
  {'anomalies', kAnomaliesKey, 'stream'}, {'refusals', kRefusalsKey, 'stream'}, {'missing', kMissingRecordsKey, 'zset'},
  {'flows_active', kFlowsActiveKey, 'zset'}, {'flows', kFlowCatalogKey, 'stream'}, {'notices', kNoticesKey, 'zset'},
  {'outbox', kOutboxKey, 'zset'}, {'inbox', kInboxKey, 'zset'}}) do
  add_number(index[1], size(index[2], index[3]))
end
local held_jobs = 0
for _, key in ipairs(key_type(kHeldConcurrencyKeysKey) == 'set' and redis.call('SRANDMEMBER', kHeldConcurrencyKeysKey, kMaxKeys) or {}) do
  held_jobs = held_jobs + size(kHeldKey .. key, 'zset')
end
add_number('held', held_jobs)
local newest = key_type(kJobsKey) == 'zset' and redis.call('ZRANGE', kJobsKey, 0, 0, 'REV', 'WITHSCORES') or {}
add_number('changed_us', to_number(newest[2]))

local ends = {}
for i = 1, key_type(kEndedKey) == 'zset' and math.min(slots, 360) or 0 do
  local slot_end = now_ms - (i - 1) * slot_ms
  ends[i] = to_integer_text(redis.call('ZCOUNT', kEndedKey, '(' .. to_integer_text(slot_end - slot_ms), to_integer_text(slot_end)))
end

-- Returns the time in ms since which the job waits, or 0 if it is unknown.
local function get_waiting_since(job)
  if not job or not is_job_key(job) or key_type(job) ~= 'hash' then return '0' end
  local values = redis.call('HMGET', job, 'queued_ms', 'created_at')
  local queued = to_number(values[1])
  return to_integer_text(queued > 0 and queued or 1000 * to_number(values[2]))
end
local is_listed, names = {}, {}
local function add_name(name)
  if not is_listed[name] and #names < kMaxQueues then
    is_listed[name] = true
    names[#names + 1] = name
  end
end
for _, key in ipairs({kQueuesKey, kPausedKey}) do
  for _, queue in ipairs(key_type(key) == 'set' and redis.call('SRANDMEMBER', key, kMaxKeys) or {}) do add_name(queue) end
end
for _, queue in ipairs(queues) do if size(queue, 'list') > 0 then add_name(queue) end end
table.sort(names)
local rows = {}
for i, queue in ipairs(names) do
  local priority_key = kPriorityKey .. queue
  local next_job = key_type(queue) == 'list' and redis.call('LINDEX', queue, -1) or false
  local next_priority_job = key_type(priority_key) == 'zset' and redis.call('ZRANGE', priority_key, 0, 0)[1] or false
  local paused = key_type(kPausedKey) == 'set' and redis.call('SISMEMBER', kPausedKey, queue) or 0
  rows[i] = {queue, to_integer_text(size(queue, 'list')), to_integer_text(size(priority_key, 'zset')), to_integer_text(paused), next_job or '', get_waiting_since(next_job),
    next_priority_job or '', get_waiting_since(next_priority_job)}
end
return {numbers, ends, rows}
