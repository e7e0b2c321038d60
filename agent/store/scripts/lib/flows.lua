-- Flows. The mark of a flow, mj:flow:<id>, holds its state (flow_state in agent/model/states.toml). A flow in state
-- `active` is also in mj:flows:due if a coordinator has to process it. An ended flow is in mj:flows:ended until the
-- retention is over.
-- A flow in state `creating` is in mj:flows:ended, too, from its creation on, so that an abandoned creation is retired.
local function check_flow_types(flow)
  return check_type('flow:' .. flow, 'hash') or check_type(kFlowKey .. flow, 'hash') or check_type(kFlowJournalKey .. flow, 'stream')
    or check_type(kFlowCheckpointKey .. flow, 'hash') or check_type(kFlowDependentsKey .. flow, 'set') or check_type(kFlowsDueKey, 'zset')
    or check_type(kFlowsActiveKey, 'zset') or check_type(kFlowsEndedKey, 'zset')
end
-- Returns the mark of a flow, or nil if there is no mark with a state.
local function read_mark(flow)
  local mark = to_table(redis.call('HGETALL', kFlowKey .. flow))
  return mark.state and mark
end
-- Stands for the fingerprint of an unknown request after a repair. It matches every request.
local kAnyFingerprint = '0'
-- Returns the fields that identify a flow, computed from its mark. The record should contain the same values, but
-- another client may have changed them.
local function identity_fields(flow, mark)
  local fields = {'id', flow, 'caller_id', mark.caller or '0'}
  for name, mark_field in pairs({jobs = 'ids', definition_hash = 'definition', name = 'name', parent = 'parent'}) do
    if mark[mark_field] and mark[mark_field] ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = mark[mark_field]
    end
  end
  return fields
end
-- Returns {state, attempt, status, detail, error, result, started_ms, ended_ms, runner, result_json} of a job, and
-- their approximate size in bytes.
local function read_job_view(job)
  local claim, record_type = read_claim(job) or {}, key_type(job)
  local values = record_type == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'error', 'started_ms', 'attempt', 'runner_id', 'ended_ms') or {}
  local state, status = claim.state or '', values[1] or ''
  if record_type ~= 'hash' and state ~= kJobStateEnded then state = 'absent' end
  if state == kJobStateEnded then status = claim.status or status end
  local has_ended = state == kJobStateEnded or (state == '' and (status == kJobStatusFinished or status == kJobStatusError))
  local result = has_ended and record_type == 'hash' and redis.call('HMGET', job, 'result', 'result_json') or {}
  return {state, claim.attempt or values[5] or '0', status, state == kJobStateEnded and claim.detail or values[2] or '', values[3] or '', result[1] or '',
    values[4] or '0', claim.ended_ms or values[7] or '0', claim.runner or values[6] or '0', result[2] or ''}, #(result[1] or '') + #(result[2] or '') + 200
end
local function is_record_id(text)
  return string.match(text, '^[1-9]%d*$') and #text <= 10 and to_number(text) <= 4294967295
end

-- Returns the number before the dash of the last entry that was ever added to the stream; 0 if there is no stream.
-- Returns nil if the number is too large to be a revision of this program.
local function get_stream_head(key)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local head = tonumber(string.match(to_table(redis.call('XINFO', 'STREAM', key))['last-generated-id'], '^%d+'))
  return head < 9007199254740000 and head or nil
end
-- Returns the error for a stream for which get_stream_head() has returned nil.
local function journal_head_error(key)
  return redis.error_reply('MJTYPE ' .. to_printable(key) .. ' ends with an entry that mycojobs did not write')
end
-- Returns the revision of the latest fact of a run. If the journal was deleted, returns the revision of the checkpoint,
-- from which the run continues. Returns nil as get_stream_head() does.
local function get_revision(flow)
  local head = get_stream_head(kFlowJournalKey .. flow)
  if head ~= 0 then return head end
  return to_number(redis.call('HGET', kFlowCheckpointKey .. flow, 'at'))
end

-- Returns the error for a wrong type of the keys of a definition.
local function check_definition_type(hash)
  return check_type(kDefinitionKey .. hash, 'hash') or check_type(kDefinitionUsersKey .. hash, 'set')
end
-- Charges a new definition to the caller, for as long as the definition is in use. Returns the error MJFULL if this
-- exceeds a quota.
local function charge_definition(hash, text, caller)
  if redis.call('EXISTS', kDefinitionKey .. hash) == 1 then return end
  local setting, limit = charge(caller, record_charge({text}), kQuotaEighths)
  return setting and quota_error(caller, setting, limit)
end
-- Adds a user (flow:<id> or schedule:<name>) to a definition, and stores the definition if it does not exist.
local function add_definition_use(hash, text, user, caller)
  if redis.call('EXISTS', kDefinitionKey .. hash) == 0 then
    redis.call('HSET', kDefinitionKey .. hash, 'text', text, 'caller', caller, 'kept', to_integer_text(record_charge({text})))
  end
  redis.call('SADD', kDefinitionUsersKey .. hash, user)
end
-- Removes a user from a definition, and deletes the definition after its last user.
local function remove_definition_use(hash, user)
  if not hash or hash == '' then return end
  if reports_wrong_type(kDefinitionKey .. hash, 'hash') or reports_wrong_type(kDefinitionUsersKey .. hash, 'set') then return end
  -- If this user is not registered, registrations were lost: other flows may need the definition, so it is not deleted.
  local was_registered = redis.call('SREM', kDefinitionUsersKey .. hash, user) == 1
  if was_registered and redis.call('EXISTS', kDefinitionUsersKey .. hash) == 0 then
    local charge_fields = redis.call('HMGET', kDefinitionKey .. hash, 'caller', 'kept')
    if charge_fields[1] and charge_fields[2] then release_charge(charge_fields[1], to_number(charge_fields[2])) end
    redis.call('UNLINK', kDefinitionKey .. hash)
  end
end

-- Sets a job to the state `planned`: in no queue, owned by the flow ("<context> <id>"). The other arguments are further
-- fields of the claim.
local function plan_job(job, claim, queue, flow, ...)
  add_fact(queue, job, claim, kFactKindPlanned, kFactFlowField, flow)
  local priority = redis.pcall('HGET', job, 'priority')  -- the reply is an error if the record is not a hash
  set_claim(job, claim, 'state', kJobStatePlanned, 'queue', queue, 'flow', flow, 'priority',
    valid_priority(type(priority) == 'string' and priority or ''), ...)
  claim.state, claim.queue, claim.flow = kJobStatePlanned, queue, flow
end
