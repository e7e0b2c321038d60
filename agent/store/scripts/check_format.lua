--# agree_on_format:
-- Compares the format of the keys in this database with the formats that the calling program supports, and the id of
-- the stored context with the caller's context. Stores the newest supported format and the id; a user that may only read
-- the key, such as that of an agent, leaves this to the next writer. A database without a stored format has not been used
-- by any program, since plain clients store none. A stored text that is not a valid number is treated in the same way. A
-- database without a stored id gets the id of the first context that opens it, unless it has the record of the context
-- with its number, since former versions stored each context in the database of its number, or the record of another
-- context and none of this context. At most 20000 keys are searched for the latter.
-- ARGV: oldest, newest (format numbers that the program supports), program (its version), context (id), database (its
-- number).
-- The script has no KEYS.
-- Reply: 1.
-- Errors: MJFORMAT with the stored format if the program does not support it; MJCONTEXT with the id of the other context
-- and, if the id is that of a record, the word record; MJTYPE. Nothing is written in these cases.
-- Repeat: safe; equal values are not written again.
local oldest, newest, program, context = to_number(next_arg()), to_number(next_arg()), next_arg(), next_arg()
local database = next_arg()
local err = check_type(kFormatKey, 'hash')
if err then return err end
local format = redis.call('HMGET', kFormatKey, 'version', 'context')
local stored, stored_context = to_number(format[1] or ''), to_integer_text(to_number(format[2] or ''))
if stored > newest or (stored > 0 and stored < oldest) then
  local writer = redis.call('HGET', kFormatKey, 'program') or '?'
  return redis.error_reply('MJFORMAT ' .. to_integer_text(stored) .. ' of mycojobs ' .. to_printable(writer))
end
if stored_context ~= '0' and stored_context ~= context then return redis.error_reply('MJCONTEXT ' .. stored_context) end
if stored_context == '0' then
  local cursor, other = '0', nil
  if database ~= context and database ~= '0' and redis.call('EXISTS', 'context:' .. database) == 1 then
    other = database
  elseif redis.call('EXISTS', 'context:' .. context) == 0 then
    for _ = 1, 20 do
      local page = redis.call('SCAN', cursor, 'MATCH', 'context:*', 'COUNT', '1000')
      cursor = page[1]
      for _, key in ipairs(page[2]) do other = other or string.match(key, '^context:([1-9]%d*)$') end
      if other or cursor == '0' then break end
    end
  end
  if other then return redis.error_reply('MJCONTEXT ' .. other .. ' record') end
end
if stored ~= newest then
  redis.pcall('HSET', kFormatKey, 'version', to_integer_text(newest), 'program', program, 'context', context)
elseif stored_context == '0' then
  redis.pcall('HSET', kFormatKey, 'context', context)
end
return 1

--# database_contexts:
-- Reads the ids of the contexts that are stored in other databases of this server.
-- ARGV: current (database of the caller), databases (list of numbers).
-- Reply: for each database the stored id; 0 if there is none; or denied if the user must not select the database.
-- Read-only.
local current, ids = next_arg(), {}
for i, database in ipairs(list_arg()) do
  local selected = database == current or not redis.pcall('SELECT', database).err
  if selected then current = database end
  local id = selected and redis.pcall('HGET', kFormatKey, 'context')
  ids[i] = selected and to_integer_text(to_number(type(id) == 'string' and id or '')) or 'denied'
end
return ids
