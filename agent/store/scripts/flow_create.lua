--# flows
-- {flow, first job, 1 if it existed}; {} if ids of jobs must be reserved first.
local context, caller, jobs, first_job, key, fingerprint = arg(), arg(), num(arg()), arg(), arg(), redis.sha1hex(arg())
local names = 'mj:flow-keys:' .. caller
local err = wrong('mj:next:flow', 'string') or wrong(names, 'hash') or wrong(kEnded, 'zset')
if err then return err end
if key ~= '' then
  local flow, first_print = string.match(redis.call('HGET', names, key) or '', '^(%d+) (%x+)$')
  local mark = flow and type_of('mj:flow:' .. flow) == 'hash' and read_mark(flow)
  if mark and first_print ~= fingerprint then
    return redis.error_reply('MJCONFLICT idempotency_key: ' .. shown(key) .. ' began flow ' .. flow
      .. ', of something else: use another key')
  end
  if mark then return {flow, mark.first_job or '0', 1} end
end
if jobs > 0 and first_job == '0' then return {} end
local id, step = num(redis.call('GET', 'mj:next:flow')) + 1, 1
while redis.call('EXISTS', 'flow:' .. dec(id), 'mj:flow:' .. dec(id)) > 0 do
  id, step = id + step, step * 2  -- other clients may have taken any number of them
end
if id > 4294967295 then return redis.error_reply('MJFULL the context has no free flow id left') end
id = dec(id)
redis.call('HSET', 'mj:flow:' .. id, 'state', 'creating', 'caller', caller, 'first_job', first_job, 'jobs', dec(jobs), 'key', key,
  'created_ms', dec(now_ms))
redis.call('HSET', 'flow:' .. id, 'id', id, 'caller_id', caller, 'context_id', context, 'status', 'dispatched', 'detail', 'creating',
  'created_at', now_s, 'updated_at', now_s)
redis.call('ZADD', kEnded, dec(now_ms), id)
if key ~= '' then redis.call('HSET', names, key, id .. ' ' .. fingerprint) end
redis.call('SET', 'mj:next:flow', id)
return {id, first_job, 0}
