-- Inspection of a job or message: all of its data, read in one step. places and repair use it; repair compares the
-- digest with that of an earlier inspection.
local kRecord = {'id', 'caller_id', 'context_id', 'name', 'script_type', 'timeout', 'retries', 'prerequisites', 'dependends',
  'status', 'detail', 'error', 'attempt', 'deliveries', 'epoch', 'runner_id', 'claim_id', 'lease_until_ms', 'queued_ms', 'started_ms',
  'ended_ms', 'run_at_ms', 'priority', 'queue_timeout_ms', 'concurrency_key', 'concurrency_limit', 'created_at'}
-- Returns the score of the job in a sorted set, or nil if the key has another type.
local function score(key, job) return type_of(key) == 'zset' and redis.call('ZSCORE', key, job) or nil end

-- Returns for each job that this job depends on: its key, and '1' or '0' for each of: the record names it, it has
-- ended, this job is parked on it, its end wakes this job. A dependency without record and claim counts as ended and
-- retired if this job still waits for others.
local function awaited(job, record, waits)
  local list, asked, parked_on = {}, {}, {}
  local function add_value(dep)
    local wakes = 'mj:dependents:' .. dep
    local retired = #waits > 0 and not parked_on[dep] and redis.call('EXISTS', dep, 'mj:claim:' .. dep) == 0
    local ended = retired or end_of(dep)
    for _, each in ipairs({dep, asked[dep] and '1' or '0', ended and '1' or '0', parked_on[dep] and '1' or '0',
      type_of(wakes) == 'set' and redis.call('SISMEMBER', wakes, job) == 1 and '1' or '0'}) do list[#list + 1] = each end
  end
  local named = dependencies(job, record.dependends) or {}
  for _, dep in ipairs(waits) do parked_on[dep] = true end
  for _, dep in ipairs(named) do
    if not asked[dep] then
      asked[dep] = true
      add_value(dep)
    end
  end
  for _, dep in ipairs(waits) do if not asked[dep] then add_value(dep) end end
  return list
end

-- Returns {type of the record, record, type of the claim, claim, {name, value, ...}, {keys in mj:waits}, awaited()}.
-- whole: also with the slow parts, which are the number of its entries in the list of its queue and awaited().
local function inspect_job(job, whole)
  local record_type, claim_type = type_of(job), type_of('mj:claim:' .. job)
  local record, claim, more = {}, claim_type == 'hash' and redis.call('HGETALL', 'mj:claim:' .. job) or {}, {}
  local function add_value(name, value)
    if value then more[#more + 1] = name; more[#more + 1] = tostring(value) end
  end
  if record_type == 'hash' then
    for n, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then record[#record + 1] = kRecord[n]; record[#record + 1] = value end
    end
    add_value('updated_s', redis.call('HGET', job, 'updated_at'))
  end
  local fields, written = to_table(claim), to_table(record)
  local queue = queue_of(job, fields)
  add_value('queue', queue)
  add_value('lease_until_ms', score('mj:leases', job))
  add_value('due_ms', score('mj:delayed', job))
  add_value('check_ms', score('mj:prerequisites', job))
  add_value('wait_until_ms', score('mj:overdue', job))
  add_value('in_ended', score('mj:ended', job))
  add_value('in_jobs', score('mj:jobs', job))
  if record_type == 'none' and type_of('mj:missing') == 'zset' then
    for _, member in ipairs(redis.call('ZRANGE', 'mj:missing', 0, 999)) do
      if string.sub(member, 1, #job + 1) == job .. ' ' then add_value('missing', 1) end
    end
  end
  add_value('in_priority', score('mj:priority:' .. queue, job))

  -- Slots and holds of the concurrency keys that the claim names and of the key that the record names.
  local asked, slots_of, held_of = written.concurrency_key or '', {}, {}
  local function occupies_slot(key)
    if key == '' or slots_of[key] ~= nil then return end
    slots_of[key] = type_of('mj:running:' .. key) == 'set' and redis.call('SISMEMBER', 'mj:running:' .. key, job) == 1
    if slots_of[key] then add_value('slot', key) end
  end
  local function is_held(key)
    if key == '' or held_of[key] ~= nil then return end
    held_of[key] = score('mj:held:' .. key, job) ~= nil
    if held_of[key] then add_value('held_by', key) end
  end
  local key = fields.ckey or asked
  local held = fields.held or key
  for _, each in ipairs({key, held, asked}) do occupies_slot(each) end
  for _, each in ipairs({held, asked}) do is_held(each) end
  if slots_of[key] then add_value('takes_slot', 1) end
  if held_of[held] then add_value('held', 1) end
  local limited = asked ~= '' and #asked <= 255 and not check_type('mj:running:' .. asked, 'set')
  if limited then add_value('limited', 1) end
  -- A held job waits for the key that holds it in its index, even if the record names another key now. If no index
  -- holds the job, it waits for the key of the record.
  if fields.state == 'held' then
    local of = held_of[held] and held or limited and asked or ''
    local counted = of ~= '' and not check_type('mj:running:' .. of, 'set')
    local taken = counted and redis.call('SCARD', 'mj:running:' .. of) - (slots_of[of] and 1 or 0) or 0
    if taken < math.max(1, to_number(written.concurrency_limit)) then add_value('slot_free', 1) end
  end

  if type_of('mj:log:' .. job) == 'stream' then
    local last = redis.call('XREVRANGE', 'mj:log:' .. job, '+', '-', 'COUNT', 1)[1]
    if last and last[2][1] == 'end' then add_value('log_ended', 1) end
  end
  local waits = type_of('mj:waits:' .. job) == 'set' and redis.call('SMEMBERS', 'mj:waits:' .. job) or {}
  table.sort(waits)
  if whole and type_of(queue) == 'list' then add_value('in_queue', #redis.call('LPOS', queue, job, 'COUNT', 0)) end
  local deps = whole and fields.state == 'waiting' and awaited(job, written, waits) or {}
  return {record_type, record, claim_type, claim, more, waits, deps}
end

-- Returns {type of the mark, mark, {name, ...}} of a message. The names: the kinds of its entries in mj:outbox, and
-- inbox, messages and came for its entries in mj:inbox, mj:messages and mj:came.
local kMail = {'send', 'expire', 'cancel', 'answer', 'logs'}
local function inspect_message(message)
  local mark, stands = 'mj:message:' .. message, {}
  for _, kind in ipairs(kMail) do if score('mj:outbox', kind .. ' ' .. message) then stands[#stands + 1] = kind end end
  if score('mj:inbox', message) then stands[#stands + 1] = 'inbox' end
  if score('mj:messages', message) then stands[#stands + 1] = 'messages' end
  local type = type_of(mark)
  local content = type == 'hash' and redis.call('HGET', mark, 'content')
  if content and type_of('mj:came') == 'hash' and redis.call('HGET', 'mj:came', content) == message then stands[#stands + 1] = 'came' end
  return {type, type == 'hash' and redis.call('HGETALL', mark) or {}, stands}
end

-- Returns a digest of an inspection. A later inspection with the same digest has found the same data.
local function digest_of(seen)
  local parts = {}
  for _, each in ipairs(seen) do
    local list = type(each) == 'table' and each or {each}
    parts[#parts + 1] = to_integer_text(#list)
    for _, text in ipairs(list) do parts[#parts + 1] = text end
  end
  return digest(parts)
end
