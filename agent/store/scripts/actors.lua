-- Public keys of actors. The scripts run in database 0, have no KEYS, and fail with MJTYPE if a key has a wrong type.

--# actor_of_key: actor_keys
-- Finds the actor with a public key. Plain clients also write records of actors, so the index is completed by scans of
-- all records. A scan starts at most once a second for an unknown key, otherwise once a minute, and scans take at most
-- one hundredth of the time, however many clients call.
-- ARGV: pubkey (text).
-- Reply: {number of actors with this key, id of the first, start of the last complete scan in ms or 0, start of a scan
-- that the caller must make now in ms or empty, record of the actor if there is exactly one}.
-- Repeat: safe; a repeat gets no second scan to make until the first one has ended or is 30 s old.
local pubkey = next_arg()
local err = check_type(kActorKeysKey, 'hash') or check_type(kActorScansKey, 'hash')
if err then return err end
local scans = to_table(redis.call('HGETALL', kActorScansKey))
local started, began, ended = to_number(scans.started), to_number(scans.began), to_number(scans.ended)
local owners = find_owners(pubkey)
local min_pause_ms = math.max(#owners == 0 and 1000 or 60000, 100 * (ended - began))
local is_scan_due = started == 0 or now_ms < started or now_ms < ended
if started > began then
  is_scan_due = is_scan_due or now_ms > started + 30000  -- the client that started the scan has stopped
else
  is_scan_due = is_scan_due or now_ms >= ended + min_pause_ms
end
if is_scan_due then redis.call('HSET', kActorScansKey, 'started', to_integer_text(now_ms)) end
if #owners == 0 and redis.call('HEXISTS', kActorKeysKey, pubkey) == 1 then redis.call('HDEL', kActorKeysKey, pubkey) end
return {#owners, owners[1] or '', to_integer_text(began), is_scan_due and to_integer_text(now_ms) or '',
  #owners == 1 and redis.call('HGETALL', 'actor:' .. owners[1]) or {}}

--# index_actors: actor_keys
-- Indexes one part of the records of actors.
-- ARGV: cursor ("0": begin), scan_start (start of the scan from actor_of_key, or empty: the scan is not noted).
-- Reply: the next cursor; "0" after the last part.
-- Repeat: safe; an actor is added to the index once.
local cursor, scan_start = next_arg(), next_arg()
local err = check_type(kActorKeysKey, 'hash') or check_type(kActorScansKey, 'hash')
if err then return err end
local page = redis.call('SCAN', cursor, 'MATCH', 'actor:*', 'COUNT', '1000')
for _, key in ipairs(page[2]) do
  local id = parse_actor_id(key)
  local pubkey = id and redis.pcall('HGET', key, 'pubkey')
  if type(pubkey) == 'string' and pubkey ~= '' and #pubkey <= 200 then add_key_owner(pubkey, id) end
end
if page[1] == '0' and scan_start ~= '' and redis.call('HGET', kActorScansKey, 'started') == scan_start then
  redis.call('HSET', kActorScansKey, 'began', scan_start, 'ended', to_integer_text(now_ms))
end
return page[1]
