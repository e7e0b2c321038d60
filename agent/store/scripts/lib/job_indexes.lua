-- The indexes of jobs. A job is in exactly one index, which the state of its claim names:
--   (none)         the list of its queue: another client has pushed it, and its record is the authority
--   planned        no index: its flow queues or ends it, or it runs in another context or on another host for a message
--   queued         the list of its queue, or mj:priority:<queue>
--   live           mj:leases; with a concurrency key it also has a slot in mj:running:<key>
--   delayed        mj:delayed: until its run_at_ms or its next attempt
--   waiting        mj:dependencies:<job> with the unfinished jobs that it depends on; it is in mj:dependents:<each of these>
--   prerequisites  mj:prerequisites
--   held           mj:held:<concurrency key>: no slot of the key is free
--   ended          mj:ended

-- Returns the error for an index of all jobs that has a wrong type.
local function check_index_types()
  local err = check_type(kLeasesKey, 'zset') or check_type(kEndedKey, 'zset') or check_type(kQueuesKey, 'set')
    or check_type(kAnomaliesKey, 'stream')
  -- The remaining keys rarely exist, and mj:flows:due often exists alone. One EXISTS for all of them is cheaper than
  -- one TYPE for each.
  if err or redis.call('EXISTS', kMissingRecordsKey, kDeadLettersKey, kDelayedKey, kPrerequisitesKey, kQueueDeadlinesKey, kPendingReleasesKey,
    kHeldConcurrencyKeysKey, kPausedKey, kFlowsDueKey) == 0 then return err end
  err = check_type(kFlowsDueKey, 'zset')
  if err or redis.call('EXISTS', kMissingRecordsKey, kDeadLettersKey, kDelayedKey, kPrerequisitesKey, kQueueDeadlinesKey, kPendingReleasesKey,
    kHeldConcurrencyKeysKey, kPausedKey) == 0 then return err end
  return check_type(kMissingRecordsKey, 'zset') or check_type(kDeadLettersKey, 'stream') or check_type(kDelayedKey, 'zset')
    or check_type(kPrerequisitesKey, 'zset') or check_type(kQueueDeadlinesKey, 'zset') or check_type(kPendingReleasesKey, 'list')
    or check_type(kHeldConcurrencyKeysKey, 'set') or check_type(kPausedKey, 'set')
end

-- Returns the queue whose journal has the facts of the job. For a job that was never claimed the record names the
-- queue.
local function get_queue(job, claim)
  if claim and claim.queue then return claim.queue end
  local type = key_type(job) == 'hash' and redis.call('HGET', job, 'script_type')
  return 'queue:' .. (type or '')
end
local function has_priority(claim) return claim.priority and claim.priority ~= '0' end
-- Returns a priority as decimal text, or '0' if it is not a whole number from -kMaxPriority to kMaxPriority.
local function valid_priority(text)
  local n = tonumber(text or '')
  return n and n >= -kMaxPriority and n <= kMaxPriority and math.floor(n) == n and to_integer_text(n) or '0'
end

-- Checks the keys that push_job() writes. Returns the error that names the key of a wrong type.
local function check_queue_types(queue, priority)
  return check_type(queue, 'list') or priority and priority ~= '0' and check_type(kPriorityKey .. queue, 'zset') or nil
end

-- Returns whether no run of the job has begun. This includes a job that a runner claimed and released before its run
-- began.
local function has_not_run(claim) return to_number(claim.attempt) <= 1 and to_number(claim.deliveries) == 0 end

-- Returns the time (ms) until which the first run must begin, or nil if the wait is unlimited. If the record has no
-- queued_ms, the wait begins now.
local function compute_queue_deadline(timeout_ms, queued_ms, due_ms)
  if timeout_ms > 0 then return math.max(queued_ms > 0 and queued_ms or now_ms, due_ms) + timeout_ms end
end
-- Adds the job to mj:queue-deadlines with the time until which its first run must begin: timeout_ms after the job was queued or
-- was due, whichever is later.
local function set_queue_deadline(job, timeout_ms, queued_ms, due_ms)
  if timeout_ms <= 0 then return end
  redis.call('ZADD', kQueueDeadlinesKey, to_integer_text(math.max(queued_ms, due_ms) + timeout_ms), job)
  redis.call('HSET', kClaimKey .. job, 'overdue', 1)
