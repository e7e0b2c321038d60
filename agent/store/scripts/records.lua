-- Records that stand for themselves: changed, and gone.

--# change_record: actors
-- Sets fields of a record that is there; an empty text takes a field away. {0, {name, value, ...}}; {1}: there is none;
-- {2}: another actor has its public key; {3, field}: the field does not have the expected value.
local key, fields, expected = arg(), list_arg(), list_arg()
local actor, pubkey = actor_id(key), to_table(fields).pubkey
local err = wrong(key, 'hash') or (actor and wrong('mj:actor-keys', 'hash'))
if err then return err end
if redis.call('EXISTS', key) == 0 then return {1} end
for i = 1, #expected, 2 do
  if (redis.call('HGET', key, expected[i]) or '') ~= expected[i + 1] then return {3, shown(expected[i])} end
end
local before = actor and pubkey and (redis.call('HGET', key, 'pubkey') or '')
if before and pubkey ~= '' and is_anothers(pubkey, actor) then return {2} end
redis.call('HSET', key, 'updated_at', now_s)
for i = 1, #fields, 2 do
  if fields[i + 1] == '' then redis.call('HDEL', key, fields[i]) else redis.call('HSET', key, fields[i], fields[i + 1]) end
end
if before and pubkey ~= '' then own_key(pubkey, actor) end
if before and before ~= '' and before ~= pubkey then disown_key(before, actor) end
return {0, redis.call('HGETALL', key)}

--# delete_record: actors journal kept
-- An actor, a context, a runner or a message leaves. Answers gone, missing or why it cannot: what lives by it.
local key = arg()
local runner, message = string.match(key, '^runner:(%d+)$'), string.match(key, '^message:%d+:%d+$')
local hold, mark, actor = 'mj:hold:' .. key, 'mj:message:' .. key, actor_id(key)
local err = wrong(key, 'hash') or (runner and wrong(hold, 'hash')) or wrong(mark, 'hash') or wrong('mj:runners', 'zset')
  or (actor and wrong('mj:actor-keys', 'hash')) or (message and wrong('mj:messages', 'zset'))
if err then return err end
if redis.call('EXISTS', key) == 0 then return 'missing' end
local function stands(list, entry)  -- any entry, if none is named
  if type_of(list) ~= 'list' then return false end
  return not entry or redis.call('LPOS', list, entry)
end

if runner then
  local held = to_table(redis.call('HGETALL', hold))
  if held.instance and now_ms <= num(held.until_ms) then return 'an agent on ' .. shown(held.host or '?') .. ' is this runner' end
  local topic = redis.call('HGET', key, 'topic') or ''
  if topic == '' then topic = 'runner' .. runner end
  err = wrong('mj:queue:runner' .. runner, 'list') or wrong('mj:topic:' .. topic, 'list')
  if err then return err end
  if stands('mj:queue:runner' .. runner) then return 'jobs wait for it in mj:queue:runner' .. runner end
  if stands('mj:topic:' .. topic) then return 'messages wait for it on the topic ' .. shown(topic) end
  redis.call('UNLINK', key, hold)
  redis.call('ZREM', 'mj:runners', runner)
  return 'gone'
end
if message then
  local record = redis.call('HMGET', key, 'topic', 'status', 'message_type')
  local left = num(redis.call('HGET', mark, 'left') or nil)
  if left > 0 then return dec(left) .. ' of its jobs have not ended' end
  if record[2] == 'acknowledged' and record[3] ~= 'chat' and record[3] ~= 'mail' then return 'its result is awaited' end
  err = wrong('msg_in', 'list') or wrong('mj:came', 'hash')
  if err then return err end
  for _, list in ipairs({'mj:topic:' .. (record[1] or ''), 'msg_out', 'msg_out_coordinator'}) do
    err = wrong(list, 'list')
    if err then return err end
    if stands(list, key) then return 'it waits in ' .. shown(list) end
  end
  local is = to_table(redis.call('HGETALL', mark))
  if is.state == 'arrived' or is.state == 'away' then return 'it is ' .. is.state end
  if is.answer == 'due' then return 'its sender has not received its end yet' end
  if stands('msg_in', key) then redis.call('LREM', 'msg_in', 0, key) end
  credit_message(key)
  if num(is.fresh_until) > now_ms then  -- it might come once more
    redis.call('ZADD', 'mj:messages', dec(now_ms), key)
    redis.call('UNLINK', key)
    return 'gone'
  end
end
local pubkey, content = actor and redis.call('HGET', key, 'pubkey'), message and redis.call('HGET', mark, 'content')
redis.call('UNLINK', key, mark)
if pubkey then disown_key(pubkey, actor) end
if content and redis.pcall('HGET', 'mj:came', content) == key then redis.call('HDEL', 'mj:came', content) end
return 'gone'

--# delete_actor: actors
-- Deletes the record of an actor. expected: context, field and value in turn, of records of contexts that stand in their
-- own databases of this server; an empty value: absent. Answers gone, missing, or changed: a field has another value.
local id, expected = arg(), list_arg()
local key = 'actor:' .. id
local err = wrong(key, 'hash') or wrong('mj:actor-keys', 'hash')
if err then return err end
local changed = false
for i = 1, #expected, 3 do
  redis.call('SELECT', expected[i])
  local record = 'context:' .. expected[i]
  err = wrong(record, 'hash')
  if err then return err end
  changed = changed or (redis.call('HGET', record, expected[i + 1]) or '') ~= expected[i + 2]
end
if changed then return 'changed' end
if #expected > 0 then redis.call('SELECT', '0') end
if redis.call('EXISTS', key) == 0 then return 'missing' end
local pubkey = redis.call('HGET', key, 'pubkey')
redis.call('UNLINK', key)
if pubkey then disown_key(pubkey, id) end
return 'gone'

--# context_revision: contexts
return revision_of_context(arg())

--# delete_context: contexts
-- 1: gone. 0: the context has changed since its revision was read.
local context, revision = arg(), arg()
local err = wrong('context:' .. context, 'hash')
if err then return err end
if revision_of_context(context) ~= revision then return 0 end
redis.call('UNLINK', 'context:' .. context)
return 1

--# delete_job: journal places messages worlds kept ends
-- A job that has ended, or was never queued, leaves with its log and facts. Answers gone, missing or why it cannot.
local job = arg()
local err = wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash') or wrong_shared() or wrong('mj:horizon', 'hash')
if err then return err end
local claim = read_claim(job)
if claim.state == 'ended' then
  local why = is_kept(job, claim)
  if why then return why end
  retire_job(job, claim)
  return 'gone'
end
if claim.state then return 'it lives: ' .. claim.state end
if redis.call('EXISTS', job) == 0 then return 'missing' end
local queue = 'queue:' .. (redis.call('HGET', job, 'script_type') or '')
if not is_only_created(job, {}, redis.call('HGET', job, 'detail')) and was_pushed(queue, job) then return 'it waits in ' .. shown(queue) end
forget_idempotency_keys(job, claim)
credit_job(job, claim)
redis.call('UNLINK', job, 'mj:claim:' .. job, 'mj:log:' .. job)
redis.pcall('ZREM', 'mj:jobs', job)
return 'gone'

--# note_refusal: refusals
local actor, action, thing, list = arg(), arg(), arg(), arg()
local err = wrong('mj:refusals', 'stream')
if err then return err end
return add_refusal(redis.call('XREVRANGE', 'mj:refusals', '+', '-', 'COUNT', 1)[1], actor, action, thing, list)
