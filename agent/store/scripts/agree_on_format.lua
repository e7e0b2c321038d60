--# agree_on_format:
-- The format that this context's keys have, if the caller knows it; else the error, and nothing is written. A context that
-- says none has the first format: plain clients and earlier programs write none. What is no number is somebody's nonsense.
local own, program = num(arg()), arg()
local err = wrong('mj:format', 'hash')
if err then return err end
local known = num(redis.call('HGET', 'mj:format', 'version') or '')
if known > own then
  local by = redis.call('HGET', 'mj:format', 'program') or '?'
  return redis.error_reply('MJFORMAT ' .. dec(known) .. ' of mycojobs ' .. shown(by))
end
if known ~= own then redis.call('HSET', 'mj:format', 'version', dec(own), 'program', program) end
return 1
