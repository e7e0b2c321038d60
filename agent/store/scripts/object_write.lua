--# objects
-- One write: all of its operations, or none. Answers ok and the stamps; or stale, busy, conflict, missing, schema, full.
local job, claim_id, token, call, count = arg(), arg(), arg(), arg(), num(arg())
local refused = refuse_writer(job, claim_id, token)
if refused then return refused end
if writer.job == job and writer.claim_id == claim_id and writer.call == call then return {'ok', writer.answer or ''} end

local ops, stamps, puts, new_kinds, kinds_seen = {}, {}, false, 0, {}
for i = 1, count do
  local op = {verb = arg(), of = arg(), id = arg(), version = arg(), rev = arg(), json = arg(), entries = arg()}
  local key = object_key(op.of, op.id)
  local err = wrong(key, 'hash') or wrong_kind(op.of)
  if err then return err end
  local is = redis.call('HMGET', key, 'version', 'created_ms', 'updated_ms', 'entries')
  local version = num(is[1])
  op.old, op.had = is[4] or '', version > 0
  if op.version ~= '' and num(op.version) ~= version then return {'conflict', i, version} end
  if op.verb == 'remove' and not op.had then return {'missing', i} end
  err = wrong_entries(op.of, op.old) or wrong_entries(op.of, op.entries)
  if err then return err end
  if op.verb == 'put' then
    puts = true
    if (redis.call('HGET', kind_key(op.of), 'rev') or '0') ~= op.rev then return {'schema', i} end
    if not kinds_seen[op.of] and not redis.call('ZSCORE', 'mj:osis:kinds', op.of) then new_kinds = new_kinds + 1 end
    kinds_seen[op.of] = true
    op.stamp = {dec(version + 1), op.had and is[2] or dec(now_ms), dec(now_ms)}
  else
    op.stamp = {dec(version), is[2] or '0', is[3] or '0'}
  end
  ops[i], stamps[i] = op, table.concat(op.stamp, ',')
end
if new_kinds > 0 and redis.call('ZCARD', 'mj:osis:kinds') + new_kinds > 1000 then return {'full'} end

local answer = table.concat(stamps, ';')
-- Of a call that only takes away, nothing is kept where there is no memory left: it can be done all the same.
if puts or writer.job ~= job or writer.claim_id ~= claim_id then
  become_writer(job, claim_id, call, answer)
else
  redis.pcall('HSET', kWriter, 'call', call, 'answer', answer)
end
for _, op in ipairs(ops) do
  local key = object_key(op.of, op.id)
  if op.verb == 'put' then
    redis.call('HSET', key, 'json', op.json, 'version', op.stamp[1], 'created_ms', op.stamp[2], 'updated_ms', op.stamp[3],
      'entries', op.entries)
    if not op.had then redis.call('ZADD', ids_key(op.of), '0', op.id) end
    redis.call('ZADD', 'mj:osis:kinds', '0', op.of)
    if redis.call('HEXISTS', kind_key(op.of), 'backfill') == 1 then  -- the indexes may not have the old ones
      set_entries(op.of, op.id, op.old, '')
      op.old = ''
    end
    set_entries(op.of, op.id, op.old, op.entries)
  elseif op.verb == 'remove' then
    set_entries(op.of, op.id, op.old, '')
    redis.call('ZREM', ids_key(op.of), op.id)
    redis.call('DEL', key)
    if redis.call('ZCARD', ids_key(op.of)) == 0 and type_of(kind_key(op.of)) == 'none' then
      redis.call('ZREM', 'mj:osis:kinds', op.of)
    end
  end
end
return {'ok', answer}
