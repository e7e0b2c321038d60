--# flows
-- Empty; {conflict, the present revision}; missing: its definition is not there and was not given.
local name, expected, hash, definition, fields = arg(), num(arg()), arg(), arg(), list_arg()
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
redis.call('HSET', key, 'name', name, 'revision', dec(revision + 1), 'content', content, unpack(fields))
redis.call('SADD', 'mj:schedules', name)
use_definition(hash, definition, 'schedule:' .. name)
if there.definition_hash and there.definition_hash ~= hash then drop_definition(there.definition_hash, 'schedule:' .. name) end
return ''
