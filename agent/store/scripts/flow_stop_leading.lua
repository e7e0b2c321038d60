--#
local instance, key = arg(), 'mj:coordinator'
local err = wrong(key, 'hash')
if err then return err end
if redis.call('HGET', key, 'instance') == instance then redis.call('DEL', key) end
return 0