end

-- The record of a flow contains the state of each node. For a flow with at most kMaxNodesInEachCommit nodes each commit
-- writes the list, and a change of a job between two commits replaces one state in place. A longer list shows the states
-- of the last commit that wrote it. It is not changed in between, since the replaced state would remain after the job
-- has changed again.
local kNodeStates = {[kJobStateQueued] = kNodeStatusDispatched, [kJobStateLive] = kNodeStatusRunning, [kJobStateDelayed] = kNodeStatusReady,
  [kJobStateHeld] = kNodeStatusReady, [kJobStateWaiting] = kNodeStatusPending, [kJobStatePrerequisites] = kNodeStatusPending}
local kNodesBytes = 32768
-- Returns whether the flow is small enough for changes in place. `ids` has the job ids in the mark of the flow, as
-- "[7,8]".
local function has_live_nodes(ids)
  if type(ids) ~= 'string' or #ids > 12 * kMaxNodesInEachCommit then return false end
  local _, commas = string.gsub(ids, ',', '')
  return commas < kMaxNodesInEachCommit
end
-- Returns the list of nodes with another state of this job's node, or unchanged if the job is not in the list.
local function replace_node_state(nodes, job, state)
  local _, id_end = string.find(nodes, '"id":' .. string.match(job, '%d+$') .. ',"name":"', 1, true)
  local _, state_start = string.find(nodes, '","node_status":"', id_end or #nodes + 1, true)
  local state_end = state_start and string.find(nodes, '"', state_start + 1, true)
  return state_end and string.sub(nodes, 1, state_start) .. state .. string.sub(nodes, state_end) or nodes
end
-- Shows the state of the job in the list of nodes in the record of its flow.
local function update_node_state(job, claim)
  local state, flow = kNodeStates[claim.state], claim.flow and string.match(claim.flow, '^%d+ (%d+)$')
  if not state or not flow then return end
  local flow_key = 'flow:' .. flow
  if not has_live_nodes(redis.pcall('HGET', kFlowKey .. flow, 'ids')) then return end
  local size = call_index('HSTRLEN', flow_key, 'nodes')
  if type(size) ~= 'number' or size == 0 or size > kNodesBytes then return end
  local nodes = redis.call('HGET', flow_key, 'nodes')
  local updated_nodes = replace_node_state(nodes, job, state)
  if updated_nodes ~= nodes then redis.call('HSET', flow_key, 'nodes', updated_nodes) end
end

-- Returns the text of a hint for agents: "<context> <queue>", or the queue alone if the id of the context is not stored.
local function queue_hint(queue)
  local context = call_index('HGET', kFormatKey, 'context')
  return type(context) == 'string' and context .. ' ' .. queue or queue
end
-- Reports a job in an empty list to the agents that have too many queues to block on each. A failure has no effect,
-- since these agents also poll. A hint without a context would make them claim from all contexts, so it is not sent.
local function publish_filled_queue(queue)
  local hint = queue_hint(queue)
  if hint ~= queue then redis.pcall('PUBLISH', kQueueFilledChannel, hint) end
end

-- Adds the job to its queue. Jobs with a priority are ordered by priority, then by time. With at_front, the job is the
-- first of its priority.
local kPriority = 8796093022208  -- greater than any time in ms
local function push_job(job, claim, queue, at_front)
  if has_priority(claim) then
    redis.call('ZADD', kPriorityKey .. queue, to_integer_text((kMaxPriority - tonumber(claim.priority)) * kPriority + (at_front and 0 or now_ms)), job)
    -- A router selects its hints by the name of the queue.
    local is_for_router = string.sub(queue, 1, #kRouterQueueKey) == kRouterQueueKey
    redis.call('PUBLISH', kWakeChannel, is_for_router and queue or queue_hint(queue))
  elseif redis.call(at_front and 'RPUSH' or 'LPUSH', queue, job) == 1 then
    publish_filled_queue(queue)
  end
  -- A router does not block on the list of its host. This hint may fail if the user of Redis may not publish on that
  -- channel, since routers also poll.
  if string.sub(queue, 1, #kRouterHostQueueKey) == kRouterHostQueueKey then redis.pcall('PUBLISH', kRouterChannel, queue) end
end

local enqueue_job  -- defined below
-- Removes the job from the slots of its concurrency key, and queues the next held job of the key.
local function release_slot(job, claim)
  local key = claim.ckey
  if not key then return end
  call_index('SREM', kRunningKey .. key, job)
  redis.call('HDEL', kClaimKey .. job, 'ckey')
  claim.ckey = nil
  local held_key = kHeldKey .. key
  if reports_wrong_type(held_key, 'zset') then return end
  local next_job = redis.call('ZRANGE', held_key, 0, 0)[1]
  local next_claim = next_job and find_claim(next_job)
  if next_claim and next_claim.state == kJobStateHeld then
    enqueue_job(next_job, next_claim, kParkReasonHeld, true)
  elseif next_job then
    redis.call('ZREM', held_key, next_job)
  end
end
-- Adds the job to mj:held:<key>, since its concurrency key has no free slot. The score is the job's turn. A job that
-- was queued for a free slot and did not get the slot keeps its turn; a new job is last.
local function hold_for_slot(job, claim, key)
  local held_key = kHeldKey .. key
  if claim.held ~= key or to_number(claim.turn) == 0 then
    local last_turn = redis.call('ZRANGE', held_key, -1, -1, 'WITHSCORES')[2]
    claim.turn = to_integer_text(math.max(now_us, to_number(last_turn) + 1))
  end
  redis.call('ZADD', held_key, claim.turn, job)
  redis.call('SADD', kHeldConcurrencyKeysKey, key)
  redis.call('HSET', kClaimKey .. job, 'held', key, 'turn', claim.turn)
end

-- Removes the job from the index of `state`. An entry in the list of a queue is not removed.
local function remove_from_index(job, claim, state)
  if state == kJobStateLive then
    redis.call('ZREM', kLeasesKey, job)
    release_slot(job, claim)
  elseif state == kJobStateDelayed then
    redis.call('ZREM', kDelayedKey, job)
  elseif state == kJobStateWaiting then
    local deps = call_index('SMEMBERS', kDependenciesKey .. job)
    for _, dep in ipairs(deps or {}) do call_index('SREM', kDependentsKey .. dep, job) end
    if deps then redis.call('DEL', kDependenciesKey .. job) end
  elseif state == kJobStatePrerequisites then
    redis.call('ZREM', kPrerequisitesKey, job)
  elseif state == kJobStateHeld then
    call_index('ZREM', kHeldKey .. (claim.held or ''), job)
  elseif state == kJobStateQueued and has_priority(claim) then
    call_index('ZREM', kPriorityKey .. claim.queue, job)
  elseif state == kJobStateEnded then
    redis.call('ZREM', kEndedKey, job)
  end
end

-- Delays a job that cannot be queued or run because a key has a wrong type (err). The job is tried again after pauses
-- of 5 s to 5 min, so that deleting the key is enough to continue. Returns the time of the next try in ms as text.
local function delay_for_wrong_type(job, claim, err)
  local text = string.gsub(err.err, '^MJTYPE ', '')
  local delays = to_number(claim.postponed)
  local due = to_integer_text(now_ms + 5000 * 2 ^ math.min(delays, 6))
  add_anomaly(text .. ': ' .. job .. ' is delayed until that key is deleted')
  redis.call('ZADD', kDelayedKey, due, job)
  redis.call('HSET', kClaimKey .. job, 'postponed', to_integer_text(delays + 1))
  if has_type(job, 'hash') then redis.call('HSET', job, 'error', text .. ': delete that key') end
  claim.postponed = to_integer_text(delays + 1)
  return due
end

-- Moves the job to its queue from any other index. The fact `queued` has the reason. If the keys of the queue have a
-- wrong type, the job is delayed.
enqueue_job = function(job, claim, reason, at_front)
  local queue, previous_state, state = get_queue(job, claim), claim.state, kJobStateQueued
  local err = check_queue_types(queue, claim.priority)
  if err and previous_state == kJobStateDelayed then return delay_for_wrong_type(job, claim, err) end
  if err then state = kJobStateDelayed else push_job(job, claim, queue, at_front) end
  add_fact(queue, job, claim, kFactKindQueued, kFactReasonField, reason)
  if err then add_fact(queue, job, claim, kFactKindParked, kFactReasonField, kParkReasonDelayed, kFactDueField, delay_for_wrong_type(job, claim, err)) end
  set_claim(job, claim, 'state', state, 'queue', queue)
  claim.state = state
  if claim.quota then redis.call('HDEL', kClaimKey .. job, 'quota') end
  if has_type(job, 'hash') then
    redis.call('HSET', job, 'status', kJobStatusDispatched, 'detail', state, 'updated_at', now_s)
  end
  remove_from_index(job, claim, previous_state)
  if previous_state ~= kJobStatePlanned or err then update_node_state(job, claim) end  -- the flow's commit writes the state itself
end

-- Returns the keys of the jobs in `dependends`, or nil if the text is not a valid list of ids. An invalid list is
-- reported by the agent that runs the job.
local function parse_dependencies(job, text)
  if not text or text == '' then return {} end
  if not string.match(text, '^%s*%[[%d%s,]*%]%s*$') then return nil end
  local caller = string.match(job, '^job:(%d+):')
  local keys = {}
  for id in string.gmatch(text, '%d+') do
    local key = 'job:' .. caller .. ':' .. id
    if key == job then return nil end
    keys[#keys + 1] = key
    if #keys > 10000 then return nil end
  end
  return keys
end
-- Returns the cost of checking so many dependencies, as the number of jobs without dependencies that cost the same.
local function dependency_cost(count) return math.floor(count / 20) end
-- Returns finished or error, or nil if the job has not ended.
local function get_end_status(job)
  local claim = read_claim(job)
  if claim and claim.state then return claim.state == kJobStateEnded and (claim.status or kJobStatusError) or nil end
  if key_type(job) ~= 'hash' then return nil end
  local status = redis.call('HGET', job, 'status')
  return (status == kJobStatusFinished or status == kJobStatusError) and status or nil
end

-- Returns whether the claim of a job has a state other than `ended`.
local function has_not_ended(job)
  local state = call_index('HGET', kClaimKey .. job, 'state')
  return type(state) == 'string' and state ~= kJobStateEnded
end
-- Adds a job to the field `needed_by` of a claim: retention keeps the record until the job has ended. Each call removes
-- jobs that have ended from the kCheckedDependents oldest entries, and moves the other ones to the end. So a list with
-- ended jobs becomes shorter, and a call is cheap.
local kCheckedDependents = 4
local function add_needed_by(dep, job)
  local listed = call_index('HGET', kClaimKey .. dep, 'needed_by')
  if listed == nil or not listed and redis.call('EXISTS', kClaimKey .. dep) == 0 then return end
  listed = listed or ''
  if string.find(' ' .. listed .. ' ', ' ' .. job .. ' ', 1, true) then return end
  local last_jobs = {}
  for _ = 1, kCheckedDependents do
    local oldest, others = string.match(listed, '^(%S+) ?(.*)$')
    if not oldest then break end
    listed = others
    if has_not_ended(oldest) then last_jobs[#last_jobs + 1] = oldest end
  end
  last_jobs[#last_jobs + 1] = job
  if listed ~= '' then table.insert(last_jobs, 1, listed) end
  redis.call('HSET', kClaimKey .. dep, 'needed_by', table.concat(last_jobs, ' '))
end
-- Returns whether a value of the field `inputs` names artifacts of the jobs that the job depends on.
local function has_inputs(inputs) return type(inputs) == 'string' and inputs ~= '' and inputs ~= '[]' end
-- Makes retention keep the jobs whose artifacts a job needs. The jobs of a flow are kept with their flow.
local function keep_inputs(job, inputs, dependends)
  if not has_inputs(inputs) then return end
  for _, dep in ipairs(parse_dependencies(job, dependends) or {}) do add_needed_by(dep, job) end
end

-- Moves a queued job to the state `state`. The fact `parked` has the reason, and further fields from the last
-- arguments. The caller removes the entry from the list of the queue.
local function park_job(job, claim, queue, state, reason, detail, ...)
  add_fact(queue, job, claim, kFactKindParked, kFactReasonField, reason, ...)
  set_claim(job, claim, 'state', state, 'queue', queue, 'priority', claim.priority or '0', 'waiting_since', to_integer_text(now_ms))
  local is_waiting = state == kJobStateWaiting or state == kJobStatePrerequisites
  redis.call('HSET', job, 'status', is_waiting and kJobStatusWaitingForPrerequisites or kJobStatusDispatched, 'detail', detail,
    'updated_at', now_s)
  claim.state = state
  remove_from_index(job, claim, kJobStateQueued)
  update_node_state(job, claim)
end

-- Returns whether another client has pushed the job recently. Only the latest 1000 entries are searched, so that the
-- time does not depend on the length of the queue. If there is an older entry, the job is in the queue twice, and the
-- claim drops the second entry as an anomaly.
local function is_in_recent_entries(queue, job)
  return key_type(queue) == 'list' and redis.call('LPOS', queue, job, 'MAXLEN', 1000)
end

-- Returns whether a record was created to be started later. Only start_job, a flow or a message may queue such a job;
-- otherwise any client that may push to a queue could start it. The record says so (`detail` created), and so does
-- mj:stored-bytes-unqueued (lib/stored_usage.lua), even if a client has changed the record.
local function is_only_created(job, claim, detail)
  return not claim.state and (detail == 'created' or call_index('HEXISTS', kStoredBytesUnqueuedKey, job) == 1)
end

-- Removes the entry of an ended job from the list of its queue if the entry is near an end of the list. An entry
-- further inside remains, so that long lists are not searched as a whole; the claim drops such an entry without an
-- anomaly.
local kNearEntries = 1000
local function drop_stale_entry(job, claim, queue)
  if not claim.leftover then return end
  local function is_near_end()
    for _, entry in ipairs(redis.call('LRANGE', queue, -kNearEntries, -1)) do
      if entry == job then return true end
    end
  end
  if key_type(queue) == 'list' then
    if is_near_end() then
      redis.call('LREM', queue, -1, job)
    elseif redis.call('LPOS', queue, job, 'MAXLEN', kNearEntries) then
      redis.call('LREM', queue, 1, job)
    elseif redis.call('LLEN', queue) > 2 * kNearEntries then
      return
    end
  end
  redis.call('HDEL', kClaimKey .. job, 'leftover')
end

-- Releases the idempotency keys of a job that is deleted. A key that names another job is not changed.
local function release_idempotency_keys(job, claim)
  local names_key = kIdempotencyKey .. string.match(job, '^job:(%d+)')
  if key_type(names_key) == 'none' or reports_wrong_type(names_key, 'hash') then return end
  for _, key in ipairs({claim.idem or '', key_type(job) == 'hash' and redis.call('HGET', job, 'idempotency_key') or ''}) do
    if redis.call('HGET', names_key, key) == job then redis.call('HDEL', names_key, key) end
  end
end

-- Adds a new job with a complete record to its first index: its queue, or mj:delayed until its run_at_ms. The caller
-- calls update_change_time(). If pending_pushes is given, a job without a priority is added to this table instead of
-- the queue's list, and the caller pushes all of its jobs together. The other arguments are further fields of the
-- claim.
local function enqueue_new_job(job, queue, record, pending_pushes, ...)
  local due = to_number(record.run_at_ms)
  local is_delayed = due > now_ms
  local claim = {priority = valid_priority(record.priority)}
  if is_delayed then
    redis.call('ZADD', kDelayedKey, to_integer_text(due), job)
    add_fact(queue, job, claim, kFactKindScheduled, kFactDueField, to_integer_text(due))
    -- Agents read the delayed jobs of an idle context less than once a second. The hint may fail, as in push_job().
    if due < now_ms + 1000 then redis.pcall('PUBLISH', kWakeChannel, queue) end
  else
    if pending_pushes and not has_priority(claim) then
      pending_pushes[#pending_pushes + 1] = job
    else
      push_job(job, claim, queue, false)
    end
    add_fact(queue, job, claim, kFactKindScheduled)
  end
  local state = is_delayed and kJobStateDelayed or kJobStateQueued
  if record.idempotency_key then
    write_claim(job, claim, 'state', state, 'queue', queue, 'priority', claim.priority, 'idem', record.idempotency_key, ...)
  else
    write_claim(job, claim, 'state', state, 'queue', queue, 'priority', claim.priority, ...)
  end
  set_queue_deadline(job, to_number(record.queue_timeout_ms), now_ms, due)
end
