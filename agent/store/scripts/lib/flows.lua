-- Flows. mj:flow:<id> says where one is:
--   creating   ids are allocated; its jobs and its definition are being written
--   new        whole, and not begun
--   active     in mj:flows:active; in mj:flows:due if it should be looked at
--   ended      in mj:flows:ended, until retention is over (creating: too, from its creation)
local kDue, kActive, kEnded, kCatalog = 'mj:flows:due', 'mj:flows:active', 'mj:flows:ended', 'mj:catalog'
local function wrong_flow(flow)
  return wrong('flow:' .. flow, 'hash') or wrong('mj:flow:' .. flow, 'hash') or wrong('mj:run:' .. flow, 'stream')
    or wrong('mj:checkpoint:' .. flow, 'hash') or wrong('mj:flow-waits:' .. flow, 'set') or wrong(kDue, 'zset')
    or wrong(kActive, 'zset') or wrong(kEnded, 'zset')
end
local function read_mark(flow)  -- nil: there is none, or it was never created through us
  local mark = to_table(redis.call('HGETALL', 'mj:flow:' .. flow))
  return mark.state and mark
end
-- Instead of the fingerprint of a request that nobody knows any more: fits every request.
local kAnyPrint = '0'
-- What the record of a flow says of what it is, whatever another client has made of it since.
local function identity_of(flow, mark)
  local fields = {'id', flow, 'caller_id', mark.caller or '0'}
  for name, from in pairs({jobs = 'ids', definition_hash = 'definition', name = 'name', parent = 'parent'}) do
    if mark[from] and mark[from] ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = mark[from]
    end
  end
  return fields
end
-- {state, attempt, status, detail, error, result, started_ms, ended_ms, runner, result_json} of a job, and its bytes.
local function job_view(job)
  local claim, is = read_claim(job) or {}, type_of(job)
  local v = is == 'hash' and redis.call('HMGET', job, 'status', 'detail', 'error', 'started_ms', 'attempt', 'runner_id', 'ended_ms') or {}
  local state, status = claim.state or '', v[1] or ''
  if is ~= 'hash' and state ~= 'ended' then state = 'absent' end
  if state == 'ended' then status = claim.status or status end
  local over = state == 'ended' or (state == '' and (status == 'finished' or status == 'error'))
  local result = over and is == 'hash' and redis.call('HMGET', job, 'result', 'result_json') or {}
  return {state, claim.attempt or v[5] or '0', status, state == 'ended' and claim.detail or v[2] or '', v[3] or '', result[1] or '',
    v[4] or '0', claim.ended_ms or v[7] or '0', claim.runner or v[6] or '0', result[2] or ''}, #(result[1] or '') + #(result[2] or '') + 200
end
local function is_id(text)
  return string.match(text, '^[1-9]%d*$') and #text <= 10 and num(text) <= 4294967295
end

-- The number before the dash of a stream's latest entry, those that were deleted with it; 0: there is no stream.
-- Nil: it is larger than any that we write.
local function head_of(key)
  if redis.call('EXISTS', key) == 0 then return 0 end
  local head = tonumber(string.match(to_table(redis.call('XINFO', 'STREAM', key))['last-generated-id'], '^%d+'))
  return head < 9007199254740000 and head or nil
end
local function strange_head(key)
  return redis.error_reply('MJTYPE ' .. shown(key) .. ' ends with an entry that mycojobs did not write')
end
-- Of a run's latest fact. Should its journal have been deleted, it goes on from its checkpoint.
local function revision_of(flow)
  local head = head_of('mj:run:' .. flow)
  if head ~= 0 then return head end
  return num(redis.call('HGET', 'mj:checkpoint:' .. flow, 'at'))
end

-- The definition `hash` is used by one more (flow:<id>, schedule:<name>), or by one less.
local function wrong_definition(hash)
  return wrong('mj:definition:' .. hash, 'hash') or wrong('mj:definition-uses:' .. hash, 'set')
end
-- A definition that is not there yet is charged to the caller, as long as anybody uses it. The error to answer with, if that is
-- too much.
local function charge_definition(hash, text, caller)
  if redis.call('EXISTS', 'mj:definition:' .. hash) == 1 then return end
  local setting, limit = charge(caller, record_charge({text}), kAtQuota)
  return setting and refusal_of_quota(caller, setting, limit)
end
local function use_definition(hash, text, user, caller)
  if redis.call('EXISTS', 'mj:definition:' .. hash) == 0 then
    redis.call('HSET', 'mj:definition:' .. hash, 'text', text, 'caller', caller, 'kept', dec(record_charge({text})))
  end
  redis.call('SADD', 'mj:definition-uses:' .. hash, user)
end
local function drop_definition(hash, user)
  if not hash or hash == '' then return end
  if is_foreign('mj:definition:' .. hash, 'hash') or is_foreign('mj:definition-uses:' .. hash, 'set') then return end
  -- A user that is not registered proves that users were lost: others may need the definition.
  local known = redis.call('SREM', 'mj:definition-uses:' .. hash, user) == 1
  if known and redis.call('EXISTS', 'mj:definition-uses:' .. hash) == 0 then
    local charged = redis.call('HMGET', 'mj:definition:' .. hash, 'caller', 'kept')
    if charged[1] and charged[2] then credit(charged[1], num(charged[2])) end
    redis.call('UNLINK', 'mj:definition:' .. hash)
  end
end

-- A job of the flow ("<context> <id>"), in no queue. More: further fields of its claim.
local function plan(job, claim, queue, flow, ...)
  add_fact(queue, job, claim, 'planned', 'fl', flow)
  local priority = redis.pcall('HGET', job, 'priority')  -- an error if the record is not a hash
  set_claim(job, claim, 'state', 'planned', 'queue', queue, 'flow', flow, 'priority',
    valid_priority(type(priority) == 'string' and priority or ''), ...)
  claim.state, claim.queue, claim.flow = 'planned', queue, flow
end
