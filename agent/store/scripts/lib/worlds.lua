-- Worlds of workflows.
-- Something has come for a world: it is due. Answers the id of the entry.
local function post_to_world(context, world, fields)
  local id = redis.call('XADD', 'mj:world-in:' .. world, '*', unpack(fields))
  redis.call('ZADD', 'mj:worlds:due', 'LT', dec(now_ms), world)
  redis.call('PUBLISH', 'mj:worlds', context .. ' ' .. world)
  return id
end
-- What carried an effect has ended. effect: "<context> <world>", as it is in the record or mark of what carried it.
local function tell_world(effect, kind, key)
  local context, world = string.match(effect, '^(%d+) (.+)$')
  if not world or type_of('mj:worlds') ~= 'set' or redis.call('SISMEMBER', 'mj:worlds', world) == 0 then return end
  if wrong('mj:world-in:' .. world, 'stream') or wrong('mj:worlds:due', 'zset') then
    return add_anomaly('mj:world-in:' .. shown(world) .. ' is no stream, so that a workflow does not hear of ' .. key
      .. ': delete that key')
  end
  post_to_world(context, world, {'kind', kind, 'key', key})
end
