--# agree_on_format:
-- Compares the format of the keys in this context with the formats that the calling program supports, and stores the
-- newest of them. A context without a stored format has not been used by any program, since plain clients store none. A
-- stored text that is not a valid number is treated in the same way.
-- ARGV: oldest, newest (format numbers that the program supports), program (its version). The script has no KEYS.
-- Reply: 1.
-- Errors: MJFORMAT with the stored format if the program does not support it; MJTYPE. Nothing is written in these cases.
-- Repeat: safe; an equal format is not written again.
local oldest, newest, program = to_number(next_arg()), to_number(next_arg()), next_arg()
local err = check_type(kFormatKey, 'hash')
if err then return err end
local stored = to_number(redis.call('HGET', kFormatKey, 'version') or '')
if stored > newest or (stored > 0 and stored < oldest) then
  local writer = redis.call('HGET', kFormatKey, 'program') or '?'
  return redis.error_reply('MJFORMAT ' .. to_integer_text(stored) .. ' of mycojobs ' .. to_printable(writer))
end
if stored ~= newest then redis.call('HSET', kFormatKey, 'version', to_integer_text(newest), 'program', program) end
return 1
