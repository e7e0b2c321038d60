-- Claims and leases: claiming jobs, renewing and expiring leases, and reporting ends.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# claim: dispatch_journal job_indexes messages deployments stored_usage job_ends refusals rights
--# at once: add_fact call_index charge check_index_types check_quota check_type dependency_cost find_last_log_seq get_last_log_seq
--# at once: has_inputs has_priority is_job_key is_nearly_full is_only_created key_type list_arg next_arg parse_caller
--# at once: parse_dependencies read_claim read_quota remove_from_index set_claim to_integer_text to_number to_table
--# at once: update_change_time update_node_state valid_priority write_claim written_heads
-- Claims jobs from the right end of queues, and handles entries that cannot run now: they are parked, ended or dropped.
-- ARGV: runner (id), instance (text), actor (id; empty to skip the check of rights; 0 if the agent has no actor),
-- context (id), max_jobs, max_bytes (of the records in the reply), max_script (bytes of a script), max_deliveries,
-- lease_ms, ids (text), queues (list), the quotas in bytes of a caller and of the context.
-- Reply: {number of entries that were skipped (dropped or ended), {{queue, job, index in ids, epoch, attempt,
-- deliveries, record before the claim, last number of the log}...}, paused queues, 1 if the call has reached its limit
-- of entries, {queue, revision, ...} of the journals that were written, time of the claims in ms, number of examined
-- entries (0: the queues are empty or paused)}.
-- Errors: MJDENIED if the actor may not run jobs in this context. A queue with a wrong type is reported as an anomaly,
-- and the other queues are served.
-- Repeat: not idempotent. If the reply is lost, the caller returns the claims with unclaim, by their ids.
local runner, instance, actor, context = next_arg(), next_arg(), next_arg(), next_arg()
local max_jobs, max_bytes, max_script = to_number(next_arg()), to_number(next_arg()), to_number(next_arg())
local max_deliveries, lease_ms = to_number(next_arg()), to_number(next_arg())
-- An id of kClaimIdDigits and a token of kClaimTokenDigits for each of max_jobs claims.
local ids = next_arg()
local queues = list_arg()
read_quota()
local err = check_index_types()
if err then return err end

-- Returns why the actor may not run jobs, or nil. This is the row `work` of the table of rights (security/rights.toml): if
-- the record of the context names executors, only these and the admins may run jobs.
local function find_denial_reason()
  local lists = redis.pcall('HMGET', 'context:' .. context, kRightsWorkLists)
  if lists.err then return 'context:' .. context .. ' is not a hash: its list of executors cannot be read' end
  if not string.find(lists[1] or '', '%d') then return nil end  -- the first list is `executors`
  if actor ~= '0' and is_in_access_lists(lists, actor) then return nil end
  return (actor == '0' and 'this agent has no actor (setting runner_actor), and' or 'actor ' .. actor .. ' may not run jobs in context '
    .. context .. ', which') .. ' allows it to ' .. kRightsWorkListsText .. '; an operator may say: mycojobs context grant ' .. context
    .. ' --executor ' .. (actor == '0' and 'ID' or actor)
end
err = actor ~= '' and find_denial_reason()
if err then
  add_refusal_once(actor, kRightsWorkName, 'jobs', kRightsWorkRefusalList)
  -- An agent may have the right to write its runner record but not the list of refusals. `job explain` reads this
  -- field.
  if key_type('runner:' .. runner) == 'hash' then redis.pcall('HSET', 'runner:' .. runner, 'refused_ms', to_integer_text(now_ms)) end
  return redis.error_reply('MJDENIED ' .. err)
end

local claimed, bytes, skipped, examined, is_reply_full, paused = {}, 0, 0, 0, false, {}
-- Bytes by caller of the records that other clients have written and that are charged at the end of this call.
local charges = {}
local now, lease, until_ms = to_integer_text(now_ms), to_integer_text(lease_ms), to_integer_text(now_ms + lease_ms)
local is_prioritised  -- whether the current entry is from mj:priority:<queue>

-- Removes the current entry from its queue.
local function drop_entry(queue, entry)
  if is_prioritised then redis.call('ZREM', kPriorityKey .. queue, entry) else redis.call('RPOP', queue) end
end

