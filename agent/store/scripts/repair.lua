--# journal places ends
-- Makes a job's claim what its facts say (`want`: the claim's fields, none for a bare record, revs alone where the claim
-- is kept as it is), and its place, indexes
-- and status what its claim says. Answers {1 if it has newer facts than were read, differences...}.
local job, dry, last_revision, head, want = arg(), arg() == '1', num(arg()), num(arg()), to_table(list_arg())
local err = wrong_shared() or wrong('mj:jobs', 'zset')
if err then return err end
local differences = {0}
local function differs(text, mend, ...)
  differences[#differences + 1] = job .. ': ' .. text
  if not dry then mend(...) end
end

local claim = read_claim(job)
if not claim then
  differs('mj:claim:' .. job .. ' is not a hash: another client wrote it', redis.call, 'DEL', 'mj:claim:' .. job)
  claim = {}
end
local queue = want.queue or queue_of(job, claim)
local listed_revision = num(string.match(claim.revs or '', '(%d+)$'))
if listed_revision > last_revision and head < listed_revision then return {1} end
if head > 0 and type_of('mj:journal:' .. queue) == 'stream' then
  for _, entry in ipairs(redis.call('XRANGE', 'mj:journal:' .. queue, dec(head + 1), '+', 'COUNT', 10000)) do
    if to_table(entry[2]).j == job then return {1} end
  end
end

-- The claim.
local kFacts = {'state', 'queue', 'claim_id', 'token', 'epoch', 'attempt', 'deliveries', 'runner', 'instance', 'lease_ms', 'status',
  'detail', 'end', 'ended_ms', 'revs', 'reason', 'message', 'flow'}
local kOfClaims = {'claim_id', 'token', 'epoch', 'attempt', 'deliveries', 'runner', 'instance'}
local mend = {}
if want.state == 'ended' then want.message = nil end  -- it has counted this end
local raw = type_of('mj:claim:' .. job) == 'hash' and redis.call('HGET', 'mj:claim:' .. job, 'state')
if raw then claim.state = raw end  -- also one that nobody knows
if want.state or not claim.state then
  for _, name in ipairs(want.epoch and {'claim_id', 'token'} or kOfClaims) do
    if claim[name] and not want[name] and num(claim[name]) ~= 0 or (claim[name] and not want[name] and not tonumber(claim[name])) then
      differs('its claim has ' .. name .. ' ' .. shown(claim[name]) .. ', its facts say nothing of it', redis.call, 'HDEL', 'mj:claim:' .. job, name)
      claim[name] = nil
    end
  end
end
if want.state then
  for _, name in ipairs(kFacts) do
    local value = want[name]
    if value and value ~= '' and (claim[name] or '') ~= value then
      -- Whoever ended it may be gone from the claim already; reason is but a hint.
      local known = name ~= 'reason' and name ~= 'instance' and name ~= 'lease_ms' and name ~= 'ended_ms'
      if known then differs('its claim has ' .. name .. ' ' .. shown(claim[name] or 'none') .. ', its facts say ' .. shown(value), function() end) end
      mend[#mend + 1] = name
      mend[#mend + 1] = value
      claim[name] = value
    end
  end
end
local state = claim.state
local is = type_of(job)
local record = is == 'hash' and to_table(redis.call('HGETALL', job)) or {}
if state and not claim.priority then
  claim.priority = valid_priority(record.priority)
  mend[#mend + 1] = 'priority'
  mend[#mend + 1] = claim.priority
end
if #mend > 0 and not dry then redis.call('HSET', 'mj:claim:' .. job, unpack(mend)) end

-- Its place. A job that waits for what has happened already, or is held for no reason, goes to its queue.
local ckey = record.concurrency_key
if ckey == '' or (ckey and wrong('mj:running:' .. ckey, 'set')) then ckey = nil end
if is == 'hash' and state and claim.ckey and claim.ckey ~= (state == 'live' and ckey or nil) then
  differs('its claim takes a slot of ' .. shown(claim.ckey), function()
    if not wrong('mj:running:' .. claim.ckey, 'set') then redis.call('SREM', 'mj:running:' .. claim.ckey, job) end
    redis.call('HDEL', 'mj:claim:' .. job, 'ckey')
  end)
end
local open = {}
if state == 'waiting' then
  for _, dep in ipairs(dependencies(job, record.dependends) or {}) do
    if not end_of(dep) then open[#open + 1] = dep end
  end
end
local slots = ckey and redis.call('SCARD', 'mj:running:' .. ckey) or 0
local takes = ckey and redis.call('SISMEMBER', 'mj:running:' .. ckey, job) == 1
if takes and state ~= 'live' then
  differs('it takes a slot of ' .. shown(ckey) .. ' and is ' .. (state or 'queued'), redis.call, 'SREM', 'mj:running:' .. ckey, job)
  slots = slots - 1
end
local free = state == 'held' and slots < math.max(1, num(record.concurrency_limit))
if (state == 'waiting' and #open == 0) or free then
  differs('it is ' .. state .. ' without a reason', enqueue, job, claim, state == 'held' and 'held' or 'dependencies', false)
  state = dry and state or 'queued'
elseif is == 'none' and state and state ~= 'ended' and state ~= 'live' then  -- a live one is its owner's
  differs('it is ' .. state .. ' and its record is gone', finish, job, claim, failure('dead_letter', 'its record was deleted'), false)
  if not dry then
    claim, is = read_claim(job), type_of(job)
    state, record = claim.state, to_table(redis.call('HGETALL', job))
  end
end

local function place(name, key, should, add)
  local there = type_of(key) == 'zset' and redis.call('ZSCORE', key, job)
  if there and not should then
    differs('it is in ' .. name .. ' and ' .. (state or 'queued'), redis.call, 'ZREM', key, job)
  elseif should and not there then
    differs('it is ' .. (state or 'queued') .. ' and not in ' .. name, redis.call, 'ZADD', key, add, job)
  end
end
local lease_ms = math.max(1000, num(claim.lease_ms))
local until_ms = dec(math.max(num(claim.until_ms), now_ms + lease_ms))
-- By what its record knows. One that another client has pushed, and nobody has seen yet, needs not stand there.
local moment = dec(1000 * math.max(num(record.ended_ms), num(record.started_ms), num(record.queued_ms),
  1000 * num(record.updated_at), 1000 * num(record.created_at), 1))
if state then
  place('mj:jobs', 'mj:jobs', is == 'hash', moment)
elseif is == 'hash' and not dry then
  redis.call('ZADD', 'mj:jobs', 'NX', moment, job)
end
if state == 'live' and (not redis.call('ZSCORE', 'mj:leases', job) or not claim.until_ms or #mend > 0) and not dry then
  -- A whole lease for whoever runs it.
  redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', dec(lease_ms))
  if not claim.began then redis.call('HSET', 'mj:claim:' .. job, 'began', dec(now_ms), 'log_base', dec(last_seq(job))) end
  if redis.call('ZSCORE', 'mj:leases', job) then redis.call('ZADD', 'mj:leases', until_ms, job) end
  if is == 'hash' then redis.call('HSET', job, 'lease_until_ms', until_ms) end
end
local indexed = redis.call('ZSCORE', 'mj:leases', job)
if state == 'live' and indexed and claim.until_ms and num(indexed) ~= num(claim.until_ms) and #mend == 0 then
  differs('its lease ends at ' .. shown(claim.until_ms) .. ' and stands in mj:leases for ' .. shown(indexed), function()
    redis.call('ZADD', 'mj:leases', until_ms, job)  -- which is right nobody knows: a whole one
    redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', dec(lease_ms))
    if is == 'hash' then redis.call('HSET', job, 'lease_until_ms', until_ms) end
  end)
end
place('mj:leases', 'mj:leases', state == 'live', until_ms)
place('mj:delayed', 'mj:delayed', state == 'delayed', dec(math.max(num(want.due), 1)))
place('mj:prerequisites', 'mj:prerequisites', state == 'prerequisites', dec(now_ms))
place('mj:ended', 'mj:ended', state == 'ended', dec(math.max(num(claim.ended_ms), 1)))
if has_priority(claim) or type_of('mj:priority:' .. queue) == 'zset' then
  place('mj:priority:' .. queue, 'mj:priority:' .. queue, state == 'queued' and has_priority(claim),
    dec((100 - tonumber(claim.priority or 0)) * kPriority + now_ms))
end
local wait = num(record.queue_timeout_ms)
local may_expire = wait > 0 and never_ran(claim) and state and state ~= 'ended' and state ~= 'live' and state ~= 'planned'
place('mj:overdue', 'mj:overdue', may_expire, dec(math.max(num(record.queued_ms), num(record.run_at_ms)) + wait))
if may_expire and not dry then redis.call('HSET', 'mj:claim:' .. job, 'overdue', 1) end
-- Entries of the list: one for a job that belongs there, none for others but those that a claim will drop in silence.
local bare = not state and is == 'hash' and record.status ~= 'finished' and record.status ~= 'error'
  and record.detail ~= 'created'
local entries = type_of(queue) == 'list' and #redis.call('LPOS', queue, job, 'COUNT', 0) or 0
if (bare or (state == 'queued' and not has_priority(claim))) and entries == 0 then
  differs('it is queued and not in ' .. shown(queue), redis.call, 'LPUSH', queue, job)
elseif state and state ~= 'queued' and entries > 0 and not claim.leftover then
  differs('it is ' .. state .. ' and in ' .. shown(queue), redis.call, 'LREM', queue, 0, job)
end
-- Sets and lists.
local waits = type_of('mj:waits:' .. job) == 'set' and redis.call('SMEMBERS', 'mj:waits:' .. job) or {}
if state ~= 'waiting' and #waits > 0 then
  differs('it waits for other jobs and is ' .. (state or 'queued'), leave, job, claim, 'waiting')
elseif state == 'waiting' then
  for _, dep in ipairs(open) do
    if redis.call('SISMEMBER', 'mj:waits:' .. job, dep) == 0 or redis.call('SISMEMBER', 'mj:dependents:' .. dep, job) == 0 then
      differs('nothing says that it waits for ' .. dep, function()
        redis.call('SADD', 'mj:waits:' .. job, dep)
        redis.call('SADD', 'mj:dependents:' .. dep, job)
      end)
    end
  end
  for _, dep in ipairs(waits) do
    if end_of(dep) then
      differs('it waits for ' .. shown(dep) .. ', which has ended', function()
        redis.call('SREM', 'mj:waits:' .. job, dep)
        redis.call('SREM', 'mj:dependents:' .. dep, job)
      end)
    end
  end
end
if ckey then
  if state == 'live' and not takes then
    differs('it runs without a slot of ' .. shown(ckey), redis.call, 'SADD', 'mj:running:' .. ckey, job)
  end
  if state == 'live' and not dry then redis.call('HSET', 'mj:claim:' .. job, 'ckey', ckey) end
  local held = type_of('mj:held:' .. ckey) == 'list' and redis.call('LPOS', 'mj:held:' .. ckey, job)
  if held and state ~= 'held' then
    differs('it is held and ' .. (state or 'queued'), redis.call, 'LREM', 'mj:held:' .. ckey, 0, job)
  elseif state == 'held' and not held then
    differs('it is held and not in mj:held:' .. shown(ckey), redis.call, 'LPUSH', 'mj:held:' .. ckey, job)
    if not dry then
      redis.call('HSET', 'mj:claim:' .. job, 'held', ckey)
      redis.call('SADD', 'mj:holding', ckey)
    end
  end
end

-- What plain clients read.
local status = state == 'ended' and claim.status or state == 'live' and 'started'
  or (state == 'waiting' or state == 'prerequisites' or state == 'planned') and 'waiting_for_prerequisites' or 'dispatched'
if is == 'hash' and state and record.status ~= status then
  differs('its record says ' .. shown(record.status or 'nothing') .. ', its claim ' .. status, function()
    redis.call('HSET', job, 'status', status, 'updated_at', now_s)
    if state == 'ended' and claim.detail then redis.call('HSET', job, 'detail', claim.detail) end
  end)
end
if bare and record.status ~= 'dispatched' then
  differs('its record says ' .. shown(record.status or 'nothing') .. ' and nobody has claimed it', redis.call, 'HSET', job,
    'status', 'dispatched', 'updated_at', now_s)
end

-- Its facts have gaps or are in disorder (`want` has a list of them and no state): a new one says what its claim says.
if not want.state and want.revs and kStates[state] then
  differs('from here on its facts are what its claim says', function()
    local now, more = read_claim(job), {}
    local function tell(name, value)
      if value and value ~= '' then
        more[#more + 1] = name
        more[#more + 1] = value
      end
    end
    tell('s', now.state)
    tell('st', now.state == 'ended' and (now.status or 'error'))
    tell('detail', now.detail)
    tell('c', now.claim_id)
    tell('t', now.token)
    for name, field in pairs({e = 'epoch', a = 'attempt', d = 'deliveries', r = 'runner'}) do tell(name, dec(num(now[field]))) end
    tell('i', now.instance)
    tell('l', now.lease_ms and dec(num(now.lease_ms)))
    tell('g', now['end'])
    tell('en', now.state == 'ended' and now.ended_ms and dec(num(now.ended_ms)))
    tell('due', now.state == 'delayed' and dec(num(redis.call('ZSCORE', 'mj:delayed', job) or '0')))
    tell('m', now.message)
    tell('fl', now.flow)
    now.revs = want.revs ~= '0' and want.revs or nil
    add_fact(queue, job, now, 'restored', unpack(more))
    set_claim(job, now)
  end)
end
return differences
