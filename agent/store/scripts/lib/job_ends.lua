-- Ends of claims and of jobs.

-- Returns the fields of an end with status `error`.
local function failure_fields(detail, text) return {'status', kJobStatusError, 'detail', detail, 'error', text} end
local function get_detail(fields)
  for i = 1, #fields, 2 do if fields[i] == 'detail' then return fields[i + 1] end end
  return ''
end

-- Adds an event ("job job:12:3" or "flow flow:7") to a flow ("<context> <id>"), and makes the flow due now.
local function add_flow_event(flow, event)
  local id = string.match(flow, '^%d+ (%d+)$')
  local mark_key = kFlowKey .. (id or '')
  if not id or not has_type(mark_key, 'hash') then return end
  local state = redis.call('HGET', mark_key, 'state')
  if state == kFlowStateEnded then return end
  local events_key = kFlowEventsKey .. id
  if check_type(events_key, 'list') then
    add_anomaly(events_key .. ' is not a list, so flow ' .. id .. ' does not receive ' .. to_printable(event)
      .. ': delete that key, then doctor --rebuild')
  else
    redis.call('RPUSH', events_key, event)
  end
  if state == kFlowStateActive then redis.call('ZADD', kFlowsDueKey, 'LT', to_integer_text(now_ms), id) end
  redis.call('PUBLISH', kFlowDueChannel, flow)
end

local context_notifies = {}  -- the field notify of records of contexts, by id; '' if there is none
local function get_context_notify(context)
  if not context_notifies[context] then
    local notify = redis.pcall('HGET', 'context:' .. context, 'notify')
    if type(notify) == 'table' then reports_wrong_type('context:' .. context, 'hash') end
    context_notifies[context] = type(notify) == 'string' and notify or ''
  end
  return context_notifies[context]
end

-- Adds a notice for the end of a job or flow if its record has the field notify. For flows, and for jobs that belong to
-- no flow, the field notify of the context's record applies if the record has none. Coordinators deliver the notices
-- (notices_due). An entry of mj:notices is "<key> <end in us> <status> <tries> [<recipients that were reached>]". For
-- the job or flow of a workflow's effect, the end is added to the inbox of the deployment instead.
local kMaxNotices = 100000
local function enqueue_notice(record_key, status, ended_ms)
  local record = redis.pcall('HMGET', record_key, 'notify', 'context_id', 'flow_id', 'notice_of', 'effect_of')
  if record.err then return end
  if (record[5] or '') ~= '' then return notify_workflow(record[5], string.match(record_key, '^%l+'), record_key) end
  if (record[1] or '') == '' then
    if record[4] or to_number(record[3] or nil) > 0 or not record[2] then return end
    if get_context_notify(record[2]) == '' then return end
  end
  if check_type(kNoticesKey, 'zset') then
    return add_anomaly(kNoticesKey .. ' is not a sorted set, so no notification is sent for the end of ' .. record_key .. ': delete that key')
  end
  if redis.call('ZCARD', kNoticesKey) >= kMaxNotices then
    return add_anomaly(record_key .. ' has ended, but no notification is sent: ' .. to_integer_text(kMaxNotices) .. ' notices wait already')
  end
  redis.pcall('HSET', state_key(record_key), 'noticed', 1)  -- retention keeps the record until the notice was delivered
  redis.call('ZADD', kNoticesKey, to_integer_text(now_ms), record_key .. ' ' .. to_integer_text(ended_ms * 1000 + now_us % 1000) .. ' ' .. status .. ' 0')
  redis.call('PUBLISH', kNoticeChannel, (record[2] or '') .. ' ' .. record_key)
end

-- Returns whether a job waits for the artifacts of the job with this claim.
local function has_waiting_dependent(claim)
  for job in string.gmatch(claim.needed_by or '', '%S+') do if has_not_ended(job) then return true end end
  return false
end