-- Writes a line between the output of two runs into the log of the job, and returns the number of its last entry. The
-- first run has no line. If the previous claim had the same numbers and its run wrote nothing, its line stays, or is
-- replaced if the runner is another.
local function mark_next_run(job, attempt, deliveries)
  local last_seq, key, run = get_last_log_seq(job), kLogKey .. job, attempt .. '.' .. deliveries
  if run == '1.1' then return last_seq end
  local newest = (call_index('XREVRANGE', key, '+', '-', 'COUNT', '1') or {})[1]
  local fields = newest and newest[2] or {}
  local text = 'attempt ' .. attempt .. ', delivery ' .. deliveries .. ', runner ' .. runner .. '\n'
  if fields[#fields - 1] == 'run' and fields[#fields] == run then
    -- A reader that follows the log has this line already.
    if to_table(fields).text == text then return last_seq end
    redis.call('XDEL', key, newest[1])
  end
  local reply = redis.pcall('XADD', key, to_integer_text(last_seq + 1) .. '-0', 'ts', now, 'stream', 'system', 'text', text, 'run', run)
  if type(reply) ~= 'table' or not reply.err then return last_seq + 1 end
  reports_wrong_type(key, 'stream')  -- another client may have written a log of its own
  return last_seq
end

-- Adds the previous run to the runs by which readers find the output on the disks of the runners, if the next run begins
-- behind its numbers. The oldest of many runs are dropped. The list stays short, since it is read with each claim.
local kMaxLogRunsBytes = 1024
local function add_log_run(job, claim, log_base)
  local runs = claim.log_runs or ''
  if not claim.epoch or not claim.runner or log_base <= to_number(string.match(runs, '(%d+):%d+:%d+$')) then return end
  local run = to_integer_text(log_base) .. ':' .. to_integer_text(to_number(claim.epoch)) .. ':' .. to_integer_text(to_number(claim.runner))
  runs = runs == '' and run or runs .. ' ' .. run
  if #runs > kMaxLogRunsBytes then runs = string.match(runs, '^%S+ (.*)$') end
  redis.call('HSET', kClaimKey .. job, 'log_runs', runs)
end

-- Makes the claim of a job: lease, fact, claim, concurrency slot, record. Adds the job with its previous record to
-- `claimed`.
local function claim_job(queue, job, claim, record, ckey)
  local index = #claimed + 1
  local epoch = math.max(to_number(claim.epoch) + 1, now_us)
  local attempt, deliveries = math.max(1, to_number(claim.attempt)), to_number(claim.deliveries) + 1
  epoch, attempt, deliveries = to_integer_text(epoch), to_integer_text(attempt), to_integer_text(deliveries)
  local token_end = (kClaimIdDigits + kClaimTokenDigits) * index
  local id_end = token_end - kClaimTokenDigits
  local id, token = string.sub(ids, id_end - kClaimIdDigits + 1, id_end), redis.sha1hex(string.sub(ids, id_end + 1, token_end))
  local log_base = mark_next_run(job, attempt, deliveries)
  add_log_run(job, claim, log_base)
  redis.call('ZADD', kLeasesKey, until_ms, job)
  add_fact(queue, job, claim, kFactKindClaimed, kFactClaimIdField, id, kFactTokenHashField, token, kFactEpochField, epoch,
    kFactAttemptField, attempt, kFactDeliveriesField, deliveries, kFactRunnerField, runner, kFactInstanceField, instance, kFactLeaseField, lease)
  set_claim(job, claim, 'state', kJobStateLive, 'claim_id', id, 'token', token, 'epoch', epoch, 'attempt', attempt,
    'deliveries', deliveries, 'runner', runner, 'instance', instance, 'queue', queue, 'lease_ms', lease,
    'until_ms', until_ms, 'began', now, 'kept', claim.kept)
  if log_base > 0 or claim.log_base then redis.call('HSET', kClaimKey .. job, 'log_base', to_integer_text(log_base)) end
  if ckey then
    redis.call('SADD', kRunningKey .. ckey, job)
    redis.call('HSET', kClaimKey .. job, 'ckey', ckey)
  end
  redis.call('HSET', job, 'status', kJobStatusStarted, 'detail', 'claimed', 'attempt', attempt, 'deliveries', deliveries,
    'epoch', epoch, 'runner_id', runner, 'claim_id', id, 'lease_until_ms', until_ms, 'started_ms', now, 'updated_at', now_s)
  drop_entry(queue, job)
  remove_from_index(job, claim, kJobStateQueued)
  if claim.overdue then
    redis.call('ZREM', kQueueDeadlinesKey, job)
    redis.call('HDEL', kClaimKey .. job, 'overdue')
  end
  if claim['end'] then redis.call('HDEL', kClaimKey .. job, 'end') end
  -- An agent of an earlier version that returned the job has not deleted these fields.
  if claim.mark_since or claim.end_saved then redis.call('HDEL', kClaimKey .. job, 'end_saved', 'mark_reason', 'mark_since') end
  if claim.turn then redis.call('HDEL', kClaimKey .. job, 'held', 'turn') end
  claimed[index] = {queue, job, index, epoch, attempt, deliveries, record, to_integer_text(log_base)}
  claim.state = kJobStateLive
  update_node_state(job, claim)
end

-- Drops an entry without a valid job and adds a dead letter.
local function add_dead_letter(queue, entry, reason)
  add_dead_letter_entry(entry, queue, reason)
  drop_entry(queue, entry)
  skipped = skipped + 1
end
-- Drops an entry that should not exist, for example a second entry of the same job, and records an anomaly.
local function drop_invalid_entry(queue, entry, reason)
  add_anomaly(to_printable(queue) .. ': ' .. entry .. ' ' .. reason .. '; the entry was dropped')
  drop_entry(queue, entry)
  skipped = skipped + 1
end
-- Ends a job that can never run, and adds a dead letter.
local function end_as_failed(queue, job, claim, reason, text)
  local id = add_dead_letter_entry(job, queue, reason)
  end_job(job, claim, failure_fields('dead_letter', text), false)
  if claim then redis.call('HSET', kClaimKey .. job, 'dead', id) end
  drop_entry(queue, job)
  skipped = skipped + 1
end

-- Delays a job because an index that it needs has a wrong type (err), so that the other jobs of its queue can run.
local function postpone_entry(queue, job, claim, err)
  park_job(job, claim, queue, kJobStateDelayed, kParkReasonDelayed, 'delayed', kFactDueField, delay_for_wrong_type(job, claim, err))
  drop_entry(queue, job)
  return true
end

-- Returns the error for a set of dependents that has a wrong type. Most of these sets do not exist, so one EXISTS
-- checks many of them.
local function check_dependents_type(deps)
  for first = 1, #deps, 1000 do
    local keys = {}
    for i = first, math.min(first + 999, #deps) do keys[#keys + 1] = kDependentsKey .. deps[i] end
    local any_exists = redis.call('EXISTS', unpack(keys)) > 0
    for _, key in ipairs(any_exists and keys or {}) do
      local err = check_type(key, 'set')
      if err then return err end
    end
  end
end

-- Returns whether the caller exceeds a quota. Its jobs do not start then, since their output and ends would be stored,
-- too. tick queues them again when the caller stores less (waits_for_quota).
local exceeded_by_caller = {}  -- the setting of the exceeded quota, or false, by caller
local function is_quota_exceeded(caller)
  if exceeded_by_caller[caller] == nil then
    exceeded_by_caller[caller] = check_quota(caller, charges[caller]) or false
    if exceeded_by_caller[caller] then request_retirement(caller) end
  end
  return exceeded_by_caller[caller]
end
local function delay_for_quota(queue, job, claim)
  local due = to_integer_text(now_ms + kQuotaPauseMs)
  redis.call('ZADD', kDelayedKey, due, job)
  park_job(job, claim, queue, kJobStateDelayed, kParkReasonQuota, 'quota', kFactDueField, due)
  redis.call('HSET', kClaimKey .. job, 'quota', exceeded_by_caller[parse_caller(job)])
  drop_entry(queue, job)
  return true
end

-- Parks or ends a job that may not run now, and returns true. Otherwise returns false and its concurrency key, if it
-- has one.
local function park_if_blocked(queue, job, claim, record)
  -- Dependencies between the jobs of a flow are evaluated by the flow, which may continue after a failure.
  local deps = claim.deps ~= 'met' and not claim.flow and parse_dependencies(job, record.dependends) or {}
  examined = examined + dependency_cost(#deps)
  local open_dependencies = {}
  for _, dep in ipairs(deps) do
    local end_status = get_end_status(dep)
    if end_status == kJobStatusError then
      end_job(job, claim, failure_fields('dependency_failed', dep .. ', which it depends on, has failed'), false)
      drop_entry(queue, job)
      return true
    end
    if not end_status then open_dependencies[#open_dependencies + 1] = dep end
  end
  if has_inputs(record.inputs) then for _, dep in ipairs(deps) do add_needed_by(dep, job) end end
  if #open_dependencies > 0 then
    local err = check_type(kDependenciesKey .. job, 'set') or check_dependents_type(open_dependencies)
    if err then return postpone_entry(queue, job, claim, err) end
    for _, dep in ipairs(open_dependencies) do
      redis.call('SADD', kDependenciesKey .. job, dep)
      redis.call('SADD', kDependentsKey .. dep, job)
    end
    park_job(job, claim, queue, kJobStateWaiting, kParkReasonDependencies, 'dependencies')
    drop_entry(queue, job)
    return true
  end
  if #deps > 0 then redis.call('HSET', kClaimKey .. job, 'deps', 'met') end
  local conditions = record.prerequisites
  if conditions and conditions ~= '' and conditions ~= '[]' and claim.prerequisites ~= 'met' then
    redis.call('ZADD', kPrerequisitesKey, to_integer_text(now_ms), job)
    park_job(job, claim, queue, kJobStatePrerequisites, kParkReasonPrerequisite, 'prerequisite')
    drop_entry(queue, job)
    return true
  end
  local due = to_number(record.run_at_ms)
  if due > now_ms and to_number(claim.attempt) <= 1 then
    redis.call('ZADD', kDelayedKey, to_integer_text(due), job)
    park_job(job, claim, queue, kJobStateDelayed, kParkReasonDelayed, 'delayed', kFactDueField, to_integer_text(due))
    drop_entry(queue, job)
    return true
  end
  if is_quota_exceeded(parse_caller(job)) then return delay_for_quota(queue, job, claim) end
  local key = record.concurrency_key
  if key and key ~= '' and #key <= 255 then
    local err = check_type(kRunningKey .. key, 'set') or check_type(kHeldKey .. key, 'zset')
    if err then return postpone_entry(queue, job, claim, err) end
    if redis.call('SCARD', kRunningKey .. key) >= math.max(1, to_number(record.concurrency_limit)) then
      hold_for_slot(job, claim, key)
      park_job(job, claim, queue, kJobStateHeld, kParkReasonHeld, 'held')
      drop_entry(queue, job)
      return true
    end
    return false, key
  end
end

local kShortFields = {'status', 'detail', 'dependends', 'prerequisites', 'run_at_ms', 'concurrency_key', 'concurrency_limit', 'queue_timeout_ms',
  'queued_ms', 'priority'}
local kMaxOtherFieldBytes = 16777216  -- limit for the fields of a record except the script
-- Reads a record. Returns {name, value, ...}, the length of the script, and, if the record is too long, the reason; of
-- such a record only kShortFields are read. Returns nil if the key is not a hash.
local function read_record(job)
  local bytes = redis.pcall('MEMORY', 'USAGE', job, 'SAMPLES', '0')
  if type(bytes) == 'number' and bytes <= max_script then
    local record = redis.pcall('HGETALL', job)
    return not record.err and record or nil, bytes
  end
  local script = redis.pcall('HSTRLEN', job, 'script')
  if type(script) ~= 'number' then return nil end
  local size_error
  if script > max_script then
    size_error = 'script: ' .. script .. ' bytes are more than the ' .. to_integer_text(max_script) .. ' that job.max_script_bytes allows'
  else
    local field, size = find_oversized_field(job, 2 * max_script + kMaxOtherFieldBytes)
    if not field then return redis.call('HGETALL', job), script end
    size_error = field .. ': ' .. to_integer_text(size) .. ' bytes exceed the limit of a job record: store them in a file or an object'
  end
  local record = {}
  for _, name in ipairs(kShortFields) do
    local size = redis.call('HSTRLEN', job, name)
    if size > 0 and size <= 65536 then
      record[#record + 1] = name
      record[#record + 1] = redis.call('HGET', job, name)
    end
  end
  return record, script, size_error
end

-- Drops an entry with an invalid key such as job:12:007. If the key has a record, an end is written to the record, so
-- that the client that created it sees why the job never runs.
local function end_job_with_bad_key(queue, entry)
  local status = string.match(entry, '^job:%d+:%d+$') and redis.pcall('HMGET', entry, 'status', 'id')
  if status and not status.err and (status[1] or status[2]) and status[1] ~= kJobStatusFinished and status[1] ~= kJobStatusError then
    redis.call('HSET', entry, 'ended_ms', now, 'updated_at', now_s, unpack(failure_fields('dead_letter',
      'key: ' .. entry .. ' is not valid: caller and id are 1 to 4294967295, without leading zeros')))
  end
  add_dead_letter(queue, entry, 'bad_key')
end

-- Processes the next entry of a queue: claims its job, or parks, ends or drops it.
local function claim_entry(queue, entry)
  if not is_job_key(entry) then return end_job_with_bad_key(queue, entry) end
  local claim = read_claim(entry)
  local state = claim and claim.state
  if state and state ~= kJobStateQueued and claim.leftover then
    redis.call('HDEL', kClaimKey .. entry, 'leftover')
    return drop_entry(queue, entry)
  end
  if state == kJobStateEnded then return drop_invalid_entry(queue, entry, 'has ended already') end
  if state == kJobStateLive then return drop_invalid_entry(queue, entry, 'is claimed already') end
  if state and state ~= kJobStateQueued then return drop_invalid_entry(queue, entry, 'is ' .. to_printable(state) .. ' and not to be taken yet') end
  if state and claim.queue and claim.queue ~= queue then return drop_invalid_entry(queue, entry, 'belongs to ' .. to_printable(claim.queue or '')) end
  local record_list, script_bytes, size_error = read_record(entry)
  if record_list and #record_list == 0 and script_bytes == 0 and not size_error then
    redis.call('ZADD', kMissingRecordsKey, 'NX', to_integer_text(now_ms), entry .. ' ' .. queue)
    drop_entry(queue, entry)
    skipped = skipped + 1
    return
  end
  if not record_list then return add_dead_letter(queue, entry, 'wrong_type') end
  if not claim then
    return end_as_failed(queue, entry, nil, 'wrong_type', kClaimKey .. entry .. ' is not a hash: another client wrote it')
  end
  local record = to_table(record_list)
  if not state and (record.status == kJobStatusFinished or record.status == kJobStatusError) then
    return drop_invalid_entry(queue, entry, 'has a record that says ' .. record.status)
  end
  if is_only_created(entry, claim, record.detail) then return drop_invalid_entry(queue, entry, 'was created, but not started') end
  claim.queue = queue
  if claim.cancel then
    end_job(entry, claim, failure_fields('cancelled', 'cancelled'), false)
    return drop_entry(queue, entry)
  end
  if size_error then return end_as_failed(queue, entry, claim, 'too_large', size_error) end
  local deliveries = to_number(claim.deliveries)
  if deliveries >= max_deliveries then
    return end_as_failed(queue, entry, claim, 'crash_loop', 'crash_loop: ' .. deliveries
      .. ' runs ended without a report (runner killed or lost each time); job.max_deliveries allows no more')
  end
  local timeout_ms, until_ms = to_number(record.queue_timeout_ms), nil
  if timeout_ms > 0 and has_not_run(claim) then
    -- A job of a plain client has no queued_ms. If tick has indexed its deadline, that is used; otherwise its wait begins
    -- now.
    local indexed_deadline = to_number(record.queued_ms) == 0 and redis.call('ZSCORE', kQueueDeadlinesKey, entry)
    if indexed_deadline then claim.overdue = '1' end
    until_ms = indexed_deadline and to_number(indexed_deadline) or compute_queue_deadline(timeout_ms, to_number(record.queued_ms), to_number(record.run_at_ms))
  end
  if until_ms and now_ms > until_ms then
    end_job(entry, claim, failure_fields('timeout', 'it waited longer than its queue_timeout_ms of ' .. to_integer_text(timeout_ms) .. ' allows'), false)
    return drop_entry(queue, entry)
  end
  if not claim.priority then claim.priority = valid_priority(record.priority) end
  local is_blocked, ckey = park_if_blocked(queue, entry, claim, record)
  if is_blocked and until_ms and claim.state ~= kJobStateEnded then
    redis.call('ZADD', kQueueDeadlinesKey, to_integer_text(until_ms), entry)
    redis.call('HSET', kClaimKey .. entry, 'overdue', 1)
  end
  if is_blocked then return end
  local size = 0
  for _, text in ipairs(record_list) do size = size + #text end
  if #claimed > 0 and bytes + size > max_bytes then
    is_reply_full = true
    return
  end
  bytes = bytes + size
  if not claim.kept then
    local created_charge = claim.state and pop_created_charge(entry)
    local caller, charge_bytes = parse_caller(entry), created_charge or math.max(kMinChargedBytes, size)
    if not created_charge then
      charges[caller] = (charges[caller] or 0) + charge_bytes
      exceeded_by_caller[caller] = nil
    end
    claim.kept = to_integer_text(charge_bytes)
  end
  claim_job(queue, entry, claim, record_list, ckey)
end

-- Returns the next entry of a queue: first the priorities above 0, then the list, then the priorities below 0. Returns
-- the error (a table) if the queue is not a list.
local function next_entry(queue, has_priorities)
  local low_priority_entry
  if has_priorities then
    local first = redis.call('ZRANGE', kPriorityKey .. queue, 0, 0, 'WITHSCORES')
    if first[1] and to_number(first[2]) < kMaxPriority * kPriority then
      is_prioritised = true
      return first[1]
    end
    low_priority_entry = first[1]
  end
  local entry = redis.pcall('LINDEX', queue, '-1')
  is_prioritised = not entry and low_priority_entry ~= nil
  return entry or low_priority_entry
end

local function report_invalid_queue(queue)
  add_anomaly(to_printable(queue) .. ' is a ' .. key_type(queue) .. ' where a list belongs: delete it')
end

-- Few queues have priorities or are paused, so one EXISTS checks all of them.
local priority_keys = {}
for i, queue in ipairs(queues) do priority_keys[i] = kPriorityKey .. queue end
local has_any_priority = #queues > 0 and redis.call('EXISTS', unpack(priority_keys)) > 0
local has_any_paused = redis.call('EXISTS', kPausedKey) == 1
for i, queue in ipairs(queues) do
  local priority_type = has_any_priority and key_type(priority_keys[i]) or 'none'
  local has_priorities = priority_type == 'zset'
  if not has_priorities and priority_type ~= 'none' then reports_wrong_type(priority_keys[i], 'zset') end
  if has_priorities and check_type(queue, 'list') then
    report_invalid_queue(queue)
  elseif has_any_paused and redis.call('SISMEMBER', kPausedKey, queue) == 1 then
    paused[#paused + 1] = queue
  else
    -- The number of entries in one call is limited, so that other clients of Redis do not wait long.
    while #claimed < max_jobs and examined < 256 and not is_reply_full do
      local entry = next_entry(queue, has_priorities)
      if not entry then break end
      if type(entry) == 'table' then
        report_invalid_queue(queue)
        break
      end
      examined = examined + 1
      claim_entry(queue, entry)
    end
  end
end
for caller, charge_bytes in pairs(charges) do charge(caller, charge_bytes) end
return {skipped, claimed, paused, examined >= 256 and 1 or 0, written_heads(), now, examined}

--# renew: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Renews the leases of a runner.
-- ARGV: lease_ms, count, then for each claim: job (key), claim_id, token.
-- Reply: for each claim 0 (stale), 1 (renewed), or 2 (renewed, and cancellation of the job was requested).
-- Repeat: safe; a repeat extends the leases again.
local lease_ms, count = to_number(next_arg()), to_number(next_arg())
local err = check_index_types()
if err then return err end
local replies = {}
for i = 1, count do
  local job, claim_id, token = next_arg(), next_arg(), next_arg()
  local claim = find_claim(job)
  if is_live(claim, claim_id, token) then
    -- The end of a lease always grows, even if the clock was set back, so that observers of the lease detect the
    -- renewal.
    local until_ms = to_integer_text(math.max(to_number(claim.until_ms) + 1, now_ms + lease_ms))
    -- Some renewals become facts: the first after one minute, then one each time the run time has doubled.
    local next_fact_ms = claim.beat and to_number(claim.beat) or to_number(claim.began) + 60000
    if now_ms >= next_fact_ms then
      add_fact(claim.queue, job, claim, kFactKindHeartbeat, kFactClaimIdField, claim_id)
      set_claim(job, claim, 'beat', to_integer_text(now_ms + now_ms - to_number(claim.began)))
    end
    redis.call('HSET', kClaimKey .. job, 'until_ms', until_ms, 'lease_ms', to_integer_text(lease_ms))
    redis.call('ZADD', kLeasesKey, until_ms, job)
    if has_type(job, 'hash') then redis.call('HSET', job, 'lease_until_ms', until_ms) end
    replies[i] = claim.cancel and 2 or 1
  elseif not is_claim_owner(claim, claim_id, token) or claim.state == kJobStateLive or claim.reason == kFactKindExpired then
    add_anomaly(job .. ': a renewal by claim ' .. to_printable(claim_id) .. ' was too late')
    replies[i] = 0
  else
    replies[i] = 0  -- the claim's own end or release was stored before
  end
end
return replies

--# report: dispatch_journal job_indexes messages deployments stored_usage job_ends
--# at once: add_fact call_index charge_end check_index_types check_type delete_run_fields end_job enqueue_notice
--# at once: get_context_notify get_detail get_queue is_claim_owner is_live key_type list_arg next_arg read_claim read_quota
--# at once: release_slot remove_from_index set_claim sum_bytes to_integer_text to_number to_table update_change_time
--# at once: write_claim write_end written_heads
-- Stores reports of runners in order.
-- ARGV: count, the quotas in bytes of a caller and of the context, then for each report: kind (log, end, long_end,
-- release, inputs or mark), job (key), claim_id, token, texts (list; see the function of each kind).
-- Reply: for each report {word, text}, where the word is ok, stale (the claim is not live), conflict (the job has
-- another end) or invalid; then {queue, revision, ...} of the journals that were written.
-- Errors: an unexpected error of Redis ends the call; the reports before it are stored.
-- Repeat: safe. Log lines with a stored number are skipped, and the same end or release of the same claim is ok.
local count = to_number(next_arg())
read_quota()
local err = check_index_types()
if err then return err end

-- Records an anomaly for a report of a claim that is not live, and returns the reply `stale`.
local function stale_reply(job, report_name, claim_id)
  add_anomaly(job .. ': ' .. report_name .. ' by claim ' .. to_printable(claim_id) .. ' was too late')
  return {'stale', ''}
end

-- Parses "<number>" or "<number> <size>" of a line.
local function parse_line_number(text)
  local number, size = string.match(text, '^(%d+) ?(%d*)$')
  return to_number(number), size
end

-- Charges new lines of output, and stores their number of bytes in the claim. Returns a positive number if the lines
-- may be stored. Returns 0 if a quota is exceeded; for the first dropped line, the second value is a log line that
-- reports this.
local function charge_output(job, claim, lines, seqs, last_seq)
  local bytes, charged_bytes = 0, to_number(claim.log_bytes)
  for i = 1, #lines - 3, 4 do
    if seqs[i] > last_seq then bytes = bytes + #lines[i + 3] + kLineBytes end
  end
  if bytes == 0 then return 1 end
  local caller, charge_bytes = parse_caller(job), log_charge(charged_bytes + bytes) - log_charge(charged_bytes)
  local is_full, setting, limit = claim.log_full == '1', nil, nil
  if charge_bytes > 0 then setting, limit = charge(caller, charge_bytes, kQuotaEighths) elseif is_full then setting, limit = check_quota(caller, kLogChargeStepBytes) end
  if not setting then
    redis.call('HSET', kClaimKey .. job, 'log_bytes', to_integer_text(charged_bytes + bytes))
    if is_full then redis.call('HSET', kClaimKey .. job, 'log_full', 0) end
    return bytes
  end
  if is_full then return 0 end
  redis.call('HSET', kClaimKey .. job, 'log_full', 1)
  return 0, 'output is not kept from here on: the jobs of caller ' .. caller .. ' keep as much as ' .. setting .. ' allows, '
    .. to_integer_text(limit) .. ' bytes\n'
end
-- Deletes lines of the output that the tail of a running job has left behind, and releases their charge. Lines of the
-- agent (stream `system`) between them stay. Agents send ranges of at most kMaxDroppedEntries.
local kMaxDroppedEntries = '512'
local function drop_output(job, claim, first, last)
  local ids, bytes, key = {}, 0, kLogKey .. job
  for _, entry in ipairs(call_index('XRANGE', key, first .. '-0', last .. '-0', 'COUNT', kMaxDroppedEntries) or {}) do
    local fields = to_table(entry[2])
    if fields.size and fields.text and fields.stream ~= 'system' then
      ids[#ids + 1], bytes = entry[1], bytes + #fields.text + kLineBytes
    end
  end
  for i = 1, #ids, 100 do redis.call('XDEL', key, unpack(ids, i, math.min(i + 99, #ids))) end
  local charged_bytes = to_number(claim.log_bytes)
  local remaining_bytes = math.max(0, charged_bytes - bytes)
  release_charge(parse_caller(job), log_charge(charged_bytes) - log_charge(remaining_bytes))
  claim.log_bytes = to_integer_text(remaining_bytes)
  redis.call('HSET', kClaimKey .. job, 'log_bytes', claim.log_bytes)
end

-- Report `log`: appends lines of output. `lines` has number, time in ms, stream and text of each line, and at the end, if
-- lines are to be deleted, the first and the last of their numbers. "<number> <size>" is the number of a line with
-- Log::size.
local function handle_log(job, claim_id, token, lines)
  local claim = read_claim(job)
  if not is_live(claim, claim_id, token) then return stale_reply(job, 'output', claim_id) end
  local key = kLogKey .. job
  local log_base, last_seq = to_number(claim.log_base), get_last_log_seq(job)
  if #lines % 4 == 2 then
    drop_output(job, claim, to_integer_text(log_base + to_number(lines[#lines - 1])), to_integer_text(log_base + to_number(lines[#lines])))
  end
  local seqs, sizes = {}, {}
  for i = 1, #lines - 3, 4 do
    local number, size = parse_line_number(lines[i])
    seqs[i], sizes[i] = log_base + number, size
  end
  local bytes, gap_text = charge_output(job, claim, lines, seqs, last_seq)
  for i = 1, #lines - 3, 4 do
    local seq, size = seqs[i], sizes[i]
    if seq > last_seq then
      if bytes == 0 then
        if not gap_text then break end
        lines[i + 2], lines[i + 3], size = 'system', gap_text, ''
      end
      local fields = {'ts', lines[i + 1], 'stream', lines[i + 2], 'text', lines[i + 3]}
      if size ~= '' then fields[7], fields[8] = 'size', size end
      local reply = redis.pcall('XADD', key, to_integer_text(seq) .. '-0', unpack(fields))
      if type(reply) == 'table' and reply.err then
        if string.find(reply.err, 'WRONGTYPE', 1, true) or string.find(reply.err, 'equal or smaller', 1, true) then
          return {'invalid', key .. ' has another type, written by another client: delete it'}
        end
        return reply
      end
      if bytes == 0 then break end
    end
  end
  return {'ok', ''}
end

-- Delays a failed attempt until the next attempt. The record shows the failure in the meantime.
local function delay_retry(job, claim, fields, end_digest, after_ms)
  local due, detail = to_integer_text(now_ms + after_ms), get_detail(fields)
  redis.call('ZADD', kDelayedKey, due, job)
  add_fact(claim.queue, job, claim, kFactKindRetry, kFactClaimIdField, claim.claim_id, kFactEpochField, claim.epoch,
    kFactDetailField, detail, kFactDueField, due)
  set_claim(job, claim, 'state', kJobStateDelayed, 'reason', kFactKindRetry, 'attempt', to_number(claim.attempt) + 1, 'deliveries', 0,
    'end', end_digest, 'waiting_since', to_integer_text(now_ms), unpack(charge_end(job, claim, fields)))
  redis.call('HDEL', kClaimKey .. job, unpack(kRunFields, 1, kLeaseFieldCount))
  remove_from_index(job, claim, kJobStateLive)
  if has_type(job, 'hash') then
    redis.call('HDEL', job, kJobEndFields, 'lease_until_ms', 'claim_id', 'runner_id')
    redis.call('HSET', job, unpack(fields))
    redis.call('HSET', job, 'status', kJobStatusDispatched, 'detail', 'retry_wait', 'updated_at', now_s)
  end
  claim.state = kJobStateDelayed
  update_node_state(job, claim)
end

-- Stores an end, or delays the job for its next attempt. retry_ms is the pause before that attempt, or -1. end_digest
-- is the digest of the fields. If the end has long texts, `short` has digest (sum) and fields of the same end without
-- them.
local function store_end(job, claim_id, token, retry_ms, end_digest, fields, short)
  local claim = read_claim(job)
  if not claim then return {'invalid', kClaimKey .. job .. ' has another type, written by another client: delete it'} end
  if claim.state ~= kJobStateLive and is_claim_owner(claim, claim_id, token) and claim['end'] then
    if claim['end'] == end_digest or short and claim['end'] == short.sum then return {'ok', ''} end
    return {'conflict', job .. ' has ended already, in another way'}
  end
  if not is_live(claim, claim_id, token) then return stale_reply(job, 'an end', claim_id) end
  if short and is_end_refused(job, claim, fields) then end_digest, fields = short.sum, short.fields end
  if retry_ms >= 0 and fields[2] == kJobStatusError and not claim.cancel then
    delay_retry(job, claim, fields, end_digest, retry_ms)
    return {'ok', ''}
  end
  local dead_letter_id = get_detail(fields) == 'dead_letter' and add_dead_letter_entry(job, claim.queue or '', 'bad_record')
  end_job(job, claim, fields, end_digest)
  if dead_letter_id then redis.call('HSET', kClaimKey .. job, 'dead', dead_letter_id) end
  return {'ok', ''}
end

-- Report `end`. `texts` has -1 or the pause in ms before the next attempt, the digest of the fields, and the fields.
local function handle_end(job, claim_id, token, texts)
  return store_end(job, claim_id, token, tonumber(table.remove(texts, 1)), table.remove(texts, 1), texts)
end
-- Report `long_end`. `texts` has -1 or the pause, the digest of the fields, the digest of the short fields, the number
-- of texts in the short fields, the short fields, and the fields.
local function handle_long_end(job, claim_id, token, texts)
  local retry_ms, end_digest, count = tonumber(texts[1]), texts[2], tonumber(texts[4])
  local short = {sum = texts[3], fields = {unpack(texts, 5, 4 + count)}}
  return store_end(job, claim_id, token, retry_ms, end_digest, {unpack(texts, 5 + count)}, short)
end

-- Returns whether an earlier report of the same owner has released the claim.
local function is_released_by(claim, claim_id, token)
  return is_claim_owner(claim, claim_id, token) and (claim.state == kJobStateQueued or claim.state == kJobStateDelayed)
    and claim.reason == kFactKindReleased
end
-- Report `release`. `texts` has the reason, and '0' if the run had not begun.
local function handle_release(job, claim_id, token, texts)
  local claim = read_claim(job)
  if is_released_by(claim, claim_id, token) then return {'ok', ''} end
  if not is_live(claim, claim_id, token) then return stale_reply(job, 'a release', claim_id) end
  local err = release_claimed_job(job, claim, texts[1], texts[2] ~= '0')
  return err and {'invalid', err.err} or {'ok', ''}
end

-- Report `inputs`. `texts` has the runner that does not send the inputs, the maximum wait for that runner in ms, the
-- reason, '1' if an object storage has the inputs, too, and the keys of the jobs whose artifacts are needed.
local function handle_inputs(job, claim_id, token, texts)
  local claim = read_claim(job)
  if is_released_by(claim, claim_id, token) then return {'ok', ''} end
  if not is_live(claim, claim_id, token) then return stale_reply(job, 'a wait for inputs', claim_id) end
  local err = park_for_inputs(job, claim, texts[1], to_number(texts[2]), texts[3], {unpack(texts, 5)}, texts[4] == '1')
  return err and {'invalid', err.err} or {'ok', ''}
end

-- Report `mark`. `texts` has the new `detail` of the record, the reason for users or an empty text, and '1' if the end
-- of the job is on the disk of the runner.
local function handle_mark(job, claim_id, token, texts)
  local claim = read_claim(job)
  if not is_live(claim, claim_id, token) then return stale_reply(job, 'a mark', claim_id) end
  if has_type(job, 'hash') then redis.call('HSET', job, 'detail', texts[1], 'updated_at', now_s) end
  if texts[2] ~= '' then
    redis.call('HSET', kClaimKey .. job, 'mark_reason', texts[2], 'mark_since', claim.mark_since or to_integer_text(now_ms))
  end
  if texts[3] == '1' then redis.call('HSET', kClaimKey .. job, 'end_saved', 1) end
  update_change_time(job)
  return {'ok', ''}
end

local handlers = {log = handle_log, ['end'] = handle_end, long_end = handle_long_end, release = handle_release,
  inputs = handle_inputs, mark = handle_mark}
local replies = {}
for i = 1, count do
  local kind, job, claim_id, token = next_arg(), next_arg(), next_arg(), next_arg()
  local reply = handlers[kind](job, claim_id, token, list_arg())
  if reply.err then return reply end
  replies[i] = reply
end
replies[count + 1] = written_heads()
return replies

--# unclaim: dispatch_journal job_indexes messages deployments stored_usage job_ends leases
-- Releases claims after a lost reply: no agent runs their jobs. The jobs return to their queues without a counted
-- delivery. Each call processes one page of the leases.
-- ARGV: cursor (position from the last reply; empty: begin), claim_ids (list).
-- Reply: {position for the next call, or empty after the last page, number of released jobs}.
-- Repeat: safe; released claims are not live any more.
local cursor, claim_ids = next_arg(), {}
for _, id in ipairs(list_arg()) do claim_ids[id] = true end
local err = check_index_types()
if err then return err end
local released, page, next_page = 0, read_lease_page(cursor)
for i = 1, #page, 2 do
  local job = page[i]
  local key = kClaimKey .. job
  local id = has_type(key, 'hash') and redis.call('HGET', key, 'claim_id')
  if id and claim_ids[id] then
    local claim = read_claim(job)
    if claim and claim.state == kJobStateLive and not release_claimed_job(job, claim, 'the answer to its claim was lost', false) then released = released + 1 end
  end
end
return {next_page, released}

--# leases: leases
-- Reads one page of the live claims.
-- ARGV: cursor (position from the last reply; empty: begin).
-- Reply: {position for the next call, or empty after the last page, {job, until_ms, lease_ms}...}.
-- Repeat: safe; read-only.
local cursor = next_arg()
local err = check_type(kLeasesKey, 'zset')
if err then return err end
local page, next_page = read_lease_page(cursor)
local reply = {next_page}
for i = 1, #page, 2 do
  local key = kClaimKey .. page[i]
  local lease_ms = key_type(key) == 'hash' and redis.call('HGET', key, 'lease_ms')
  reply[#reply + 1] = {page[i], page[i + 1], lease_ms or '0'}
end
return reply

--# expire: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Expires a lease. The caller must have observed the lease without renewal for a whole lease on its own clock.
-- ARGV: job (key), until_ms (end of the observed lease).
-- Reply: 1 if the job was returned to its queue, or has ended because its cancellation was requested; 0 if the lease
-- was renewed, is not over, or does not exist.
-- Errors: MJTYPE if the queue of the job has a wrong type.
-- Repeat: safe; the reply is 0.
local job, until_ms = next_arg(), to_number(next_arg())
local err = check_index_types()
if err then return err end
local claim = find_claim(job)
if not claim then return 0 end
if not claim.state and key_type(job) == 'hash' and redis.call('HGET', job, 'status') == kJobStatusStarted then
  -- Another client has deleted the claim. Reports of its owner are refused since then, and the owner kills the run. The
  -- job returns to its queue, so that it is not lost. The clock of the observer may be slightly ahead; it tries again
  -- later.
  if now_ms <= until_ms then return 0 end
  local queue = get_queue(job)
  err = check_type(queue, 'list')
  if err then return err end
  redis.call('RPUSH', queue, job)
  add_anomaly(job .. ' had a lease without a claim: returned to ' .. to_printable(queue))
  redis.call('HSET', job, 'status', kJobStatusDispatched, 'detail', 'queued', 'updated_at', now_s)
  redis.call('ZREM', kLeasesKey, job)
  return 1
end
if claim.state ~= kJobStateLive then
  redis.call('ZREM', kLeasesKey, job)  -- the entry belongs to no live claim
  return 0
end
if to_number(claim.until_ms) ~= until_ms then return 0 end
-- The caller has observed the lease without renewal for a whole lease. If the end of the lease is further away than its
-- length, the clock was set back, and only the observation counts.
local remaining_ms = until_ms - now_ms
if remaining_ms >= 0 and remaining_ms <= to_number(claim.lease_ms) then return 0 end
return return_to_queue(job, claim, kFactKindExpired, 'its lease ran out') or 1

--# expire_instance: dispatch_journal job_indexes messages deployments stored_usage job_ends leases
-- Expires the leases of a runner's instance after all of its processes have ended. Each call processes one page of the
-- leases. Claims whose end is on the disk of the runner are kept: the next agent of the runner continues them.
-- ARGV: runner (id), instance (text), cursor (position from the last reply; empty: begin).
-- Reply: {position for the next call, or empty after the last page, job...}.
-- Repeat: safe; jobs that were returned have no live claim.
local runner, instance, cursor = next_arg(), next_arg(), next_arg()
local err = check_index_types()
if err then return err end
local page, next_page = read_lease_page(cursor)
local jobs = {next_page}
for i = 1, #page, 2 do
  local job = page[i]
  local claim = find_claim(job)
  if claim and claim.state == kJobStateLive and claim.runner == runner and claim.instance == instance and instance ~= '' and not claim.end_saved then
    if not return_to_queue(job, claim, kFactKindExpired, 'its agent has ended') then jobs[#jobs + 1] = job end
  end
end
return jobs

--# grant: dispatch_journal
-- Extends each live claim to a whole lease after the server was restarted; no lease becomes shorter. Stores the
-- revision that each journal had at the restart, so that lost facts are detected.
-- ARGV: run_id (text, the server's id of this start).
-- Reply: {number of extended claims, 1 if another start had been recorded before, {queue, revision of its journal at
-- the start, ...}}. If this start was recorded already: {0, 0, the same list}.
-- Repeat: safe; a call for the same start changes nothing.
local run_id = next_arg()
local err = check_type(kServerKey, 'string') or check_type(kLeasesKey, 'zset') or check_type(kJournalHeadsKey, 'hash') or check_type(kQueuesKey, 'set')
if err then return err end
local stored_run_id = redis.call('GET', kServerKey)
if stored_run_id == run_id then return {0, 0, redis.call('HGETALL', kJournalHeadsKey)} end
local heads, extended = {}, 0
for _, queue in ipairs(redis.call('SMEMBERS', kQueuesKey)) do
  local key = kQueueJournalKey .. queue
  if has_type(key, 'stream') then
    local info = to_table(redis.call('XINFO', 'STREAM', key))
    heads[#heads + 1] = queue
    heads[#heads + 1] = string.match(info['last-generated-id'], '^%d+')
  end
end
redis.call('DEL', kJournalHeadsKey)
redis.call('SET', kServerKey, run_id)
for i = 1, #heads, 2 do redis.call('HSET', kJournalHeadsKey, heads[i], heads[i + 1]) end
for _, job in ipairs(redis.call('ZRANGE', kLeasesKey, 0, -1)) do
  local claim = find_claim(job)
  if claim and claim.state == kJobStateLive then
    local until_ms = to_integer_text(math.max(to_number(claim.until_ms), now_ms + to_number(claim.lease_ms)))
    redis.call('HSET', kClaimKey .. job, 'until_ms', until_ms)
    redis.call('ZADD', kLeasesKey, until_ms, job)
    if has_type(job, 'hash') then redis.call('HSET', job, 'lease_until_ms', until_ms) end
    extended = extended + 1
  end
end
return {extended, stored_run_id and 1 or 0, heads}
