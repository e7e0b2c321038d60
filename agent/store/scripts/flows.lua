-- Flows: made, read, due; who leads; schedules; retention.

--# flow_create: flows ids
-- {flow, first job, 1 if it existed}; {} if ids of jobs must be reserved first.
local context, caller, jobs, first_job, key, fingerprint = arg(), arg(), num(arg()), arg(), arg(), redis.sha1hex(arg())
local names = 'mj:flow-keys:' .. caller
local err = wrong('mj:next:flow', 'string') or wrong(names, 'hash') or wrong(kEnded, 'zset')
if err then return err end
if key ~= '' then
  local flow, first_print = string.match(redis.call('HGET', names, key) or '', '^(%d+) (%x+)$')
  local mark = flow and type_of('mj:flow:' .. flow) == 'hash' and read_mark(flow)
  if mark and mark.key ~= key then mark = nil end  -- it was rebuilt without its key
  if mark and first_print ~= fingerprint and first_print ~= kAnyPrint then
    return redis.error_reply('MJCONFLICT idempotency_key: ' .. shown(key) .. ' began flow ' .. flow
      .. ', for another flow: use another key')
  end
  if mark then return {flow, mark.first_job or '0', 1} end
end
if jobs > 0 and first_job == '0' then return {} end
local id = free_ids(num(redis.call('GET', 'mj:next:flow')), 1, function(each)
  return redis.call('EXISTS', 'flow:' .. dec(each), 'mj:flow:' .. dec(each)) > 0
end)
if not id then return redis.error_reply('MJFULL the context has no free flow id left') end
id = dec(id)
redis.call('HSET', 'mj:flow:' .. id, 'state', 'creating', 'caller', caller, 'first_job', first_job, 'jobs', dec(jobs), 'key', key,
  'print', fingerprint, 'created_ms', dec(now_ms))
redis.call('HSET', 'flow:' .. id, 'id', id, 'caller_id', caller, 'context_id', context, 'status', 'dispatched', 'detail', 'creating',
  'created_at', now_s, 'updated_at', now_s)
redis.call('ZADD', kEnded, dec(now_ms), id)
if key ~= '' then redis.call('HSET', names, key, id .. ' ' .. fingerprint) end
redis.call('SET', 'mj:next:flow', id)
return {id, first_job, 0}

--# flow_adopt: flows
-- A record that another client has written becomes a flow in the making, under its own id: its jobs and its definition
-- follow, as of any other. Empty: go on, also with one that was begun and broken off. known: it was made by flow_create.
local flow, caller = arg(), arg()
local err = wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if mark then return mark.state == 'creating' and mark.adopted and '' or 'known' end
if redis.call('EXISTS', 'flow:' .. flow) == 0 then return 'missing' end
redis.call('HSET', 'mj:flow:' .. flow, 'state', 'creating', 'adopted', '1', 'caller', caller, 'first_job', '0', 'jobs', '0',
  'key', '', 'created_ms', dec(now_ms))
redis.call('ZADD', kEnded, dec(now_ms), flow)
return ''

--# flow_reserve:
-- Ids of a caller's jobs that nobody is given after this: the first of so many. skip: how many to leave out before it.
local caller, jobs, skip = arg(), num(arg()), num(arg())
local counter = 'mj:next:' .. caller
local err = wrong(counter, 'string')
if err then return err end
local first = num(redis.call('GET', counter)) + 1 + skip
if first + jobs - 1 > 4294967295 then
  return redis.error_reply('MJFULL caller ' .. caller .. ' has no ' .. dec(jobs) .. ' free job ids left')
end
redis.call('SET', counter, dec(first + jobs - 1))
return dec(first)

