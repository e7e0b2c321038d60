--# flow_commit: dispatch_journal job_indexes messages deployments stored_usage job_ends flows
-- Commits a change of a flow: appends facts, consumes events, changes the flow's jobs and record, and sets its due
-- time. All of this happens in one step, or nothing if the revision has changed. The script has no KEYS; a list in ARGV
-- is a count followed by that many texts.
-- ARGV: context (id), flow (id), expected (revision), event_count (number of events to consume), consumed_before
-- (number of events consumed before, or empty: not checked), due (ms, or empty), checkpoint (text, or empty), ended
-- (flag), parent (flow id, or 0), number of facts, then kind, node (or empty) and data (or empty) of each fact; record
-- (list of name, value, ...), the quotas in bytes of a caller and of the context; then five groups, each with the
-- number of its jobs. dispatches: job (key), fields to set (list), queue, record of a new node (list, may be empty),
-- contents of the files of a new node (list of field, content, ...);
-- ends: job, fields of the end (list); cancels, requeues and replans: job.
-- Reply: {revision after the commit}; {conflict, present revision}; {taken} if another commit without facts has
-- consumed the events; {missing} if the flow has no mark.
-- Errors: MJTYPE for a wrong type or an invalid job key, before the first write. A job whose claim has a wrong type
-- ends as a dead letter, and the commit continues.
-- Repeat: safe; a repeat at the old revision is a conflict, and a commit without facts that consumes events is refused
-- by consumed_before.
local context, flow, expected, event_count, consumed_before = next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg()), next_arg()
local due, checkpoint, ended, parent = next_arg(), next_arg(), next_arg() == '1', next_arg()
local flow_ref, events_key = context .. ' ' .. flow, kFlowEventsKey .. flow
local facts, record = {}, nil
for i = 1, to_number(next_arg()) do facts[i] = {next_arg(), next_arg(), next_arg()} end  -- kind, node, data
record = list_arg()
read_quota()

local err = check_index_types() or check_flow_types(flow)
if err then return err end
local mark = read_mark(flow)
if not mark then return {'missing'} end
local revision = get_revision(flow)
if not revision then return journal_head_error(kFlowJournalKey .. flow) end
if revision ~= expected then return {'conflict', to_integer_text(revision)} end
if consumed_before ~= '' and to_number(consumed_before) ~= to_number(mark.taken) then return {'taken'} end

-- Reads one group of jobs from ARGV: {{job, fields, queue, record}...}.
local function jobs_arg(with_fields, with_record)
  local list = {}
  for i = 1, to_number(next_arg()) do
    local job = next_arg()
    list[i] = {job = job, fields = with_fields and list_arg() or nil}
    if with_record then list[i].queue, list[i].record, list[i].files = next_arg(), list_arg(), list_arg() end
    if not is_job_key(job) then err = redis.error_reply('MJTYPE ' .. to_printable(job) .. ' is not a job key') end
  end
  return list
end
local dispatches, ends, cancels, requeues, replan_entries = jobs_arg(true, true), jobs_arg(true), jobs_arg(), jobs_arg(), jobs_arg()
if err then return err end

-- Returns the claim of a job of this flow, or nil if the flow must not change the job; the reason is recorded as an
-- anomaly.
local function load_flow_claim(job)
  local claim = read_claim(job)
  if not claim then
    add_anomaly(kClaimKey .. job .. ' is not a hash, so flow ' .. flow .. ' cannot continue: delete that key')
    end_job(job, nil, failure_fields('dead_letter', 'its claim was overwritten by another client'), false)
    add_flow_event(flow_ref, 'job ' .. job)
    return
  end
  if claim.flow and claim.flow ~= flow_ref then
    return add_anomaly(job .. ' belongs to flow ' .. to_printable(claim.flow) .. ', and flow ' .. flow_ref .. ' has it as well')
  end
  if not claim.state and not has_type(job, 'hash') then
    claim.flow = flow_ref
  elseif not claim.state then
    local status = redis.call('HGET', job, 'status')
    if status == kJobStatusFinished or status == kJobStatusError then
      claim.over = true
    else
      plan_job(job, claim, get_queue(job, claim), flow_ref)  -- another client has deleted the claim
    end
  end
  return claim