-- Adds the last entry to the log of an ended job, for clients that block on the log. A job without output
-- has no log unless a client awaits the log (await_log).
local function add_log_end(job, status)
  local key, last_seq = kLogKey .. job, find_last_log_seq(job)
  if not last_seq then return end
  -- Another client may have written a log of its own. Then the entry fails, and the end is valid without it.
  local reply = redis.pcall('XADD', key, to_integer_text(last_seq + 1) .. '-0', 'end', status)
  if type(reply) == 'table' and reply.err then reports_wrong_type(key, 'stream') end
end

local end_job  -- defined below
-- Processes the jobs that depend on an ended job: they are queued after their last dependency has finished, or end if
-- this dependency has failed. One call of a script processes about dependents_budget jobs, and tick processes the
-- others. A job that ends while it waits for many other jobs counts as several, by the cost of removing it from their
-- sets.
local dependents_budget, processed_dependents = 100, 0
local function process_dependents(dep, status)
  local dependents_key = kDependentsKey .. dep
  if redis.call('EXISTS', dependents_key) == 0 or reports_wrong_type(dependents_key, 'set') then return end
  while dependents_budget > 0 do
    local job = redis.call('SRANDMEMBER', dependents_key)
    if not job then return end
    dependents_budget, processed_dependents = dependents_budget - 1, processed_dependents + 1
    local claim = find_claim(job)
    if not claim or claim.state ~= kJobStateWaiting then
      redis.call('SREM', dependents_key, job)
    elseif status ~= kJobStatusFinished then
      dependents_budget = dependents_budget - dependency_cost(call_index('SCARD', kDependenciesKey .. job) or 0)
      end_job(job, claim, failure_fields('dependency_failed', dep .. ', which it depends on, has failed'), false)
    else
      if has_inputs(call_index('HGET', job, 'inputs')) then add_needed_by(dep, job) end
      local open_count = call_index('SCARD', kDependenciesKey .. job)
      if open_count and open_count <= 1 then
        set_claim(job, claim, 'deps', 'met')
        enqueue_job(job, claim, kParkReasonDependencies, false)
      else
        if open_count then redis.call('SREM', kDependenciesKey .. job, dep) end
        redis.call('SREM', dependents_key, job)
      end
    end
  end
  if redis.call('EXISTS', dependents_key) == 1 then redis.call('RPUSH', kPendingReleasesKey, dep) end
end

-- Writes the end into the record. Returns false if the key is not a hash.
local function write_end(job, fields)
  local reply = redis.pcall('HDEL', job, kJobEndFields, 'lease_until_ms')
  if type(reply) ~= 'number' then return false end
  redis.call('HSET', job, 'ended_ms', to_integer_text(now_ms), 'updated_at', now_s, unpack(fields))
  return true
end

-- Returns the fields of an end that are stored in place of an end from another host that exceeds a quota
-- (is_end_refused).
local function strip_result(fields)
  local end_fields = to_table(fields)
  if end_fields.status == kJobStatusError then return failure_fields(end_fields.detail or '', string.sub(end_fields.error or '', 1, 256)) end
  return failure_fields('result_quota', 'its result is not kept: the jobs of its caller keep more than the quotas allow')
end

-- Fields of a claim that describe a run or a wait. The first kLeaseFieldCount are deleted when the lease of the job ends.
-- If the job ends, the first two stay, since each command costs more than these fields: they and lease_ms then describe
-- the last run, until the job is queued again (forget_last_run()). All others are deleted. The fields from
-- kFirstHolderField to kLastHolderField are also deleted when a wait for a runner with the inputs ends.
local kRunFields = {'until_ms', 'began', 'holder', 'coordinator', 'holder_since', 'holder_until', 'holder_away', 'holder_queued',
  'holder_stored', 'beat', 'mark_reason', 'mark_since', 'end_saved', 'message', 'cancel', 'log_base', 'reason', 'held', 'turn',
  'overdue', 'waiting_since', 'postponed', 'unbegun', 'quota'}
