--# agree_on_format:
-- Compares the format of the keys in this context with the format of the calling program, and stores a newer one. A
-- context without a stored format has the first format, since plain clients and the first versions store none. A stored
-- text that is not a valid number is treated in the same way.
-- ARGV: supported (format number of the program), program (its version). The script has no KEYS.
-- Reply: 1.
-- Errors: MJFORMAT with the stored format if it is newer than `supported`; MJTYPE. Nothing is written in these cases.
-- Repeat: safe; an equal format is not written again.
local supported, program = to_number(next_arg()), next_arg()
local err = check_type('mj:format', 'hash')
if err then return err end
local stored = to_number(redis.call('HGET', 'mj:format', 'version') or '')
if stored > supported then
  local writer = redis.call('HGET', 'mj:format', 'program') or '?'
  return redis.error_reply('MJFORMAT ' .. to_integer_text(stored) .. ' of mycojobs ' .. to_printable(writer))
end
if stored ~= supported then redis.call('HSET', 'mj:format', 'version', to_integer_text(supported), 'program', program) end
return 1
