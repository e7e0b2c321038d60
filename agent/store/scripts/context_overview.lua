-- Numbers about a context for the overview of the web page. They are read from indexes, not from all jobs.

--# tally:
-- Counts jobs, other entries and recent ends, and describes the queues. Keys with a wrong type count as empty.
-- ARGV: slot_ms (length of a time slot), slots (number of slots, at most 360), queues (a count, then that many names).
-- The script has no KEYS.
-- Reply: {{name, number, ...}, {number of jobs that ended in each slot, latest first}, {queues}}. A queue is {name,
-- entries of its list, entries with a priority, 1 if paused, next job of the list, time in ms since which it waits,
-- next job with a priority, time in ms since which it waits}.
-- Repeat: safe; read-only.
local slot_ms, slots, queues = math.max(1, to_number(arg())), to_number(arg()), list_arg()
local kMaxQueues, kMaxKeys = 200, 1000
local sizes = {zset = 'ZCARD', list = 'LLEN', stream = 'XLEN', set = 'SCARD', hash = 'HLEN'}
local function size(key, want) return type_of(key) == want and redis.call(sizes[want], key) or 0 end

local numbers = {'now_ms', to_integer_text(now_ms)}
local function count_queue(name, number)
  numbers[#numbers + 1] = name
  numbers[#numbers + 1] = to_integer_text(number)
end
for _, each in ipairs({{'jobs', 'mj:jobs', 'zset'}, {'running', 'mj:leases', 'zset'}, {'delayed', 'mj:delayed', 'zset'},
  {'prerequisites', 'mj:prerequisites', 'zset'}, {'ended', 'mj:ended', 'zset'}, {'dead', 'mj:dead', 'stream'},
  {'anomalies', 'mj:anomalies', 'stream'}, {'refusals', 'mj:refusals', 'stream'}, {'missing', 'mj:missing', 'zset'},
  {'flows_active', 'mj:flows:active', 'zset'}, {'flows', 'mj:catalog', 'stream'}, {'notices', 'mj:notices', 'zset'},
  {'outbox', 'mj:outbox', 'zset'}, {'inbox', 'mj:inbox', 'zset'}}) do
  count_queue(each[1], size(each[2], each[3]))
end
local held = 0
for _, key in ipairs(type_of('mj:holding') == 'set' and redis.call('SRANDMEMBER', 'mj:holding', kMaxKeys) or {}) do
  held = held + size('mj:held:' .. key, 'zset')
end
count_queue('held', held)
local last = type_of('mj:jobs') == 'zset' and redis.call('ZRANGE', 'mj:jobs', 0, 0, 'REV', 'WITHSCORES') or {}
count_queue('changed_us', to_number(last[2]))

local ends = {}
for i = 1, type_of('mj:ended') == 'zset' and math.min(slots, 360) or 0 do
  local to = now_ms - (i - 1) * slot_ms
  ends[i] = to_integer_text(redis.call('ZCOUNT', 'mj:ended', '(' .. to_integer_text(to - slot_ms), to_integer_text(to)))
end

-- Returns the time in ms since which the job waits, or 0 if it is unknown.
local function waits_since(job)
  if not job or not is_job_key(job) or type_of(job) ~= 'hash' then return '0' end
  local v = redis.call('HMGET', job, 'queued_ms', 'created_at')
  local queued = to_number(v[1])
  return to_integer_text(queued > 0 and queued or 1000 * to_number(v[2]))
end
local known, names = {}, {}
local function add(name)
  if not known[name] and #names < kMaxQueues then
    known[name] = true
    names[#names + 1] = name
  end
end
for _, key in ipairs({'mj:queues', 'mj:paused'}) do
  for _, queue in ipairs(type_of(key) == 'set' and redis.call('SRANDMEMBER', key, kMaxKeys) or {}) do add(queue) end
end
for _, queue in ipairs(queues) do if size(queue, 'list') > 0 then add(queue) end end
table.sort(names)
local rows = {}
for i, queue in ipairs(names) do
  local beside = 'mj:priority:' .. queue
  local next_one = type_of(queue) == 'list' and redis.call('LINDEX', queue, -1) or false
  local first = type_of(beside) == 'zset' and redis.call('ZRANGE', beside, 0, 0)[1] or false
  local paused = type_of('mj:paused') == 'set' and redis.call('SISMEMBER', 'mj:paused', queue) or 0
  rows[i] = {queue, to_integer_text(size(queue, 'list')), to_integer_text(size(beside, 'zset')), to_integer_text(paused), next_one or '', waits_since(next_one),
    first or '', waits_since(first)}
end
return {numbers, ends, rows}