end
local function has_ended(claim) return claim.over or claim.state == kJobStateEnded end

-- Writes the record of a node that was added during the run (an element of `each`), with its first dispatch. If the
-- record cannot be written, the node fails, and the field `unplanted` of the claim has the reason: foreign (another
-- client wrote a record under this id) or quota. plan_job_again() and requeue_ended_job() never run a record of another
-- client.
local function create_node_record(entry)
  local job, claim = entry.job, read_claim(entry.job)
  if #entry.record == 0 or not claim then return end
  local is_retry = claim.state == kJobStatePlanned and claim.unplanted == 'quota'
  if claim.state and not is_retry then
    if claim.flow then return end
    add_anomaly(job .. ' was submitted by itself, and is a job of flow ' .. flow_ref .. ' by its id: the flow resumes with its end')
    return set_claim(job, claim, 'flow', flow_ref)
  end
  -- The id was reserved for this flow, so the record is from another client and its script and status are not used.
  if not is_retry and redis.call('EXISTS', job) == 1 then
    add_anomaly(job .. ' was written by another client, and is a job of flow ' .. flow_ref .. ' by its id: that node has failed')
    plan_job(job, claim, entry.queue, flow_ref, 'unplanted', 'foreign')
    return end_job(job, claim, failure_fields('dead_letter', 'another client wrote a record under its id'), false)
  end
  local function fail_node(detail, text)
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'created_at', now_s, 'flow_id', flow)
    if not is_retry then plan_job(job, claim, entry.queue, flow_ref, 'unplanted', 'quota') end
    return end_job(job, claim, failure_fields(detail, text), false)
  end
  local files_error = check_job_files(job, entry.files)
  if files_error then return fail_node('dead_letter', 'files: ' .. string.gsub(files_error.err, '^MJ%u+ ', '')) end
  local caller, charge_bytes = parse_caller(job), record_charge(entry.record, entry.files)
  local setting, limit = charge(caller, charge_bytes, kEndQuotaEighths)
  if setting then return fail_node('quota', excess_text(caller, setting, limit)) end
  redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'created_at', now_s, 'flow_id', flow, 'status',
    kJobStatusWaitingForPrerequisites, 'detail', 'planned', 'updated_at', now_s, unpack(entry.record))
  write_job_files(job, entry.files)
  if not is_retry then return plan_job(job, claim, entry.queue, flow_ref, 'kept', to_integer_text(charge_bytes)) end
  redis.call('HSET', kClaimKey .. job, 'kept', to_integer_text(charge_bytes))
  redis.call('HDEL', kClaimKey .. job, 'unplanted')
end

-- Queues a planned job. An event reports a job that has ended already, so that the flow processes its end.
local function queue_job(job, claim, fields)
  if has_ended(claim) then return add_flow_event(flow_ref, 'job ' .. job) end
  if claim.state and claim.state ~= kJobStatePlanned then return end
  if not has_type(job, 'hash') then
    return end_job(job, claim, failure_fields('dead_letter', 'another client deleted its record'), false)
  end
  redis.call('HSET', job, 'queued_ms', to_integer_text(now_ms), unpack(fields))
  local values = redis.call('HMGET', job, 'priority', 'queue_timeout_ms', 'run_at_ms')
  local priority = valid_priority(values[1] or '')
  if claim.priority ~= priority then redis.call('HSET', kClaimKey .. job, 'priority', priority) end
  claim.priority = priority
  enqueue_job(job, claim, kQueueReasonFlow, false)
  if has_not_run(claim) then set_queue_deadline(job, to_number(values[2] or nil), now_ms, to_number(values[3] or nil)) end
end

-- Cancels a job. An event reports a job that had ended or is missing.
local function cancel_flow_job(job, claim)
  local result = claim.over and 'over' or cancel_job(job, claim)
  if result == 'over' or result == 'missing' then add_flow_event(flow_ref, 'job ' .. job) end
end

