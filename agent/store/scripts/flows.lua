-- Flows: creation, reading, due flows, leadership, schedules, retention.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write, unless stated
-- otherwise.

--# flow_create: flows ids
-- Creates a flow in the state `creating`.
-- ARGV: context (id), caller (id), jobs (number), first_job (the first reserved job id; 0: none is reserved), key
-- (idempotency key, or empty), fingerprint (text of the request).
-- Reply: {flow, first job, 1 if the flow existed}; {} if the caller must reserve the job ids first.
-- Errors: MJCONFLICT if the idempotency key was used for another request; MJFULL if no flow id is free.
-- Repeat: safe with an idempotency key. Without a key an abandoned creation is retired after the retention.
local context, caller, jobs, first_job, key, fingerprint = next_arg(), next_arg(), to_number(next_arg()), next_arg(), next_arg(), redis.sha1hex(next_arg())
local names_key = kFlowIdempotencyKey .. caller
local err = check_type(kNextFlowIdKey, 'string') or check_type(names_key, 'hash') or check_type(kFlowsEndedKey, 'zset')
if err then return err end
if key ~= '' then
  local flow, stored_fingerprint = string.match(redis.call('HGET', names_key, key) or '', '^(%d+) (%x+)$')
  local mark = flow and key_type(kFlowKey .. flow) == 'hash' and read_mark(flow)
  if mark and mark.key ~= key then mark = nil end  -- the flow was rebuilt without its key
  if mark and stored_fingerprint ~= fingerprint and stored_fingerprint ~= kAnyFingerprint then
    return redis.error_reply('MJCONFLICT idempotency_key: ' .. to_printable(key) .. ' began flow ' .. flow
      .. ', for another flow: use another key')
  end
  if mark then return {flow, mark.first_job or '0', 1} end
end
if jobs > 0 and first_job == '0' then return {} end
local id = find_free_ids(to_number(redis.call('GET', kNextFlowIdKey)), 1, function(flow)
  return redis.call('EXISTS', 'flow:' .. to_integer_text(flow), kFlowKey .. to_integer_text(flow)) > 0
end)
if not id then return redis.error_reply('MJFULL the context has no free flow id left') end
id = to_integer_text(id)
redis.call('HSET', kFlowKey .. id, 'state', kFlowStateCreating, 'caller', caller, 'first_job', first_job, 'jobs', to_integer_text(jobs), 'key', key,
  'print', fingerprint, 'created_ms', to_integer_text(now_ms))
redis.call('HSET', 'flow:' .. id, 'id', id, 'caller_id', caller, 'context_id', context, 'status', kFlowStatusDispatched, 'detail', 'creating',
  'created_at', now_s, 'updated_at', now_s)
redis.call('ZADD', kFlowsEndedKey, to_integer_text(now_ms), id)
if key ~= '' then redis.call('HSET', names_key, key, id .. ' ' .. fingerprint) end
redis.call('SET', kNextFlowIdKey, id)
return {id, first_job, 0}

--# flow_adopt: flows
-- Turns a record that another client has written into a flow in the state `creating`, with the same id. Its jobs and
-- definition are added as for any other flow.
-- ARGV: flow (id), caller (id).
-- Reply: empty if the creation may continue, also after an interrupted call; known if the flow exists otherwise;
-- missing.
-- Repeat: safe; the reply is empty again while the flow is being created.
local flow, caller = next_arg(), next_arg()
local err = check_flow_types(flow)
if err then return err end
local mark = read_mark(flow)
if mark then return mark.state == kFlowStateCreating and mark.adopted and '' or 'known' end
if redis.call('EXISTS', 'flow:' .. flow) == 0 then return 'missing' end
redis.call('HSET', kFlowKey .. flow, 'state', kFlowStateCreating, 'adopted', '1', 'caller', caller, 'first_job', '0', 'jobs', '0',
  'key', '', 'created_ms', to_integer_text(now_ms))