--# flow_put_jobs: journal places messages worlds kept ends flows
-- {}; or {index, record}... of those that are there and were not accepted; or a text: why not.
local context, flow, count = arg(), arg(), num(arg())
read_quota()
local err = wrong_shared() or wrong_flow(flow)
if err then return err end
local mark, me = read_mark(flow), context .. ' ' .. flow
if not mark then return 'missing' end
local open = mark.state == 'creating' or mark.state == 'new'

local fresh, exist, charges = {}, {}, {}  -- charges: by caller
for i = 1, count do
  local job, queue, accepted, fields = arg(), arg(), arg() == '1', list_arg()
  err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
  if err then return err end
  local claim, content = read_claim(job), digest(fields)
  local there = redis.call('EXISTS', job) == 1
  if claim.flow == me then
    if claim.content and claim.content ~= content then return job .. ' is a job of this flow already, with other content' end
  elseif claim.flow then
    return job .. ' belongs to flow ' .. shown(claim.flow) .. ' (context, id)'
  elseif claim.state then
    return job .. ' is ' .. claim.state .. ' on its own: a flow accepts only jobs that were never submitted'
  elseif not open then
    return 'flow ' .. flow .. ' has begun, so that ' .. job .. ' cannot be added'
  else
    if there then
      local record = redis.call('HMGET', job, 'status', 'detail')
      local status = record[1] or ''
      if status ~= '' and status ~= 'dispatched' and status ~= 'waiting_for_prerequisites' then
        return job .. ' has run before: its record has the status ' .. shown(status)
      end
      if not is_only_created(job, claim, record[2]) and was_pushed(queue, job) then
        return job .. ' is in ' .. shown(queue) .. ' already: a flow accepts only jobs that were never queued'
      end
      if not accepted then exist[#exist + 1] = {i, redis.call('HGETALL', job)} end
    end
    local bytes = record_charge(fields)
    if not there then charges[caller_of(job)] = (charges[caller_of(job)] or 0) + bytes end
    fresh[#fresh + 1] = {job = job, queue = queue, fields = fields, claim = claim, there = there, content = content, kept = bytes}
  end
end
if #exist > 0 then return exist end
local charged = {}
for caller, kept in pairs(charges) do
  local setting, limit = charge(caller, kept, kAtQuota)
  if setting then
    for other, bytes in pairs(charged) do credit(other, bytes) end
    return refusal_of_quota(caller, setting, limit)
  end
  charged[caller] = kept
end
for _, each in ipairs(fresh) do
  local job = each.job
  local fields = {'flow_id', flow, 'status', 'waiting_for_prerequisites', 'detail', 'planned', 'updated_at', now_s}
  if each.there then
    local supervisor = to_table(each.fields).supervisor_url
    if supervisor then redis.call('HSET', job, 'supervisor_url', supervisor) end
    redis.call('HSET', job, unpack(fields))
  else
    for _, text in ipairs(fields) do each.fields[#each.fields + 1] = text end
    redis.call('HSET', job, 'id', string.match(job, '%d+$'), 'created_at', now_s, unpack(each.fields))
  end
  if each.there then
    plan(job, each.claim, each.queue, me, 'content', each.content)
  else
    plan(job, each.claim, each.queue, me, 'content', each.content, 'kept', dec(each.kept))
  end
end
return {}

--# flow_put: journal kept flows
-- Empty, or missing.
local flow, hash, definition, name, fields = arg(), arg(), arg(), arg(), list_arg()
read_quota()
local index = kCatalog .. ':' .. name
local err = wrong_flow(flow) or wrong_definition(hash) or wrong(kCatalog, 'stream') or wrong(index, 'stream')
if err then return err end
local mark = read_mark(flow)
if not mark then return 'missing' end
if mark.state ~= 'creating' then
  if mark.definition == hash then return '' end
  return redis.error_reply('MJCONFLICT flow ' .. flow .. ' has another definition, which it keeps')
end
local row, index_row = head_of(kCatalog), name == '' and 0 or head_of(index)
if not row or not index_row then return strange_head(row and index or kCatalog) end
local caller = mark.caller or '0'
err = charge_definition(hash, definition, caller)
if err then return err end
use_definition(hash, definition, 'flow:' .. flow, caller)
redis.call('HSET', 'flow:' .. flow, 'status', 'dispatched', 'detail', 'new', 'updated_at', now_s, unpack(fields))
redis.call('XADD', kCatalog, dec(row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or dec(now_ms), 'name', name)
if name ~= '' then
  redis.call('XADD', index, dec(index_row + 1) .. '-0', 'flow', flow, 'at', mark.created_ms or dec(now_ms), 'name', name)
end
local values = to_table(fields)
redis.call('HSET', 'mj:flow:' .. flow, 'ids', values.jobs or '', 'parent', values.parent or '')
redis.call('HSET', 'mj:flow:' .. flow, 'state', 'new', 'definition', hash, 'name', name, 'row', dec(row + 1), 'index_row',
  dec(index_row + 1))
redis.call('ZREM', kEnded, flow)
return ''

--# flow_read: flows
-- {record, revision, checkpoint, its revision, entries, 1 if there are more, events, anomalies, now, events taken before,
-- what the record should say of what it is, {job, job_view()} of the first events}.
local flow, after, max = arg(), arg(), num(arg())
local err = wrong('flow:' .. flow, 'hash') or wrong('mj:flow:' .. flow, 'hash')
if err then return err end
local long, size = too_long('flow:' .. flow, 67108864)
if long then
  return redis.error_reply('MJFULL flow:' .. flow .. ': ' .. long .. ': ' .. dec(size) .. ' bytes are more than a flow may have: HDEL it')
end
local mark, anomalies = read_mark(flow), {}
local function readable(key, want)
  local is = type_of(key)
  if is ~= want and is ~= 'none' then
    anomalies[#anomalies + 1] = key .. ' is a ' .. is .. ' where a ' .. want .. ' belongs: delete it, then doctor --rebuild'
  end
  return is == want
end

local text, at = '', 0
if readable('mj:checkpoint:' .. flow, 'hash') then
  text = redis.call('HGET', 'mj:checkpoint:' .. flow, 'text') or ''
  at = num(redis.call('HGET', 'mj:checkpoint:' .. flow, 'at'))
end
local run, revision = 'mj:run:' .. flow, at
local entries, bytes, more = {}, 0, 0
if readable(run, 'stream') then
  revision = head_of(run)
  if not revision then return strange_head(run) end
  if at > revision then
    anomalies[#anomalies + 1] = 'mj:checkpoint:' .. flow .. ' is of revision ' .. dec(at) .. ', and the run has ' .. dec(revision)
    text, at = '', 0
  end
  local from = after == '' and at or num(after)
  while #entries < max and bytes < 4194304 do
    local page = redis.call('XRANGE', run, dec(from + 1), '+', 'COUNT', math.min(100, max - #entries))
    for _, entry in ipairs(page) do
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
      entries[#entries + 1] = entry
      from = num(string.match(entry[1], '^%d+'))
    end
    if #page == 0 then break end
  end
  if from < revision and #redis.call('XRANGE', run, dec(from + 1), '+', 'COUNT', 1) > 0 then more = 1 end
elseif at > 0 then
  anomalies[#anomalies + 1] = run .. ' is missing: the run resumes from its checkpoint at revision ' .. dec(at)
end
local events = readable('mj:events:' .. flow, 'list') and redis.call('LRANGE', 'mj:events:' .. flow, 0, 999) or {}
-- The first of those jobs, so that a step of a chain costs no further trip.
local jobs, job_bytes = {}, 0
for i = 1, math.min(#events, 8) do
  local job = string.match(events[i], '^job (.+)$')
  if job and job_bytes < 1048576 then
    local view, size = job_view(job)
    jobs[#jobs + 1], job_bytes = {job, view}, job_bytes + size
  end
end
-- Who reads on has read the record: what is long in it, and says nothing new, would cost more than all else.
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
return {record, dec(revision), after == '' and text or '', dec(after == '' and at or 0), entries, more,
  events, anomalies, dec(now_ms), mark and mark.taken or '0', mark and identity_of(flow, mark) or {}, jobs}

--# flow_jobs: flows
-- job_view() of each, as far as 4 MiB go.
local answers, bytes = {}, 0
for i, job in ipairs(list_arg()) do
  if bytes > 4194304 then break end
  local view, size = job_view(job)
  answers[i], bytes = view, bytes + size
end
return answers

--# flow_list: flows
-- Rows of a catalog before this flow: {last row that was looked at, {flow, at, name, record}...}; of an entry that names no
-- flow {its id}. last: the row where the page before ended; else the flow says where to begin.
local key, before, last, max = arg(), arg(), arg(), num(arg())
local err = wrong(key, 'stream')
if err then return err end
if last == '' and before ~= '0' and type_of('mj:flow:' .. before) == 'hash' then
  last = redis.call('HGET', 'mj:flow:' .. before, key == kCatalog and 'row' or 'index_row') or ''
end
local to = last == '' and '+' or dec(math.max(0, num(last) - 1))
local rows, bytes = {''}, 0
for _, entry in ipairs(redis.call('XREVRANGE', key, to, '-', 'COUNT', 500)) do
  if #rows > max or bytes > 4194304 then return rows end
  local row = to_table(entry[2])
  local flow = row.flow or ''
  rows[1] = string.match(entry[1], '^%d+')
  if is_id(flow) and (before == '0' or num(flow) < num(before)) then
    local record = {}
    if type_of('flow:' .. flow) == 'hash' then
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
  elseif not is_id(flow) then
    rows[#rows + 1] = {entry[1]}
  end
end
return rows

--# flow_due: journal flows
-- {ms until the next, flow...}.
local max = num(arg())
local err = wrong(kDue, 'zset') or wrong('mj:anomalies', 'stream')
if err then return err end
local answer = {'0'}
for _, flow in ipairs(redis.call('ZRANGEBYSCORE', kDue, '-inf', dec(now_ms), 'LIMIT', 0, max)) do
  local mark = is_id(flow) and has_type('mj:flow:' .. flow, 'hash') and read_mark(flow)
  if mark and mark.state == 'active' then
    answer[#answer + 1] = flow
  else
    add_anomaly('mj:flows:due names ' .. shown(flow) .. ', which is not a running flow; the entry was dropped')
    redis.call('ZREM', kDue, flow)
  end
end
local next_due = redis.call('ZRANGEBYSCORE', kDue, '(' .. dec(now_ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if next_due then answer[1] = dec(math.max(1, math.min(num(next_due) - now_ms, 4000000000))) end
return answer

--# flow_raise: flows
-- Due now, also if a commit that has not seen this comes in between.
local context, flow = arg(), arg()
local err = wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if not mark or mark.state ~= 'active' then return 0 end
local revision = revision_of(flow)
if not revision then return strange_head('mj:run:' .. flow) end
redis.call('HSET', 'mj:flow:' .. flow, 'raised', dec(revision))
redis.call('ZADD', kDue, 'LT', dec(now_ms), flow)
redis.call('PUBLISH', kDue, context .. ' ' .. flow)
return 1

--# flow_await: journal places messages worlds kept ends flows
-- A flow that the caller may not read is answered as a missing flow: the event is `absent`, and the record is not read.
local context, flow, other = arg(), arg(), arg()
local waits, record = 'mj:flow-waits:' .. other, 'context:' .. context
local err = wrong(waits, 'set') or wrong(kDue, 'zset') or wrong('mj:anomalies', 'stream') or wrong('mj:flow:' .. other, 'hash')
  or wrong('mj:flow:' .. flow, 'hash') or wrong('flow:' .. other, 'hash') or wrong(record, 'hash')
if err then return err end
local mark = read_mark(other)

-- The row `read` of the table of rights (domain/rights.h).
local function may_read()
  local reader, maker = redis.call('HGET', 'mj:flow:' .. flow, 'caller'), mark and mark.caller or redis.call('HGET', 'flow:' .. other, 'caller_id')
  if not reader or reader == maker or redis.call('EXISTS', record) == 0 then return true end
  local lists = redis.call('HMGET', record, 'admins', 'readers')
  local who = '%f[%d]' .. reader .. '%f[%D]'
  return string.find(lists[1] or '', who) or string.find(lists[2] or '', who)
end
if not may_read() then
  raise_event(context .. ' ' .. flow, 'absent flow:' .. other)
  return 0
end
if not mark or mark.state == 'ended' then
  raise_event(context .. ' ' .. flow, 'flow flow:' .. other)
elseif redis.call('SCARD', waits) >= 1000 and redis.call('SISMEMBER', waits, flow) == 0 then
  return redis.error_reply('MJFULL flow ' .. other .. ' is waited for by 1000 flows already')
else
  redis.call('SADD', waits, flow)
end
return 0

--# flow_lead:
-- 1: this instance leads now. The end of a time that is further off than it is long only says that the clock went back.
local instance, where, ttl = arg(), arg(), num(arg())
local key = 'mj:coordinator'
local err = wrong(key, 'hash')
if err then return err end
local held = to_table(redis.call('HGETALL', key))
local left = num(held.until_ms) - now_ms
if held.instance and held.instance ~= instance and left >= 0 and left <= num(held.ttl_ms) then return 0 end
redis.call('HSET', key, 'instance', instance, 'where', where, 'until_ms', dec(now_ms + ttl), 'ttl_ms', dec(ttl))
return 1

--# flow_stop_leading:
local instance, key = arg(), 'mj:coordinator'
local err = wrong(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0

--# flow_schedule_put: journal kept flows
-- Empty; {conflict, the present revision}; missing: its definition is not there and was not given.
local name, expected, hash, definition, fields = arg(), num(arg()), arg(), arg(), list_arg()
read_quota()
local key = 'mj:schedule:' .. name
local err = wrong(key, 'hash') or wrong('mj:schedules', 'set') or wrong_definition(hash)
if err then return err end
local there, content = to_table(redis.call('HGETALL', key)), {}
for _, word in ipairs(fields) do content[#content + 1] = #word .. ':' .. word end
content = redis.sha1hex(table.concat(content))
local revision = num(there.revision)
if revision ~= expected then
  if revision == expected + 1 and there.content == content then return '' end  -- the answer was lost
  return {'conflict', dec(revision)}
end
if definition == '' and redis.call('EXISTS', 'mj:definition:' .. hash) == 0 then return 'missing' end
local caller, kept, before = to_table(fields).caller or '0', record_charge(fields), num(there.kept)
local charged = there.kept_of or caller
local setting, limit = charge(charged, math.max(0, kept - before), kAtQuota)
if setting then return refusal_of_quota(charged, setting, limit) end
err = charge_definition(hash, definition, caller)
if err then
  credit(charged, math.max(0, kept - before))
  return err
end
credit(charged, math.max(0, before - kept))
redis.call('HSET', key, 'name', name, 'revision', dec(revision + 1), 'content', content, 'kept', dec(kept), 'kept_of', charged,
  unpack(fields))
redis.call('SADD', 'mj:schedules', name)
use_definition(hash, definition, 'schedule:' .. name, caller)
if there.definition_hash and there.definition_hash ~= hash then drop_definition(there.definition_hash, 'schedule:' .. name) end
return ''

--# flow_schedule_remove: journal kept flows
local name = arg()
local key = 'mj:schedule:' .. name
local err = wrong(key, 'hash') or wrong('mj:schedules', 'set')
if err then return err end
local there = redis.call('HMGET', key, 'definition_hash', 'kept', 'kept_of')
local hash = there[1]
redis.call('SREM', 'mj:schedules', name)
if redis.call('DEL', key) == 0 then return 'missing' end
if there[2] and there[3] then credit(there[3], num(there[2])) end
drop_definition(hash, 'schedule:' .. name)
return ''

--# flow_retire: journal places kept flows
-- One flow leaves: all that is its own. 1: gone. 0: some of the jobs of one that was never finished are left, call again.
-- not_ended; missing.
local flow, asked = arg(), arg() == '1'  -- asked: by a person, whatever its time is
local before_ms = num(arg())
local err = wrong_shared() or wrong_flow(flow)
if err then return err end
local mark = read_mark(flow)
if not mark then
  redis.call('ZREM', kEnded, flow)
  return 'missing'
end
if mark.state ~= 'ended' and mark.state ~= 'creating' then return 'not_ended' end
if not asked and num(redis.call('ZSCORE', kEnded, flow) or nil) > before_ms then return 'not_ended' end
if not asked and redis.call('HEXISTS', 'mj:flow:' .. flow, 'noticed') == 1 and has_type('mj:notices', 'zset') then
  redis.call('ZADD', kEnded, dec(now_ms), flow)  -- until its notice was sent
  return 'not_ended'
end

if mark.state == 'creating' then
  local first, swept = num(mark.first_job), num(mark.swept)
  local last = math.min(num(mark.jobs), swept + 200)
  for i = swept, last - 1 do
    local job = 'job:' .. (mark.caller or '0') .. ':' .. dec(first + i)
    local claim = find_claim(job)
    if claim and claim.state == 'planned' and string.match(claim.flow or '', ' (%d+)$') == flow then
      local revisions = {}
      for revision in string.gmatch(claim.revs or '', '%d+') do revisions[#revisions + 1] = revision .. '-0' end
      local journal = 'mj:journal:' .. queue_of(job, claim)
      if #revisions > 0 and has_type(journal, 'stream') then redis.call('XDEL', journal, unpack(revisions)) end
      forget_idempotency_keys(job, claim)
      credit_job(job, claim)
      redis.call('UNLINK', job, 'mj:claim:' .. job)
      call_index('ZREM', 'mj:jobs', job)
    end
  end
  if last < num(mark.jobs) then
    redis.call('HSET', 'mj:flow:' .. flow, 'swept', dec(last))
    return 0
  end
end
local function drop_row(key, row)
  if not row or num(row) == 0 or not has_type(key, 'stream') then return end
  local entry = redis.call('XRANGE', key, dec(num(row)), dec(num(row)), 'COUNT', 1)[1]
  if entry and to_table(entry[2]).flow == flow then redis.call('XDEL', key, entry[1]) end
end
drop_row(kCatalog, mark.row)
if mark.name and mark.name ~= '' then
  local index = kCatalog .. ':' .. mark.name
  drop_row(index, mark.index_row)
  if has_type(index, 'stream') and redis.call('XLEN', index) == 0 then redis.call('UNLINK', index) end
end
drop_definition(mark.definition, 'flow:' .. flow)
local names = 'mj:flow-keys:' .. (mark.caller or '0')
if mark.key and mark.key ~= '' and has_type(names, 'hash')
  and string.match(redis.call('HGET', names, mark.key) or '', '^(%d+) ') == flow then
  redis.call('HDEL', names, mark.key)
end
-- What another client has written stays until it is a flow.
if not (mark.adopted and mark.state == 'creating') then redis.call('UNLINK', 'flow:' .. flow) end
redis.call('UNLINK', 'mj:run:' .. flow, 'mj:checkpoint:' .. flow, 'mj:events:' .. flow, 'mj:flow-waits:' .. flow,
  'mj:flow:' .. flow)
redis.call('ZREM', kEnded, flow)
return 1