-- Sets a failed job back to `planned` for its next attempt. Returns false if the job has not failed or has no record.
local function plan_job_again(job, claim)
  if claim.state ~= kJobStateEnded or claim.status == kJobStatusFinished or claim.unplanted == 'foreign' or not has_type(job, 'hash') then return false end
  local queue = get_queue(job, claim)
  local attempt = to_integer_text(math.max(1, to_number(claim.attempt) + (to_number(claim.epoch) > 0 and 1 or 0)))
  drop_stale_entry(job, claim, queue)
  add_fact(queue, job, claim, kFactKindReplanned, kFactAttemptField, attempt)
  set_claim(job, claim, 'state', kJobStatePlanned, 'queue', queue, 'attempt', attempt, 'deliveries', '0', 'flow', flow_ref)
  claim.state = kJobStatePlanned
  forget_last_run(job)
  redis.call('ZREM', kEndedKey, job)
  if claim.dead then redis.call('XDEL', kDeadLettersKey, claim.dead) end
  redis.call('HDEL', job, 'ended_ms', 'claim_id', 'runner_id', 'result', 'result_json', 'error', 'error_info')
  redis.call('HSET', job, 'status', kJobStatusWaitingForPrerequisites, 'detail', 'planned', 'updated_at', now_s)
  return true
end
-- Number of replans of each job. A node may be replanned and end again in one commit (for example a skipped node); then
-- its replan is applied before its end.
local replan_counts = {}
for _, entry in ipairs(replan_entries) do replan_counts[entry.job] = (replan_counts[entry.job] or 0) + 1 end
-- Ends a job with the fields that the flow has decided. A running job is cancelled instead.
local function end_flow_job(job, claim, fields)
  if has_ended(claim) then
    if not replan_counts[job] or replan_counts[job] == 0 or not plan_job_again(job, claim) then return end
    replan_counts[job] = replan_counts[job] - 1
    claim = read_claim(job)
  end
  if claim.state == kJobStateLive then return cancel_job(job, claim) end
  local in_queue_list = claim.state == kJobStateQueued and not has_priority(claim)
  claim.flow = nil  -- the flow decided this end and needs no event
  end_job(job, claim, fields, false)
  if in_queue_list then redis.call('HSET', kClaimKey .. job, 'leftover', 1) end
end
local function replan_job(job, claim)
  if replan_counts[job] == 0 then return end
  replan_counts[job] = replan_counts[job] - 1
  plan_job_again(job, claim)
end
-- Queues a failed job again: through requeue_ended_job() or, if requeue_ended_job() refuses or the job was cancelled,
-- with a new plan. An event reports a job that has ended and cannot be queued again.
local function requeue_job(job, claim)
  if claim.state == kJobStateEnded and claim.detail ~= 'cancelled' and not requeue_ended_job(job, claim) then return end
  if plan_job_again(job, claim) then
    if claim.unplanted then return end  -- the dispatch in this commit writes the record
    if claim.queue ~= 'queue:flow' then queue_job(job, claim, {}) end
  elseif has_ended(claim) then
    add_flow_event(flow_ref, 'job ' .. job)
  end
end