local kFirstHolderField, kLastHolderField, kLeaseFieldCount = 3, 9, 13
-- Deletes the fields of kRunFields that an ended job must not have. previous_state is its state before the end. The
-- claim of a job that was not running may have more fields than the table `claim`.
local function delete_run_fields(job, claim, previous_state)
  local names = {}
  for i = kFirstHolderField, #kRunFields do
    if previous_state ~= kJobStateLive or claim[kRunFields[i]] then names[#names + 1] = kRunFields[i] end
  end
  if #names > 0 then redis.call('HDEL', kClaimKey .. job, unpack(names)) end
end
-- Returns the runner or the coordinator for whose files a parked job waits, or nil. Scripts of earlier versions know no
-- coordinators: they read and delete only the other fields, and queue the job again when it is due.
local function awaited_holder(claim) return claim.holder_until and (claim.holder or claim.coordinator) or nil end
-- Ends a job. This is the only transition to the state `ended`. `fields` is {name, value, ...} with the status first.
-- If the owner of the claim ends the job, by_owner is a digest of the fields, by which store_end() recognises a repeat
-- of the same end; otherwise it is false. The owner computes the digest, since the computation here would block all
-- other clients for longer than the rest of the end. If `claim` is nil, another client has overwritten the key of the
-- claim, so only the record can show the end.
end_job = function(job, claim, fields, by_owner)
  local status, detail, previous_state = fields[2], get_detail(fields), claim and claim.state
  local has_record
  if claim then
    local claim_key, queue = kClaimKey .. job, get_queue(job, claim)
    local kind = status == kJobStatusFinished and kFactKindCompleted or detail == 'cancelled' and kFactKindCancelled
      or detail == 'dead_letter' and kFactKindDeadLettered or kFactKindFailed
    local end_digest, now_text = by_owner or digest(fields), to_integer_text(now_ms)
    if by_owner then
      add_fact(queue, job, claim, kind, kFactDetailField, detail, kFactClaimIdField, claim.claim_id,
        kFactEpochField, claim.epoch, kFactDigestField, end_digest)
    else
      add_fact(queue, job, claim, kind, kFactDetailField, detail)
    end
    has_record = write_end(job, fields)  -- before the claim: an acknowledged end is in the record
    set_claim(job, claim, 'state', kJobStateEnded, 'queue', queue, 'status', status, 'detail', detail, 'end', end_digest, 'ended_ms', now_text,
      unpack(charge_end(job, claim, fields)))
    claim.state = kJobStateEnded
    redis.call('ZADD', kEndedKey, now_text, job)
    remove_from_index(job, claim, previous_state)
    delete_run_fields(job, claim, previous_state)
    if not by_owner then redis.call('HDEL', claim_key, 'claim_id', 'token', 'instance') end
    if claim.overdue then redis.call('ZREM', kQueueDeadlinesKey, job) end
    if claim.message then
      local message_key = kMessageKey .. claim.message
      if has_type(message_key, 'hash') and redis.call('HGET', message_key, 'answer') then redis.call('HSET', claim_key, 'awaited', claim.message) end
      count_ended_job(claim.message, status)
    end
  else
    has_record = write_end(job, fields)
  end
  if not has_record then
    add_dead_letter_entry(job, '', 'wrong_type')
  elseif detail ~= 'skipped' then
    enqueue_notice(job, status, now_ms)
  end
  if previous_state ~= kJobStateLive then redis.call('ZREM', kLeasesKey, job) end
  if redis.call('EXISTS', kLogKey .. job, kDependentsKey .. job) > 0 then
    add_log_end(job, status)
    process_dependents(job, status)
  end
  if claim and claim.flow then add_flow_event(claim.flow, 'job ' .. job) end
end

-- Cancels a job. Returns ended (the job was not running and has ended now), asked (the owner of the claim receives the
-- request), over (the job had ended before) or missing.
local function cancel_job(job, claim)
  if claim.state == kJobStateEnded then return 'over' end
  if not claim.state and redis.call('EXISTS', job) == 0 then return 'missing' end  -- with a state the claim is the authority
  if claim.state == kJobStateLive then
    redis.call('HSET', kClaimKey .. job, 'cancel', to_integer_text(now_ms))
    -- This hint makes the owner renew its lease at once. Without it the owner receives the request with its next
    -- renewal.
    local runner = 'runner:' .. (claim.runner or '')
    local topic = key_type(runner) == 'hash' and redis.call('HGET', runner, 'topic')
    redis.call('PUBLISH', topic or 'runner' .. (claim.runner or ''), 'cancel:' .. job)
    return 'asked'
  end
  local record = key_type(job) == 'hash' and redis.call('HMGET', job, 'status', 'detail') or {}
  if not claim.state and (record[1] == kJobStatusFinished or record[1] == kJobStatusError) then return 'over' end
  if claim.state == kJobStatePlanned and claim.message then
    enqueue_outbox('cancel ' .. claim.message)
  end
  -- The entry in the list of the queue remains, and the field `leftover` makes the claim drop it without an anomaly. A
  -- job that was only created has no entry, unless another client has pushed one.
  local in_queue_list = claim.state == kJobStateQueued and not has_priority(claim)
  if not claim.state then in_queue_list = not is_only_created(job, claim, record[2]) or is_in_recent_entries(get_queue(job, claim), job) end
  local is_remote = claim.state == kJobStatePlanned and claim.message
  local reason = to_number(claim.epoch) > 0 and 'cancelled' or is_remote and 'cancelled while it was in another context' or 'cancelled before it ran'
  end_job(job, claim, failure_fields('cancelled', reason), false)
  if in_queue_list then redis.call('HSET', kClaimKey .. job, 'leftover', 1) end
  return 'ended'
end

-- Returns the job of a live claim to the front of its queue, or delays it for pause_ms because of park_reason. A job
-- whose cancellation was requested ends instead. fact_kind is released or expired. Returns the error if a key of the
-- queue has a wrong type.
local function return_to_queue(job, claim, fact_kind, reason, pause_ms, park_reason)
  if claim.cancel then return end_job(job, claim, failure_fields('cancelled', 'cancelled'), false) end
  local queue = claim.queue or ''
  local err = check_queue_types(queue, claim.priority)
  if err then return err end
  local due_text = pause_ms and to_integer_text(now_ms + pause_ms)
  local state = due_text and kJobStateDelayed or kJobStateQueued
  if due_text then redis.call('ZADD', kDelayedKey, due_text, job) else push_job(job, claim, queue, true) end
  add_fact(queue, job, claim, fact_kind, kFactClaimIdField, claim.claim_id or '', kFactEpochField, claim.epoch or '0',
    kFactDeliveriesField, claim.deliveries or '0', kFactReasonField, reason)
  if due_text then add_fact(queue, job, claim, kFactKindParked, kFactReasonField, park_reason, kFactDueField, due_text) end
  set_claim(job, claim, 'state', state, 'reason', fact_kind)
  if due_text then redis.call('HSET', kClaimKey .. job, 'waiting_since', to_integer_text(now_ms)) end
  claim.state = state
  redis.call('HDEL', kClaimKey .. job, unpack(kRunFields, 1, kLeaseFieldCount))
  remove_from_index(job, claim, kJobStateLive)
  if has_type(job, 'hash') then
    redis.call('HDEL', job, 'claim_id', 'runner_id', 'lease_until_ms')
    redis.call('HSET', job, 'status', kJobStatusDispatched, 'detail', due_text and park_reason or state, 'updated_at', now_s)
  end
  update_node_state(job, claim)
end

-- Does not count the delivery of a claim whose run has not begun.
local function uncount_delivery(claim)
  if not claim.cancel then claim.deliveries = to_integer_text(math.max(0, to_number(claim.deliveries) - 1)) end
end
-- Shows the deliveries of a returned job in its record. If no run of the job has begun, its queue time-out continues.
local function continue_queue_timeout(job, claim)
  if not has_type(job, 'hash') then return end
  redis.call('HSET', job, 'deliveries', claim.deliveries)
  if not has_not_run(claim) then return end
  local record = redis.call('HMGET', job, 'queue_timeout_ms', 'queued_ms', 'run_at_ms')
  set_queue_deadline(job, to_number(record[1] or nil), to_number(record[2] or nil), to_number(record[3] or nil))
end

-- Releases a claim at the request of its owner. If the run had not begun, the delivery is not counted and the queue
-- time-out continues. A job that was released more than kMaxReleases times without a run is delayed between two claims,
-- so that the jobs behind it are claimed, too. Fewer releases are usual on a busy host, and the job is the next one of
-- its queue at once.
local kMaxReleases, kFirstPauseMs, kMaxPauseMs = 10, 50, 6400
local function release_claimed_job(job, claim, reason, has_begun)
  if not has_begun then uncount_delivery(claim) end
  local releases_without_run = has_begun and 0 or to_number(claim.unbegun) + 1
  local pause_ms = releases_without_run > kMaxReleases and math.min(kFirstPauseMs * 2 ^ math.min(releases_without_run - kMaxReleases - 1, 20), kMaxPauseMs) or nil
  local err = return_to_queue(job, claim, kFactKindReleased, reason, pause_ms, kParkReasonDelayed)
  if err or claim.state ~= kJobStateQueued and claim.state ~= kJobStateDelayed then return err end
  redis.call('HSET', kClaimKey .. job, 'deliveries', claim.deliveries, 'unbegun', to_integer_text(releases_without_run))
  continue_queue_timeout(job, claim)
end

-- A holder of files is an agent, named by the id of its runner, or a coordinator, named by the id of its folder.
local function is_runner(holder) return string.find(holder, '^%d+$') ~= nil end
-- Returns whether a process is registered for the holder.
local function is_holder_alive(holder)
  local until_ms
  if is_runner(holder) then
    until_ms = call_index('HGET', kRunnerOwnerKey .. holder, 'until_ms')
  else
    until_ms = call_index('HGET', kFileHoldersKey, holder)
  end
  return type(until_ms) == 'string' and now_ms <= to_number(until_ms)
end

-- Parks a claimed job whose inputs are files that `holder` does not send now. The delivery is not counted, and the
-- queue time-out continues. The job is queued again by tick. timeout_ms: maximum wait since the first park, without the
-- time from its return to the queue (holder_queued) to this call. Another holder does not begin a new wait, since two
-- holders can be away alternately. sources: the jobs whose files are needed. is_stored: an object storage has the files,
-- too. It can become available before the holder, so the job is queued again with pauses even if the holder is away.
-- The holder '0' means that only the object storage has the files.
local kMinInputsPauseMs, kMaxInputsPauseMs = 1000, 300000
local function park_for_inputs(job, claim, holder, timeout_ms, reason, sources, is_stored)
  uncount_delivery(claim)
  local since_ms, is_alive = now_ms, is_holder_alive(holder)
  if awaited_holder(claim) then
    local queued_ms = claim.holder_queued and to_number(claim.holder_queued) or now_ms
    since_ms = math.min(now_ms, to_number(claim.holder_since) + now_ms - queued_ms)
  end
  -- A holder that is alive and does not send may lack a right. The job is not claimed in a loop.
  local pause_ms = kMinInputsPauseMs
  if is_alive or is_stored then pause_ms = math.min(math.max(kMinInputsPauseMs, (now_ms - since_ms) / 2), kMaxInputsPauseMs) end
  local err = return_to_queue(job, claim, kFactKindReleased, reason, pause_ms, kParkReasonInputs)
  if err or claim.state ~= kJobStateDelayed then return err end
  local field, other = 'holder', 'coordinator'
  if not is_runner(holder) then field, other = other, field end
  redis.call('HDEL', kClaimKey .. job, other)
  redis.call('HSET', kClaimKey .. job, 'deliveries', claim.deliveries, field, holder, 'holder_since',
    to_integer_text(since_ms), 'holder_until', to_integer_text(since_ms + timeout_ms))
  if is_stored then
    redis.call('HSET', kClaimKey .. job, 'holder_stored', 1)
  elseif not is_alive then
    redis.call('HSET', kClaimKey .. job, 'holder_away', 1)
  end
  for _, source in ipairs(sources) do add_needed_by(source, job) end
  continue_queue_timeout(job, claim)
end

-- Returns why the inputs of a job that park_for_inputs() has parked will never arrive, or nil.
local function find_input_loss(claim)
  local holder = awaited_holder(claim)
  local remedy, subject = ': run the jobs that it depends on again', 'its inputs are artifacts of runner '
  if holder == '0' and claim.holder_stored then
    subject, holder = 'its inputs are artifacts in an object storage', ''
  elseif not is_runner(holder) then
    remedy, subject = ': upload the files or send the message again', 'its files are those of coordinator '
  elseif not claim.holder_stored and redis.call('EXISTS', 'runner:' .. holder) == 0 then
    return subject .. holder .. ', which was deleted' .. remedy
  end
  local until_ms = to_number(claim.holder_until)
  if now_ms <= until_ms then return nil end
  return subject .. to_printable(holder) .. ', which did not send them for '
    .. to_integer_text((until_ms - to_number(claim.holder_since)) / 1000) .. ' s (artifacts.holder_timeout)' .. remedy
end

-- Deletes the fields of an ended claim that describe its end and its last run, since the job runs again.
local function forget_last_run(job)
  redis.call('HDEL', kClaimKey .. job, 'status', 'detail', 'end', 'ended_ms', 'claim_id', 'token', 'dead', 'until_ms', 'began', 'lease_ms')
end

-- Queues a job that ended as `error` again, at the request of an operator. Returns nil, or the reason why not.
local function requeue_ended_job(job, claim)
  if claim.state ~= kJobStateEnded then return 'has not ended: only an ended job can run again' end
  if claim.status == kJobStatusFinished then return 'has finished: submit it again to run it once more' end
  if claim.detail == 'cancelled' then return 'was cancelled, which is permanent: submit it again' end
  -- The flow has skipped the job or does not need it. The job (a compensation, for example) must not run unless the
  -- flow decides so.
  if claim.flow and (claim.detail == 'not_needed' or claim.detail == 'skipped') then
    return 'is run by its flow: see mycojobs flow retry'
  end
  if key_type(job) ~= 'hash' then return 'has no record any more' end
  if claim.unplanted then return 'has no record of its flow: see mycojobs flow replay' end
  local queue = get_queue(job, claim)
  if queue == 'queue:flow' then return 'is run by its flow: see mycojobs flow retry' end
  local err = check_queue_types(queue, claim.priority)
  if err then return 'cannot be queued: ' .. string.gsub(err.err, '^MJTYPE ', '') .. ': delete that key' end
  local attempt = to_integer_text(math.max(1, to_number(claim.attempt)) + 1)
  drop_stale_entry(job, claim, queue)
  push_job(job, claim, queue, false)
  add_fact(queue, job, claim, kFactKindRequeued, kFactAttemptField, attempt)
  set_claim(job, claim, 'state', kJobStateQueued, 'queue', queue, 'attempt', attempt, 'deliveries', '0', 'reason', kFactKindRequeued)
  forget_last_run(job)
  redis.call('ZREM', kEndedKey, job)
  if claim.dead then redis.call('XDEL', kDeadLettersKey, claim.dead) end
  redis.call('HDEL', job, 'ended_ms', 'claim_id', 'runner_id', 'result', 'result_json')
  redis.call('HSET', job, 'status', kJobStatusDispatched, 'detail', 'queued', 'queued_ms', to_integer_text(now_ms), 'updated_at', now_s)
  if not claim.flow then keep_inputs(job, unpack(redis.call('HMGET', job, 'inputs', 'dependends'))) end
end

-- Returns the reason why retention must keep an ended job, or nil. A job is kept until its entry in the queue is
-- removed, its dependents are processed and do not need its artifacts any more, its notice is delivered, its message is
-- answered, and its flow has ended.
local function retention_obstacle(job, claim)
  if claim.leftover and redis.call('EXISTS', get_queue(job, claim)) == 1 then return 'its entry is still in its queue' end
  if has_type(kDependentsKey .. job, 'set') then return 'jobs that depend on it have not processed its end yet: try again' end
  if has_waiting_dependent(claim) then return 'a job that has not ended needs its artifacts' end
  if claim.noticed and has_type(kNoticesKey, 'zset') then return 'its notice has not been sent yet' end
  local answer = claim.awaited and redis.pcall('HGET', kMessageKey .. claim.awaited, 'answer')
  if answer == kAnswerStateWanted or answer == kAnswerStateDue then return claim.awaited .. ' has not been answered yet' end
  local flow = claim.flow and string.match(claim.flow, ' (%d+)$')
  local state = flow and key_type(kFlowKey .. flow) == 'hash' and redis.call('HGET', kFlowKey .. flow, 'state')
  if state and state ~= kFlowStateEnded then return 'it is of flow ' .. flow .. ', which has not ended' end
end

-- Deletes an ended job with its record, files, log and facts.
local function delete_ended_job(job, claim)
  local queue = get_queue(job, claim)
  local revisions = {}
  for revision in string.gmatch(claim.revs or '', '%d+') do revisions[#revisions + 1] = revision .. '-0' end
  if #revisions > 0 and has_type(kQueueJournalKey .. queue, 'stream') then
    for i = 1, #revisions, 100 do redis.call('XDEL', kQueueJournalKey .. queue, unpack(revisions, i, math.min(i + 99, #revisions))) end
  end
  local horizon = math.max(to_number(redis.call('HGET', kJournalHorizonKey, queue)), to_number(claim.ended_ms))
  redis.call('HSET', kJournalHorizonKey, queue, to_integer_text(horizon))
  release_idempotency_keys(job, claim)
  release_job_charge(job, claim)
  redis.call('UNLINK', job, kClaimKey .. job, kLogKey .. job, kJobFilesKey .. job)
  redis.call('ZREM', kEndedKey, job)
  call_index('ZREM', kJobsKey, job)
end

-- Ends a message in state `away` after its last answer, or when its delivery has failed. detail and reason
-- become detail and error of its jobs that have not ended. is_answered is true if the answer reports no error for the
-- message.
local function end_remote_jobs(message, mark_fields, detail, reason, is_answered)
  local mark_key = kMessageKey .. message
  for job in string.gmatch(mark_fields.jobs or '', '%S+') do
    local claim = find_claim(job)
    if claim and claim.message == message and claim.state == kJobStatePlanned then end_job(job, claim, failure_fields(detail, reason), false) end
  end
  local failed_jobs = to_number(redis.call('HGET', mark_key, 'failed'))
  redis.call('HSET', mark_key, 'state', kMessageStateOver)
  redis.call('HDEL', mark_key, 'deliver_until', 'result_ms', 'why', 'tries')
  redis.call('ZREM', kOutboxKey, 'send ' .. message, 'expire ' .. message)
  end_message(message, not is_answered and reason or failed_jobs > 0 and failed_jobs .. ' of its jobs failed' or '')
  if not mark_fields.carried then return enqueue_inbox(message) end
  redis.call('HSET', mark_key, 'why', reason)  -- for the router, which reads the mark of a message that it created itself
end