redis.call('ZADD', kFlowsEndedKey, to_integer_text(now_ms), flow)
return ''

--# flow_reserve:
-- Reserves consecutive job ids of a caller.
-- ARGV: caller (id), jobs (number), skip (number of ids to leave out).
-- Reply: the first reserved id.
-- Errors: MJFULL if the caller has not enough ids left.
-- Repeat: safe; a repeat reserves further ids.
local caller, jobs, skip = next_arg(), to_number(next_arg()), to_number(next_arg())
local counter = kNextIdKey .. caller
local err = check_type(counter, 'string')
if err then return err end
local first = to_number(redis.call('GET', counter)) + 1 + skip
if first + jobs - 1 > 4294967295 then
  return redis.error_reply('MJFULL caller ' .. caller .. ' has no ' .. to_integer_text(jobs) .. ' free job ids left')
end
redis.call('SET', counter, to_integer_text(first + jobs - 1))
return to_integer_text(first)

--# flow_put_jobs: dispatch_journal job_indexes messages deployments stored_usage job_ends flows
-- Adds planned jobs to a flow that has not begun, all of them or none.
-- ARGV: context (id), flow (id), count, the quotas in bytes of a caller and of the context, then for each job: key,
-- queue, accepted (flag: its existing record has the same content), fields (list), contents of its files (list of field,
-- content, ...).
-- Reply: {} if all jobs belong to the flow; {{index, record}...} of existing records that were not accepted; a text
-- with the reason of a refusal, or missing. Nothing is written unless the reply is {}.
-- Errors: MJFULL if a quota is exceeded; MJINVALID if an uploaded file cannot be used. Other errors of uploads would
-- stop or delay the parent of a child flow, which fails instead.
-- Repeat: safe; jobs that belong to the flow with the same content are left unchanged.
local context, flow, count = next_arg(), next_arg(), to_number(next_arg())
read_quota()
local err = check_index_types() or check_flow_types(flow)
if err then return err end
local mark, flow_ref = read_mark(flow), context .. ' ' .. flow
if not mark then return 'missing' end
local is_open = mark.state == kFlowStateCreating or mark.state == kFlowStateNew

