-- Takes jobs off queues. Answers {set_aside, {queue, job, claim_id_index, epoch, attempt, deliveries, record}...}.
local runner, max_jobs, max_bytes, max_script = arg(), num(arg()), num(arg()), num(arg())
local max_deliveries, lease_ms = num(arg()), num(arg())
local ids = list_arg()     -- claim id, token, claim id, token, ... for max_jobs claims
local queues = list_arg()
local err = wrong_shared()
if err then return err end

local taken, bytes, set_aside, seen, full = {}, 0, 0, 0, false

local function start(queue, job, claim)
  local n = #taken + 1
  local epoch = math.max(num(claim.epoch) + 1, now_us)
  local attempt, deliveries = math.max(1, num(claim.attempt)), num(claim.deliveries) + 1
  local until_ms = dec(now_ms + lease_ms)
  local log_base = last_seq(job)
  redis.call('ZADD', 'mj:leases', until_ms, job)
  redis.call('HSET', 'mj:claim:' .. job, 'state', 'live', 'claim_id', ids[2 * n - 1],
    'token', redis.sha1hex(ids[2 * n]), 'epoch', dec(epoch), 'attempt', attempt, 'deliveries', deliveries,
    'runner', runner, 'queue', queue, 'lease_ms', dec(lease_ms), 'until_ms', until_ms, 'log_base', dec(log_base))
  redis.call('HSET', job, 'status', 'started', 'detail', 'claimed', 'attempt', attempt, 'deliveries', deliveries,
    'epoch', dec(epoch), 'runner_id', runner, 'claim_id', ids[2 * n - 1], 'lease_until_ms', until_ms,
    'started_ms', dec(now_ms), 'updated_at', now_s)
  redis.call('RPOP', queue)
  taken[n] = {queue, job, n, dec(epoch), dec(attempt), dec(deliveries), redis.call('HGETALL', job)}
end

local function drop(queue)
  redis.call('RPOP', queue)
  set_aside = set_aside + 1
end
local function dead(queue, entry, reason)
  add_dead(entry, queue, reason)
  drop(queue)
end
local function odd(queue, entry, why)
  add_anomaly(shown(queue) .. ': ' .. entry .. ' ' .. why .. '; the entry was dropped')
  drop(queue)
end
local function fail_for_good(queue, job, claim, reason, text)
  finish(job, claim, failure('dead_letter', text), false)
  dead(queue, job, reason)
end

local function take(queue, entry)
  if not is_job_key(entry) then return dead(queue, entry, 'bad_key') end
  local claim, is = read_claim(entry), type_of(entry)
  if claim and claim.state == 'ended' then
    if not claim.leftover then return odd(queue, entry, 'has ended already') end
    redis.call('HDEL', 'mj:claim:' .. entry, 'leftover')
    return redis.call('RPOP', queue)
  end
  if claim and claim.state == 'live' then return odd(queue, entry, 'is claimed already') end
  if is == 'none' then
    redis.call('ZADD', 'mj:missing', 'NX', dec(now_ms), entry .. ' ' .. queue)
    return drop(queue)
  end
  if is ~= 'hash' then return dead(queue, entry, 'wrong_type') end
  if not claim then
    return fail_for_good(queue, entry, nil, 'wrong_type', 'mj:claim:' .. entry .. ' is not a hash: another client wrote it')
  end
  local status = redis.call('HGET', entry, 'status')
  if not claim.state and (status == 'finished' or status == 'error') then
    return odd(queue, entry, 'has a record that says ' .. status)
  end
  if claim.cancel then
    finish(entry, claim, failure('cancelled', 'cancelled'), false)
    return redis.call('RPOP', queue)
  end
  local script = redis.call('HSTRLEN', entry, 'script')
  if script > max_script then
    return fail_for_good(queue, entry, claim, 'too_large', 'script: ' .. script .. ' bytes are more than the '
      .. dec(max_script) .. ' that job.max_script_bytes allows')
  end
  local deliveries = num(claim.deliveries)
  if deliveries >= max_deliveries then
    return fail_for_good(queue, entry, claim, 'crash_loop', 'crash_loop: ' .. deliveries
      .. ' runs ended without a report (runner killed or lost each time); job.max_deliveries allows no more')
  end
  local size = 0
  for _, text in ipairs(redis.call('HGETALL', entry)) do size = size + #text end
  if #taken > 0 and bytes + size > max_bytes then
    full = true
    return
  end
  bytes = bytes + size
  start(queue, entry, claim)
end

for _, queue in ipairs(queues) do
  local is = type_of(queue)
  if is ~= 'list' and is ~= 'none' then
    add_anomaly(shown(queue) .. ' is a ' .. is .. ' where a list belongs: delete it')
  else
    -- Entries looked at in one call are bounded, so that no other client waits for long.
    while #taken < max_jobs and seen < 256 and not full do
      local entry = redis.call('LINDEX', queue, -1)
      if not entry then break end
      seen = seen + 1
      take(queue, entry)
    end
  end
end
return {set_aside, taken}
