--# journal
-- Writes a record that stands in no queue. Answers {new | exists | used, key, record}.
local prefix, counter, names, name, id, fields = arg(), arg(), arg(), arg(), num(arg()), list_arg()
local indexed = prefix == 'runner:'
local err = wrong(counter, 'string') or (indexed and wrong('mj:runners', 'zset')) or (name ~= '' and wrong(names, 'hash'))
if err then return err end
local function there(key) return {'exists', key, redis.call('HGETALL', key)} end
local function is_used(key) return redis.call('EXISTS', key, 'mj:claim:' .. key) > 0 end
local first = name ~= '' and redis.call('HGET', names, name)
if first then
  if type_of(first) == 'hash' then return there(first) end
  return {'used', first, {}}
end
local allocate = id == 0
if allocate then
  id = num(redis.call('GET', counter)) + 1
  while is_used(prefix .. dec(id)) do id = id + 1 end
  if id > 4294967295 then return redis.error_reply('MJFULL ' .. shown(prefix) .. ' has no free id left') end
end
local key = prefix .. dec(id)
err = wrong(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 1 then return there(key) end
if is_used(key) then return {'used', key, {}} end
redis.call('HSET', key, 'id', dec(id), 'created_at', now_s, 'updated_at', now_s, unpack(fields))
if is_job_key(key) then happened(key) end
if name ~= '' then redis.call('HSET', names, name, key) end
if indexed then redis.call('ZADD', 'mj:runners', 'NX', 0, dec(id)) end
if allocate then redis.call('SET', counter, dec(id)) end
return {'new', key, redis.call('HGETALL', key)}