local new_jobs, existing, charges = {}, {}, {}  -- charges in bytes, by caller
for i = 1, count do
  local job, queue, accepted, fields, files = next_arg(), next_arg(), next_arg() == '1', list_arg(), list_arg()
  err = check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
  if err then return err end
  err = check_job_files(job, files)
  if err then return redis.error_reply((string.gsub(err.err, '^MJ%u+ upload ', 'MJINVALID files: upload '))) end
  local claim, content = read_claim(job), digest(fields)
  local exists = redis.call('EXISTS', job) == 1
  if claim.flow == flow_ref then
    if claim.content and claim.content ~= content then return job .. ' is a job of this flow already, with other content' end
  elseif claim.flow then
    return job .. ' belongs to flow ' .. to_printable(claim.flow) .. ' (context, id)'
  elseif claim.state then
    return job .. ' is ' .. claim.state .. ' on its own: a flow accepts only jobs that were never submitted'
  elseif not is_open then
    return 'flow ' .. flow .. ' has begun, so that ' .. job .. ' cannot be added'
  else
    if exists then
      local record = redis.call('HMGET', job, 'status', 'detail')
      local status = record[1] or ''
      if status ~= '' and status ~= kJobStatusDispatched and status ~= kJobStatusWaitingForPrerequisites then
        return job .. ' has run before: its record has the status ' .. to_printable(status)
      end
      if not is_only_created(job, claim, record[2]) and is_in_recent_entries(queue, job) then
        return job .. ' is in ' .. to_printable(queue) .. ' already: a flow accepts only jobs that were never queued'
      end
      if not accepted then existing[#existing + 1] = {i, redis.call('HGETALL', job)} end
    end
    local bytes = record_charge(fields, files)
    if not exists then charges[parse_caller(job)] = (charges[parse_caller(job)] or 0) + bytes end
    new_jobs[#new_jobs + 1] = {job = job, queue = queue, fields = fields, files = files, claim = claim, exists = exists, content = content, charge_bytes = bytes}
  end
end
if #existing > 0 then return existing end
local charged = {}
for caller, charge_bytes in pairs(charges) do
  local setting, limit = charge(caller, charge_bytes, kQuotaEighths)
  if setting then
    for charged_caller, bytes in pairs(charged) do release_charge(charged_caller, bytes) end
    return quota_error(caller, setting, limit)
  end
  charged[caller] = charge_bytes
end
for _, new_job in ipairs(new_jobs) do
  local job = new_job.job
  local fields = {'flow_id', flow, 'status', kJobStatusWaitingForPrerequisites, 'detail', 'planned', 'updated_at', now_s}
  if new_job.exists then
    local supervisor = to_table(new_job.fields).supervisor_url
    if supervisor then redis.call('HSET', job, 'supervisor_url', supervisor) end
    redis.call('HSET', job, unpack(fields))
  else
    for _, text in ipairs(fields) do new_job.fields[#new_job.fields + 1] = text end
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'created_at', now_s, unpack(new_job.fields))
    write_job_files(job, new_job.files)
  end
  if new_job.exists then
    plan_job(job, new_job.claim, new_job.queue, flow_ref, 'content', new_job.content)
  else
    plan_job(job, new_job.claim, new_job.queue, flow_ref, 'content', new_job.content, 'kept', to_integer_text(new_job.charge_bytes))
  end
end
return {}

--# flow_put: dispatch_journal stored_usage flows
-- Completes the creation of a flow: stores its definition, its record and its catalog entries. The flow becomes `new`.
-- ARGV: flow (id), hash (of the definition), definition (text), name (or empty), fields (list), the quotas in bytes of
-- a caller and of the context.
-- Reply: empty, or missing.
-- Errors: MJCONFLICT if the flow has another definition; MJFULL if a quota is exceeded.
-- Repeat: safe; a flow with this definition is left unchanged.
local flow, hash, definition, name, fields = next_arg(), next_arg(), next_arg(), next_arg(), list_arg()
read_quota()
local index = kFlowNameCatalogKey .. name
local err = check_flow_types(flow) or check_definition_type(hash) or check_type(kFlowCatalogKey, 'stream') or check_type(index, 'stream')
if err then return err end
local mark = read_mark(flow)
if not mark then return 'missing' end
if mark.state ~= kFlowStateCreating then
  if mark.definition == hash then return '' end
  return redis.error_reply('MJCONFLICT flow ' .. flow .. ' has another definition, which it keeps')
end
local row, index_row = get_stream_head(kFlowCatalogKey), name == '' and 0 or get_stream_head(index)
if not row or not index_row then return journal_head_error(row and index or kFlowCatalogKey) end
local caller = mark.caller or '0'
err = charge_definition(hash, definition, caller)
if err then return err end
add_definition_use(hash, definition, 'flow:' .. flow, caller)
redis.call('HSET', 'flow:' .. flow, 'status', kFlowStatusDispatched, 'detail', 'new', 'updated_at', now_s, unpack(fields))
redis.call('XADD', kFlowCatalogKey, to_integer_text(row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or to_integer_text(now_ms), 'name', name)
if name ~= '' then
  redis.call('XADD', index, to_integer_text(index_row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or to_integer_text(now_ms), 'name', name)
end
local values = to_table(fields)
redis.call('HSET', kFlowKey .. flow, 'ids', values.jobs or '', 'parent', values.parent or '')
redis.call('HSET', kFlowKey .. flow, 'state', kFlowStateNew, 'definition', hash, 'name', name, 'row', to_integer_text(row + 1), 'index_row',
  to_integer_text(index_row + 1))
redis.call('ZREM', kFlowsEndedKey, flow)
return ''

--# flow_read: flows
-- Reads a run: its record, checkpoint, facts and events.
-- ARGV: flow (id), after (revision, or empty: begin with the checkpoint), max (number of facts).
-- Reply: {record, revision, checkpoint, revision of the checkpoint, entries with facts, 1 if there are more, events,
-- anomalies, time in ms, number of events consumed before, fields that identify the flow (identity_fields), {job,
-- read_job_view()} of the first jobs in the events}.
-- Errors: MJFULL if the record is too large. Other keys with a wrong type are listed in the anomalies.
-- Repeat: safe; read-only.
local flow, after, max = next_arg(), next_arg(), to_number(next_arg())
local err = check_type('flow:' .. flow, 'hash') or check_type(kFlowKey .. flow, 'hash')
if err then return err end
local long_field, size = find_oversized_field('flow:' .. flow, 67108864)
if long_field then
  return redis.error_reply('MJFULL flow:' .. flow .. ': ' .. long_field .. ': ' .. to_integer_text(size) .. ' bytes are more than a flow may have: HDEL it')
end
local mark, anomalies = read_mark(flow), {}
-- Returns whether the key has the wanted type. Another type becomes an anomaly in the reply.
local function read_if_type(key, expected_type)
  local actual_type = key_type(key)
  if actual_type ~= expected_type and actual_type ~= 'none' then
    anomalies[#anomalies + 1] = key .. ' is a ' .. actual_type .. ' where a ' .. expected_type .. ' belongs: delete it, then doctor --rebuild'
  end
  return actual_type == expected_type
end

local checkpoint, checkpoint_revision = '', 0
if read_if_type(kFlowCheckpointKey .. flow, 'hash') then
  checkpoint = redis.call('HGET', kFlowCheckpointKey .. flow, 'text') or ''
  checkpoint_revision = to_number(redis.call('HGET', kFlowCheckpointKey .. flow, 'at'))
end
local run, revision = kFlowJournalKey .. flow, checkpoint_revision
local entries, bytes, has_more = {}, 0, 0
if read_if_type(run, 'stream') then
  revision = get_stream_head(run)
  if not revision then return journal_head_error(run) end
  if checkpoint_revision > revision then
    anomalies[#anomalies + 1] = kFlowCheckpointKey .. flow .. ' is of revision ' .. to_integer_text(checkpoint_revision) .. ', and the run has ' .. to_integer_text(revision)
    checkpoint, checkpoint_revision = '', 0
  end
  local position = after == '' and checkpoint_revision or to_number(after)
  while #entries < max and bytes < 4194304 do
    local page = redis.call('XRANGE', run, to_integer_text(position + 1), '+', 'COUNT', math.min(100, max - #entries))
    for _, entry in ipairs(page) do
      for _, text in ipairs(entry[2]) do bytes = bytes + #text end
      entries[#entries + 1] = entry
      position = to_number(string.match(entry[1], '^%d+'))
    end
    if #page == 0 then break end
  end
  if position < revision and #redis.call('XRANGE', run, to_integer_text(position + 1), '+', 'COUNT', 1) > 0 then has_more = 1 end
elseif checkpoint_revision > 0 then
  anomalies[#anomalies + 1] = run .. ' is missing: the run resumes from its checkpoint at revision ' .. to_integer_text(checkpoint_revision)
end
local events = read_if_type(kFlowEventsKey .. flow, 'list') and redis.call('LRANGE', kFlowEventsKey .. flow, 0, 999) or {}
-- The reply includes the first jobs of the events, so that a step of a chain needs no further round trip.
local jobs, job_bytes = {}, 0
for i = 1, math.min(#events, 8) do
  local job = string.match(events[i], '^job (.+)$')
  if job and job_bytes < 1048576 then
    local view, size = read_job_view(job)
    jobs[#jobs + 1], job_bytes = {job, view}, job_bytes + size
  end
end
-- A caller that continues reading has the record already. A long list of nodes is left out, since it would be most of
-- the reply.
local record
if after ~= '' and redis.call('HSTRLEN', 'flow:' .. flow, 'nodes') > 65536 then
  record = {}
  for _, name in ipairs(redis.call('HKEYS', 'flow:' .. flow)) do
    if name ~= 'nodes' then
      record[#record + 1] = name
      record[#record + 1] = redis.call('HGET', 'flow:' .. flow, name)
    end
  end
else
  record = redis.call('HGETALL', 'flow:' .. flow)
end
return {record, to_integer_text(revision), after == '' and checkpoint or '', to_integer_text(after == '' and checkpoint_revision or 0), entries, has_more,
  events, anomalies, to_integer_text(now_ms), mark and mark.taken or '0', mark and identity_fields(flow, mark) or {}, jobs}

--# flow_jobs: flows
-- Reads the states of jobs.
-- ARGV: jobs (list of keys).
-- Reply: read_job_view() of each of the first jobs, until these have 4 MiB.
-- Repeat: safe; read-only.
local views, bytes = {}, 0
for i, job in ipairs(list_arg()) do
  if bytes > 4194304 then break end
  local view, size = read_job_view(job)
  views[i], bytes = view, bytes + size
end
return views

--# flow_list: flows
-- Reads a page of a catalog, newest flows first.
-- ARGV: key (of the catalog), before_flow (id; 0: begin with the newest), last_row (of the previous page; empty: the
-- row of before_flow), max (number of flows).
-- Reply: {last row that was examined, {flow, time, name, record}...}; an entry that names no flow is {its id}.
-- Repeat: safe; read-only.
local key, before_flow, last_row, max = next_arg(), next_arg(), next_arg(), to_number(next_arg())
local err = check_type(key, 'stream')
if err then return err end
if last_row == '' and before_flow ~= '0' and key_type(kFlowKey .. before_flow) == 'hash' then
  last_row = redis.call('HGET', kFlowKey .. before_flow, key == kFlowCatalogKey and 'row' or 'index_row') or ''
end
local max_row = last_row == '' and '+' or to_integer_text(math.max(0, to_number(last_row) - 1))
local rows, bytes = {''}, 0
for _, entry in ipairs(redis.call('XREVRANGE', key, max_row, '-', 'COUNT', 500)) do
  if #rows > max or bytes > 4194304 then return rows end
  local row = to_table(entry[2])
  local flow = row.flow or ''
  rows[1] = string.match(entry[1], '^%d+')
  if is_record_id(flow) and (before_flow == '0' or to_number(flow) < to_number(before_flow)) then
    local record = {}
    if key_type('flow:' .. flow) == 'hash' then
      for _, name in ipairs(redis.call('HKEYS', 'flow:' .. flow)) do
        if name ~= 'definition' and name ~= 'nodes' and name ~= 'result' and #record < 400 then
          local value = redis.call('HGET', 'flow:' .. flow, name) or ''
          bytes = bytes + #value
          record[#record + 1] = name
          record[#record + 1] = value
        end
      end
    end
    rows[#rows + 1] = {flow, row.at or '0', row.name or '', record}
  elseif not is_record_id(flow) then
    rows[#rows + 1] = {entry[1]}
  end
end
return rows

--# flow_due: dispatch_journal flows
-- Returns the active flows that are due. Invalid entries are dropped and recorded as anomalies.
-- ARGV: max.
-- Reply: {ms until the next due flow or 0, flow...}.
-- Repeat: safe; the flows remain due until a commit changes this.
local max = to_number(next_arg())
local err = check_type(kFlowsDueKey, 'zset') or check_type(kAnomaliesKey, 'stream')
if err then return err end
local reply = {'0'}
for _, flow in ipairs(redis.call('ZRANGEBYSCORE', kFlowsDueKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)) do
  local mark = is_record_id(flow) and has_type(kFlowKey .. flow, 'hash') and read_mark(flow)
  if mark and mark.state == kFlowStateActive then
    reply[#reply + 1] = flow
  else
    add_anomaly(kFlowsDueKey .. ' names ' .. to_printable(flow) .. ', which is not a running flow; the entry was dropped')
    redis.call('ZREM', kFlowsDueKey, flow)
  end
end
local next_due = redis.call('ZRANGEBYSCORE', kFlowsDueKey, '(' .. to_integer_text(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if next_due then reply[1] = to_integer_text(math.max(1, math.min(to_number(next_due) - now_ms, 4000000000))) end
return reply

--# flow_raise: flows
-- Makes an active flow due now. The mark notes the revision, so that a commit at that revision keeps the flow due.
-- ARGV: context (id), flow (id).
-- Reply: 1, or 0 if the flow is not active.
-- Repeat: safe; the flow is due only once.
local context, flow = next_arg(), next_arg()
local err = check_flow_types(flow)
if err then return err end
local mark = read_mark(flow)
if not mark or mark.state ~= kFlowStateActive then return 0 end
local revision = get_revision(flow)
if not revision then return journal_head_error(kFlowJournalKey .. flow) end
redis.call('HSET', kFlowKey .. flow, 'raised', to_integer_text(revision))
redis.call('ZADD', kFlowsDueKey, 'LT', to_integer_text(now_ms), flow)
redis.call('PUBLISH', kFlowDueChannel, context .. ' ' .. flow)
return 1

--# flow_await: dispatch_journal job_indexes messages deployments stored_usage job_ends flows rights
-- Registers a flow for the end of another flow, or adds the event at once if that flow has ended. If the caller of the
-- flow may not read the awaited flow, the event is `absent`, as for a missing flow, and the record is not read.
-- ARGV: context (id), flow (id), awaited_flow (id).
-- Reply: 0.
-- Errors: MJFULL if 1000 flows wait for the awaited flow.
-- Repeat: safe; an event may occur twice.
local context, flow, awaited_flow = next_arg(), next_arg(), next_arg()
local waits_key, record = kFlowDependentsKey .. awaited_flow, 'context:' .. context
local err = check_type(waits_key, 'set') or check_type(kFlowsDueKey, 'zset') or check_type(kAnomaliesKey, 'stream') or check_type(kFlowKey .. awaited_flow, 'hash')
  or check_type(kFlowKey .. flow, 'hash') or check_type('flow:' .. awaited_flow, 'hash') or check_type(record, 'hash')
if err then return err end
local mark = read_mark(awaited_flow)

-- Returns whether the caller of the flow may read the awaited flow: the row `read` of the table of rights
-- (security/rights.toml).
local function has_read_permission()
  local reader, creator = redis.call('HGET', kFlowKey .. flow, 'caller'), mark and mark.caller or redis.call('HGET', 'flow:' .. awaited_flow, 'caller_id')
  if not reader or reader == creator or redis.call('EXISTS', record) == 0 then return true end
  return is_in_access_lists(redis.call('HMGET', record, kRightsReadLists), reader)
end
if not has_read_permission() then
  add_flow_event(context .. ' ' .. flow, 'absent flow:' .. awaited_flow)
  return 0
end
if not mark or mark.state == kFlowStateEnded then
  add_flow_event(context .. ' ' .. flow, 'flow flow:' .. awaited_flow)
elseif redis.call('SCARD', waits_key) >= 1000 and redis.call('SISMEMBER', waits_key, flow) == 0 then
  return redis.error_reply('MJFULL flow ' .. awaited_flow .. ' is waited for by 1000 flows already')
else
  redis.call('SADD', waits_key, flow)
end
return 0

--# flow_lead:
-- Acquires or renews the leadership of the context for ttl_ms ms.
-- ARGV: instance (text), location (text, shown to operators), ttl_ms (ms).
-- Reply: 1 if this instance leads, otherwise 0. If the stored end is further away than its own ttl_ms, the clock was
-- set back and the entry counts as expired.
-- Repeat: safe; the leading instance renews its leadership.
local instance, location, ttl_ms = next_arg(), next_arg(), to_number(next_arg())
local key = kCoordinatorKey
local err = check_type(key, 'hash')
if err then return err end
local leader = to_table(redis.call('HGETALL', key))
local remaining_ms = to_number(leader.until_ms) - now_ms
if leader.instance and leader.instance ~= instance and remaining_ms >= 0 and remaining_ms <= to_number(leader.ttl_ms) then return 0 end
redis.call('HSET', key, 'instance', instance, 'where', location, 'until_ms', to_integer_text(now_ms + ttl_ms), 'ttl_ms', to_integer_text(ttl_ms))
return 1

--# flow_stop_leading:
-- Releases the leadership of an instance. ARGV: instance (text). Reply: 0. Repeat: safe; the leadership of another
-- instance is not changed.
local instance, key = next_arg(), kCoordinatorKey
local err = check_type(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0

--# flow_schedule_put: dispatch_journal stored_usage flows
-- Writes a schedule at an expected revision.
-- ARGV: name, expected (revision; 0: new), hash (of the definition), definition (text, or empty if it is stored
-- already), fields (list), the quotas in bytes of a caller and of the context.
-- Reply: empty; {conflict, present revision}; missing if the definition is not stored and was not given.
-- Errors: MJFULL if a quota is exceeded.
-- Repeat: safe; a repeat with the same content at the same expected revision succeeds.
local name, expected, hash, definition, fields = next_arg(), to_number(next_arg()), next_arg(), next_arg(), list_arg()
read_quota()
local key = kScheduleKey .. name
local err = check_type(key, 'hash') or check_type(kSchedulesKey, 'set') or check_definition_type(hash)
if err then return err end
local stored, content = to_table(redis.call('HGETALL', key)), {}
for _, text in ipairs(fields) do content[#content + 1] = #text .. ':' .. text end
content = redis.sha1hex(table.concat(content))
local revision = to_number(stored.revision)
if revision ~= expected then
  if revision == expected + 1 and stored.content == content then return '' end  -- a repeat after a lost reply
  return {'conflict', to_integer_text(revision)}
end
if definition == '' and redis.call('EXISTS', kDefinitionKey .. hash) == 0 then return 'missing' end
local caller, new_charge, old_charge = to_table(fields).caller or '0', record_charge(fields), to_number(stored.kept)
local charged_caller = stored.kept_of or caller
local setting, limit = charge(charged_caller, math.max(0, new_charge - old_charge), kQuotaEighths)
if setting then return quota_error(charged_caller, setting, limit) end
err = charge_definition(hash, definition, caller)
if err then
  release_charge(charged_caller, math.max(0, new_charge - old_charge))
  return err
end
release_charge(charged_caller, math.max(0, old_charge - new_charge))
redis.call('HSET', key, 'name', name, 'revision', to_integer_text(revision + 1), 'content', content, 'kept', to_integer_text(new_charge), 'kept_of', charged_caller,
  unpack(fields))
redis.call('SADD', kSchedulesKey, name)
add_definition_use(hash, definition, 'schedule:' .. name, caller)
if stored.definition_hash and stored.definition_hash ~= hash then remove_definition_use(stored.definition_hash, 'schedule:' .. name) end
return ''

--# flow_schedule_remove: dispatch_journal stored_usage flows
-- Removes a schedule and its use of the definition. ARGV: name. Reply: empty, or missing. Repeat: safe; the reply is
-- missing.
local name = next_arg()
local key = kScheduleKey .. name
local err = check_type(key, 'hash') or check_type(kSchedulesKey, 'set')
if err then return err end
local stored = redis.call('HMGET', key, 'definition_hash', 'kept', 'kept_of')
local hash = stored[1]
redis.call('SREM', kSchedulesKey, name)
if redis.call('DEL', key) == 0 then return 'missing' end
if stored[2] and stored[3] then release_charge(stored[3], to_number(stored[2])) end
remove_definition_use(hash, 'schedule:' .. name)
return ''

--# flow_retire: dispatch_journal job_indexes stored_usage flows
-- Deletes an ended or abandoned flow with all of its keys.
-- ARGV: flow (id), is_requested (flag: at the request of a user, independent of the retention), before_ms (end of the
-- retention).
-- Reply: 1 if the flow was deleted; 0 if jobs of an abandoned creation are left, so that the caller must call again;
-- not_ended; missing.
-- Repeat: safe; the reply is missing.
local flow, is_requested = next_arg(), next_arg() == '1'
local before_ms = to_number(next_arg())
local err = check_index_types() or check_flow_types(flow)
if err then return err end
local mark = read_mark(flow)
if not mark then
  redis.call('ZREM', kFlowsEndedKey, flow)
  return 'missing'
end
if mark.state ~= kFlowStateEnded and mark.state ~= kFlowStateCreating then return 'not_ended' end
if not is_requested and to_number(redis.call('ZSCORE', kFlowsEndedKey, flow) or nil) > before_ms then return 'not_ended' end
if not is_requested and redis.call('HEXISTS', kFlowKey .. flow, 'noticed') == 1 and has_type(kNoticesKey, 'zset') then
  redis.call('ZADD', kFlowsEndedKey, to_integer_text(now_ms), flow)  -- try again later: the notice was not delivered yet
  return 'not_ended'
end

if mark.state == kFlowStateCreating then
  local first, swept = to_number(mark.first_job), to_number(mark.swept)
  local last = math.min(to_number(mark.jobs), swept + 200)
  for i = swept, last - 1 do
    local job = 'job:' .. (mark.caller or '0') .. ':' .. to_integer_text(first + i)
    local claim = find_claim(job)
    if claim and claim.state == kJobStatePlanned and string.match(claim.flow or '', ' (%d+)$') == flow then
      local revisions = {}
      for revision in string.gmatch(claim.revs or '', '%d+') do revisions[#revisions + 1] = revision .. '-0' end
      local journal = kQueueJournalKey .. get_queue(job, claim)
      if #revisions > 0 and has_type(journal, 'stream') then redis.call('XDEL', journal, unpack(revisions)) end
      release_idempotency_keys(job, claim)
      release_job_charge(job, claim)
      redis.call('UNLINK', job, kClaimKey .. job, kJobFilesKey .. job)
      call_index('ZREM', kJobsKey, job)
    end
  end
  if last < to_number(mark.jobs) then
    redis.call('HSET', kFlowKey .. flow, 'swept', to_integer_text(last))
    return 0
  end
end
local function drop_row(key, row)
  if not row or to_number(row) == 0 or not has_type(key, 'stream') then return end
  local entry = redis.call('XRANGE', key, to_integer_text(to_number(row)), to_integer_text(to_number(row)), 'COUNT', 1)[1]
  if entry and to_table(entry[2]).flow == flow then redis.call('XDEL', key, entry[1]) end
end
drop_row(kFlowCatalogKey, mark.row)
if mark.name and mark.name ~= '' then
  local index = kFlowNameCatalogKey .. mark.name
  drop_row(index, mark.index_row)
  if has_type(index, 'stream') and redis.call('XLEN', index) == 0 then redis.call('UNLINK', index) end
end
remove_definition_use(mark.definition, 'flow:' .. flow)
local names_key = kFlowIdempotencyKey .. (mark.caller or '0')
if mark.key and mark.key ~= '' and has_type(names_key, 'hash')
  and string.match(redis.call('HGET', names_key, mark.key) or '', '^(%d+) ') == flow then
  redis.call('HDEL', names_key, mark.key)
end
-- A record that another client has written is not deleted until it has become a flow.
if not (mark.adopted and mark.state == kFlowStateCreating) then redis.call('UNLINK', 'flow:' .. flow) end
redis.call('UNLINK', kFlowJournalKey .. flow, kFlowCheckpointKey .. flow, kFlowEventsKey .. flow, kFlowDependentsKey .. flow,
  kFlowKey .. flow)
redis.call('ZREM', kFlowsEndedKey, flow)
return 1
