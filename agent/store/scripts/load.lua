--#
-- A hash, or these fields of it: {0, name, value, ...}; {1}: there is none; {2, field, bytes}: it is too long to be read.
local key, max, names = arg(), num(arg()), list_arg()
local err = wrong(key, 'hash')
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
if #names == 0 then
  local field, size = too_long(key, max)
  if field then return {2, field, dec(size)} end
  return {0, redis.call('HGETALL', key)}
end
local found, bytes = {}, 0
for _, name in ipairs(names) do
  local size = redis.call('HSTRLEN', key, name)
  bytes = bytes + size
  if bytes > max then return {2, shown(name), dec(size)} end
  local value = redis.call('HGET', key, name)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end
return {0, found}
