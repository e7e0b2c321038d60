--# flows
local name = arg()
local key = 'mj:schedule:' .. name
local err = wrong(key, 'hash') or wrong('mj:schedules', 'set')
if err then return err end
local hash = redis.call('HGET', key, 'definition_hash')
redis.call('SREM', 'mj:schedules', name)
if redis.call('DEL', key) == 0 then return 'missing' end
drop_definition(hash, 'schedule:' .. name)
return ''