for i, fact in ipairs(facts) do
  local fields = {'f', fact[1], 'at', to_integer_text(now_ms)}
  if fact[2] ~= '' then fields[5], fields[6] = 'n', fact[2] end
  if fact[3] ~= '' then fields[#fields + 1] = 'm'; fields[#fields + 1] = fact[3] end
  redis.call('XADD', kFlowJournalKey .. flow, to_integer_text(revision + i) .. '-0', unpack(fields))
end
revision = revision + #facts
if checkpoint ~= '' then redis.call('HSET', kFlowCheckpointKey .. flow, 'at', to_integer_text(revision), 'text', checkpoint) end
if event_count > 0 then
  if has_type(events_key, 'list') then redis.call('LPOP', events_key, event_count) end
  redis.call('HSET', kFlowKey .. flow, 'taken', to_integer_text(to_number(mark.taken) + event_count))
end

local function for_each_job(list, action)
  for _, entry in ipairs(list) do
    local claim = load_flow_claim(entry.job)
    if claim then action(entry.job, claim, entry.fields) end
  end
end
for_each_job(ends, end_flow_job)
for_each_job(replan_entries, replan_job)
for_each_job(requeues, requeue_job)
for _, dispatch in ipairs(dispatches) do create_node_record(dispatch) end
for_each_job(dispatches, queue_job)
for_each_job(cancels, cancel_flow_job)

-- Returns the list of nodes with the present state of dispatched jobs: running, ready (it waits for an attempt or a
-- slot) or pending (it waits for a condition).
local function add_job_states(nodes)
  if #nodes > kNodesBytes or not has_live_nodes(mark.ids) then return nodes end
  local updated = nodes
  for id in string.gmatch(nodes, '"id":(%d+),"name":"[^"]*","node_status":"dispatched"') do
    local job = 'job:' .. (mark.caller or '0') .. ':' .. id
    local state = kNodeStates[redis.pcall('HGET', kClaimKey .. job, 'state')]
    if state then updated = replace_node_state(updated, job, state) end
  end
  return updated
end
for i = 1, #record, 2 do
  if record[i] == 'nodes' then record[i + 1] = add_job_states(record[i + 1]) end
end

if redis.call('EXISTS', 'flow:' .. flow) == 0 then  -- another client has deleted the record
  redis.call('HSET', 'flow:' .. flow, 'context_id', context, 'created_at', to_integer_text(math.floor(to_number(mark.created_ms) / 1000)),
    unpack(identity_fields(flow, mark)))
end
if #record > 0 then redis.call('HSET', 'flow:' .. flow, 'updated_at', now_s, unpack(record)) end

if ended then
  redis.call('HSET', kFlowKey .. flow, 'state', kFlowStateEnded, 'ended_ms', to_integer_text(now_ms))
  redis.call('HDEL', kFlowKey .. flow, 'raised')
  redis.call('ZADD', kFlowsEndedKey, to_integer_text(now_ms), flow)
  redis.call('ZREM', kFlowsDueKey, flow)
  redis.call('ZREM', kFlowsActiveKey, flow)
  if mark.state ~= kFlowStateEnded then
    local record_fields = to_table(record)
    enqueue_notice('flow:' .. flow, record_fields.status or kFlowStatusError, to_number(record_fields.ended_ms))
    if mark.message then record_flow_end(mark.message, record_fields.status or kFlowStatusError) end
  end
  local event = 'flow flow:' .. flow
  for _, waiting_flow in ipairs(redis.call('SMEMBERS', kFlowDependentsKey .. flow)) do add_flow_event(context .. ' ' .. waiting_flow, event) end
  redis.call('DEL', kFlowDependentsKey .. flow)
  if parent ~= '0' then add_flow_event(context .. ' ' .. parent, event) end
elseif #facts > 0 or mark.state == kFlowStateActive then
  if mark.state ~= kFlowStateActive then
    redis.call('ZADD', kFlowsActiveKey, flow, flow)
    redis.call('HSET', kFlowKey .. flow, 'state', kFlowStateActive)
    redis.call('HDEL', kFlowKey .. flow, 'ended_ms')
    redis.call('ZREM', kFlowsEndedKey, flow)
  end
  -- The flow was raised at the revision on which this commit is based. The decider may not have seen the reason, so the
  -- flow stays due.
  local is_raised = mark.raised == to_integer_text(expected)
  if mark.raised then redis.call('HDEL', kFlowKey .. flow, 'raised') end
  local is_due_now = is_raised or key_type(events_key) == 'list' or (due ~= '' and to_number(due) <= now_ms)
  if is_due_now then
    redis.call('ZADD', kFlowsDueKey, to_integer_text(now_ms), flow)
    redis.call('PUBLISH', kFlowDueChannel, flow_ref)
  elseif due ~= '' then
    redis.call('ZADD', kFlowsDueKey, to_integer_text(to_number(due)), flow)
  else
    redis.call('ZREM', kFlowsDueKey, flow)
  end
end
redis.call('PUBLISH', kFlowChangedChannel, flow_ref .. ' ' .. to_integer_text(revision))
return {to_integer_text(revision)}
