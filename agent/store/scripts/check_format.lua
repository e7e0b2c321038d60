--# agree_on_format:
-- Compares the format of the keys in this context with the format of the calling program, and stores a newer one. A
-- context without a stored format has the first format, since plain clients and the first versions store none. A stored
-- text that is not a valid number is treated in the same way.
-- ARGV: own (format number of the program), program (its version). The script has no KEYS.
-- Reply: 1.
-- Errors: MJFORMAT with the stored format if it is newer than `own`; MJTYPE. Nothing is written in these cases.
-- Repeat: safe; an equal format is not written again.
local own, program = to_number(arg()), arg()
local err = check_type('mj:format', 'hash')
if err then return err end
local known = to_number(redis.call('HGET', 'mj:format', 'version') or '')
if known > own then
  local by = redis.call('HGET', 'mj:format', 'program') or '?'
  return redis.error_reply('MJFORMAT ' .. to_integer_text(known) .. ' of mycojobs ' .. to_printable(by))
end
if known ~= own then redis.call('HSET', 'mj:format', 'version', to_integer_text(own), 'program', program) end
return 1
