-- The index mj:actor-keys in database 0: public key to the ids of its actors. The records of the actors decide; a key
-- that two records contain belongs to neither actor.

-- Returns the ids of the actors in the index, if their record contains this public key.
local function find_owners(pubkey)
  local owners = {}
  for id in string.gmatch(redis.call('HGET', kActorKeysKey, pubkey) or '', '%d+') do
    if redis.pcall('HGET', 'actor:' .. id, 'pubkey') == pubkey then owners[#owners + 1] = id end
  end
  return owners
end
-- Returns whether an actor other than `id` has this public key.
local function has_other_owner(pubkey, id)
  for _, owner in ipairs(find_owners(pubkey)) do
    if owner ~= id then return true end
  end
  return false
end
-- Adds the actor to the index entry of the public key. An entry has at most two actors, which is enough to show a
-- conflict.
local function add_key_owner(pubkey, id)
  local owners = find_owners(pubkey)
  if #owners > 1 or owners[1] == id then return end
  owners[#owners + 1] = id
  redis.call('HSET', kActorKeysKey, pubkey, table.concat(owners, ' '))
end
-- Removes the actor from the index entry of the public key.
local function remove_key_owner(pubkey, id)
  local other_owners = {}
  for _, owner in ipairs(find_owners(pubkey)) do
    if owner ~= id then other_owners[#other_owners + 1] = owner end
  end
  if #other_owners > 0 then
    redis.call('HSET', kActorKeysKey, pubkey, table.concat(other_owners, ' '))
  else
    redis.call('HDEL', kActorKeysKey, pubkey)
  end
end
-- Returns the id (text) in the key of an actor record, or nil for any other key.
local function parse_actor_id(key)
  local id = string.match(key, '^actor:([1-9]%d*)$')
  if id and #id <= 10 and to_number(id) <= 4294967295 then return id end
end
