-- Inspection of a job or message: all of its data, read in one step. places and repair use it; repair compares the
-- digest with that of an earlier inspection.
local kRecord = {'id', 'caller_id', 'context_id', 'name', 'script_type', 'timeout', 'retries', 'prerequisites', 'dependends',
  'status', 'detail', 'error', 'attempt', 'deliveries', 'epoch', 'runner_id', 'claim_id', 'lease_until_ms', 'queued_ms', 'started_ms',
  'ended_ms', 'run_at_ms', 'priority', 'queue_timeout_ms', 'concurrency_key', 'concurrency_limit', 'created_at'}
-- Returns the score of the job in a sorted set, or nil if the key has another type.
local function get_score(key, job) return key_type(key) == 'zset' and redis.call('ZSCORE', key, job) or nil end

-- Returns five values for each job that this job depends on: its key, and four flags ('1' or '0'): the record names the
-- dependency; the dependency has ended; this job is parked on it; its end will queue this job. A dependency without
-- record and claim counts as ended and retired if this job still waits for other dependencies.
local function list_dependencies(job, record, parked_on)
  local list, in_record, is_parked = {}, {}, {}
  local function add_value(dep)
    local dependents_key = kDependentsKey .. dep
    local is_retired = #parked_on > 0 and not is_parked[dep] and redis.call('EXISTS', dep, kClaimKey .. dep) == 0
    local has_ended = is_retired or get_end_status(dep)
    for _, value in ipairs({dep, in_record[dep] and '1' or '0', has_ended and '1' or '0', is_parked[dep] and '1' or '0',
      key_type(dependents_key) == 'set' and redis.call('SISMEMBER', dependents_key, job) == 1 and '1' or '0'}) do list[#list + 1] = value end
  end
  local record_dependencies = parse_dependencies(job, record.dependends) or {}
  for _, dep in ipairs(parked_on) do is_parked[dep] = true end
  for _, dep in ipairs(record_dependencies) do
    if not in_record[dep] then
      in_record[dep] = true
      add_value(dep)
    end
  end
  for _, dep in ipairs(parked_on) do if not in_record[dep] then add_value(dep) end end
  return list
end

-- Returns {type of the record, record, type of the claim, claim, {name, value, ...}, {keys in mj:dependencies},
-- list_dependencies()}. Only if is_complete, the result has the slow parts: the number of entries in the list of the
-- job's queue, and list_dependencies().
local function inspect_job(job, is_complete)
  local record_type, claim_type = key_type(job), key_type(kClaimKey .. job)
  local record, claim, extra_fields = {}, claim_type == 'hash' and redis.call('HGETALL', kClaimKey .. job) or {}, {}
  local function add_value(name, value)
    if value then extra_fields[#extra_fields + 1] = name; extra_fields[#extra_fields + 1] = tostring(value) end
  end
  if record_type == 'hash' then
    for n, value in ipairs(redis.call('HMGET', job, unpack(kRecord))) do
      if value then record[#record + 1] = kRecord[n]; record[#record + 1] = value end
    end
    add_value('updated_s', redis.call('HGET', job, 'updated_at'))
  end
  local claim_fields, record_fields = to_table(claim), to_table(record)
  local queue = get_queue(job, claim_fields)
  add_value('queue', queue)
  add_value('lease_until_ms', get_score(kLeasesKey, job))
  add_value('due_ms', get_score(kDelayedKey, job))
  add_value('check_ms', get_score(kPrerequisitesKey, job))
  add_value('wait_until_ms', get_score(kQueueDeadlinesKey, job))
  add_value('in_ended', get_score(kEndedKey, job))
  add_value('in_jobs', get_score(kJobsKey, job))
  if record_type == 'none' and key_type(kMissingRecordsKey) == 'zset' then
    for _, member in ipairs(redis.call('ZRANGE', kMissingRecordsKey, 0, 999)) do
      if string.sub(member, 1, #job + 1) == job .. ' ' then add_value('missing', 1) end
    end
  end
  add_value('in_priority', get_score(kPriorityKey .. queue, job))

  -- Slots and holds of the concurrency keys that the claim names and of the key that the record names.
  local record_ckey, has_slot, is_held_by = record_fields.concurrency_key or '', {}, {}
  local function add_slot(ckey)
    if ckey == '' or has_slot[ckey] ~= nil then return end
    has_slot[ckey] = key_type(kRunningKey .. ckey) == 'set' and redis.call('SISMEMBER', kRunningKey .. ckey, job) == 1
    if has_slot[ckey] then add_value('slot', ckey) end
  end
  local function add_hold(ckey)
    if ckey == '' or is_held_by[ckey] ~= nil then return end
    is_held_by[ckey] = get_score(kHeldKey .. ckey, job) ~= nil
    if is_held_by[ckey] then add_value('held_by', ckey) end
  end
  local ckey = claim_fields.ckey or record_ckey
  local held_ckey = claim_fields.held or ckey
  for _, candidate in ipairs({ckey, held_ckey, record_ckey}) do add_slot(candidate) end
  for _, candidate in ipairs({held_ckey, record_ckey}) do add_hold(candidate) end
  if has_slot[ckey] then add_value('takes_slot', 1) end
  if is_held_by[held_ckey] then add_value('held', 1) end
  local has_limit = record_ckey ~= '' and #record_ckey <= 255 and not check_type(kRunningKey .. record_ckey, 'set')
  if has_limit then add_value('limited', 1) end
  -- A held job waits for the key that holds it in its index, even if the record names another key now. If no index
  -- holds the job, it waits for the key of the record.
  if claim_fields.state == kJobStateHeld then
    local awaited_ckey = is_held_by[held_ckey] and held_ckey or has_limit and record_ckey or ''
    local is_countable = awaited_ckey ~= '' and not check_type(kRunningKey .. awaited_ckey, 'set')
    local used_slots = is_countable and redis.call('SCARD', kRunningKey .. awaited_ckey) - (has_slot[awaited_ckey] and 1 or 0) or 0
    if used_slots < math.max(1, to_number(record_fields.concurrency_limit)) then add_value('slot_free', 1) end
  end

  local log_type = key_type(kLogKey .. job)
  local last_entry = log_type == 'stream' and redis.call('XREVRANGE', kLogKey .. job, '+', '-', 'COUNT', 1)[1]
  -- A job without output has no log, or an empty one that a client has created.
  local is_silent = not last_entry and (log_type == 'none' or log_type == 'stream') and to_number(claim_fields.log_bytes) == 0
  if is_silent or last_entry and last_entry[2][1] == 'end' then add_value('log_ended', 1) end
  local parked_on = key_type(kDependenciesKey .. job) == 'set' and redis.call('SMEMBERS', kDependenciesKey .. job) or {}
  table.sort(parked_on)
  if is_complete and key_type(queue) == 'list' then add_value('in_queue', #redis.call('LPOS', queue, job, 'COUNT', 0)) end
  local dependency_values = is_complete and claim_fields.state == kJobStateWaiting and list_dependencies(job, record_fields, parked_on) or {}
  return {record_type, record, claim_type, claim, extra_fields, parked_on, dependency_values}
end

-- Returns {type of the mark, mark, {name, ...}} of a message. The names: the kinds of its entries in mj:outbox, and
-- inbox, messages and came for its entries in mj:inbox, mj:messages and mj:received.
local kOutboxKinds = {'send', 'expire', 'cancel', 'answer', 'logs'}
local function inspect_message(message)
  local mark_key, index_names = kMessageKey .. message, {}
  for _, kind in ipairs(kOutboxKinds) do if get_score(kOutboxKey, kind .. ' ' .. message) then index_names[#index_names + 1] = kind end end
  if get_score(kInboxKey, message) then index_names[#index_names + 1] = 'inbox' end
  if get_score(kMessagesKey, message) then index_names[#index_names + 1] = 'messages' end
  local mark_type = key_type(mark_key)
  local content = mark_type == 'hash' and redis.call('HGET', mark_key, 'content')
  if content and key_type(kReceivedKey) == 'hash' and redis.call('HGET', kReceivedKey, content) == message then index_names[#index_names + 1] = 'came' end
  return {mark_type, mark_type == 'hash' and redis.call('HGETALL', mark_key) or {}, index_names}
end

-- Returns a digest of an inspection. A later inspection with the same digest has found the same data.
local function compute_inspection_digest(inspection)
  local parts = {}
  for _, part in ipairs(inspection) do
    local list = type(part) == 'table' and part or {part}
    parts[#parts + 1] = to_integer_text(#list)
    for _, text in ipairs(list) do parts[#parts + 1] = text end
  end
  return digest(parts)
end
