--# journal places
-- Writes a record and its queue entry. Answers {new | exists | used, key, record}.
local caller, id, queue, fields = arg(), num(arg()), arg(), list_arg()
local counter, names = 'mj:next:' .. caller, 'mj:idempotency:' .. caller
local err = wrong(queue, 'list') or wrong(counter, 'string') or wrong(names, 'hash') or wrong_shared()
if err then return err end
local wanted = to_table(fields)
local name = wanted.idempotency_key

local function there(job) return {'exists', job, redis.call('HGETALL', job)} end
local first = name and redis.call('HGET', names, name)
if first then
  if type_of(first) == 'hash' then return there(first) end
  return {'used', first, {}}
end
local function key_of(n) return 'job:' .. caller .. ':' .. dec(n) end
local allocate = id == 0
if allocate then
  id = num(redis.call('GET', counter)) + 1
  while redis.call('EXISTS', key_of(id), 'mj:claim:' .. key_of(id)) > 0 do id = id + 1 end
  if id > 4294967295 then return redis.error_reply('MJFULL caller ' .. caller .. ' has no free job id left') end
end
local job = key_of(id)
err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 1 then return there(job) end
if redis.call('EXISTS', 'mj:claim:' .. job) == 1 then return {'used', job, {}} end

local delayed = num(wanted.run_at_ms) > now_ms
redis.call('HSET', job, 'id', dec(id), 'status', 'dispatched', 'detail', delayed and 'delayed' or 'queued', 'created_at', now_s,
  'updated_at', now_s, 'queued_ms', dec(now_ms), unpack(fields))
if name then redis.call('HSET', names, name, job) end
place_new(job, queue, wanted)
if allocate then redis.call('SET', counter, dec(id)) end
return {'new', job, redis.call('HGETALL', job)}
