-- Inspection and repair of jobs and messages.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0".

--# places: dispatch_journal job_indexes inspection
-- Inspects jobs.
-- ARGV: positions (flag: a complete inspection with a digest), jobs (list of keys).
-- Reply: for each job the result of inspect_job(). Its fifth list also has now_ms and, with the flag, the digest as `seen`.
-- Repeat: safe; read-only.
local positions, jobs = arg() == '1', list_arg()
local answers = {}
for i, job in ipairs(jobs) do
  local seen = inspect_job(job, positions)
  local more, sum = seen[5], positions and digest_of(seen)
  more[#more + 1] = 'now_ms'
  more[#more + 1] = to_integer_text(now_ms)
  if sum then
    more[#more + 1] = 'seen'
    more[#more + 1] = sum
  end
  answers[i] = seen
end
return answers

--# repair: dispatch_journal job_indexes messages deployments kept job_ends inspection
-- Applies repair steps to a job if nothing has changed since its inspection: the digest is the same, and the journal
-- has no unread facts of the job. The steps are chosen in inspect/invariants.cpp.
-- ARGV: job (key), seen (digest), queue, head (revision up to which the journal was read; 0: not checked), count, then
-- for each step: kind (a name in `doing`), place (a name in kPlaces, or empty), of (argument of the step), score, words
-- (list).
-- Reply: 1; or 0 if the job has changed, and nothing was written.
-- Errors: MJTYPE, before the first write, if an index that a step changes has a wrong type.
-- Repeat: safe; the steps have changed the digest, so the reply is 0.
local job, seen, queue, head, count = arg(), arg(), arg(), to_number(arg()), to_number(arg())
local fixes = {}
for i = 1, count do fixes[i] = {kind = arg(), place = arg(), of = arg(), score = arg(), words = list_arg()} end
local err = check_shared_types() or check_type('mj:jobs', 'zset')
if err then return err end
local mark = 'mj:claim:' .. job

local function has_unread_fact(entry, listed)
  return to_table(entry[2]).j == job and not listed[string.match(entry[1], '^%d+')]
end
local function has_moved()
  if digest_of(inspect_job(job, true)) ~= seen then return true end
  if head == 0 or type_of('mj:journal:' .. queue) ~= 'stream' then return false end
  local listed, claim = {}, read_claim(job)
  for revision in string.gmatch(claim and claim.revs or '', '%d+') do listed[revision] = true end
  for _, entry in ipairs(redis.call('XRANGE', 'mj:journal:' .. queue, to_integer_text(head + 1), '+', 'COUNT', 10000)) do
    if has_unread_fact(entry, listed) then return true end
  end
  return false
end

-- For each place: the prefix of the key, its type, and the functions that add the job and remove it.
local function zset_add(fix, key) redis.call('ZADD', key, fix.score, job) end
local function zset_remove(_, key) redis.call('ZREM', key, job) end
local kPlaces = {
  jobs = {'mj:jobs', 'zset', zset_add, zset_remove},
  leases = {'mj:leases', 'zset', zset_add, zset_remove},
  delayed = {'mj:delayed', 'zset', zset_add, zset_remove},
  prerequisites = {'mj:prerequisites', 'zset', zset_add, zset_remove},
  ended = {'mj:ended', 'zset', zset_add, zset_remove},
  overdue = {'mj:overdue', 'zset', zset_add, zset_remove},
  queue = {'', 'list', function(_, key) redis.call('LPUSH', key, job) end,
    function(_, key) redis.call('LREM', key, 0, job) end},
  priority = {'mj:priority:', 'zset', function(_, key)
    local claim = read_claim(job) or {}
    redis.call('ZADD', key, to_integer_text((100 - (tonumber(claim.priority) or 0)) * kPriority + now_ms), job)
  end, zset_remove},
  slots = {'mj:running:', 'set', function(_, key) redis.call('SADD', key, job) end,
    function(_, key) redis.call('SREM', key, job) end},
  held = {'mj:held:', 'zset', function(fix) hold_for_slot(job, read_claim(job) or {}, fix.of) end, zset_remove},
  waits = {'mj:dependents:', 'set', function(fix, key)
    redis.call('SADD', 'mj:waits:' .. job, fix.of)
    redis.call('SADD', key, job)
  end, function(fix, key)
    redis.call('SREM', 'mj:waits:' .. job, fix.of)
    redis.call('SREM', key, job)
  end},
}

-- Extends the lease of the claim to a whole lease.
local function set_full_lease()
  local claim = read_claim(job)
  local lease_ms = math.max(1000, to_number(claim.lease_ms))
  local until_ms = to_integer_text(math.max(to_number(claim.until_ms), now_ms + lease_ms))
  redis.call('HSET', mark, 'until_ms', until_ms, 'lease_ms', to_integer_text(lease_ms))
  if not claim.began then redis.call('HSET', mark, 'began', to_integer_text(now_ms), 'log_base', to_integer_text(last_seq(job))) end
  redis.call('ZADD', 'mj:leases', until_ms, job)
  if has_type(job, 'hash') then redis.call('HSET', job, 'lease_until_ms', until_ms) end
end

-- Appends a fact `restored` with the state of the claim, since the facts of the job have gaps or are in disorder.
local function append_restored_fact(fix)
  local now, more = read_claim(job), {}
  local function add_changed_field(name, value)
    if value and value ~= '' then
      more[#more + 1] = name
      more[#more + 1] = value
    end
  end
  add_changed_field('s', now.state)
  add_changed_field('st', now.state == 'ended' and (now.status or 'error'))
  add_changed_field('detail', now.detail)
  add_changed_field('c', now.claim_id)
  add_changed_field('t', now.token)
  for name, field in pairs({e = 'epoch', a = 'attempt', d = 'deliveries', r = 'runner'}) do add_changed_field(name, to_integer_text(to_number(now[field]))) end
  add_changed_field('i', now.instance)
  add_changed_field('l', now.lease_ms and to_integer_text(to_number(now.lease_ms)))
  add_changed_field('g', now['end'])
  add_changed_field('en', now.state == 'ended' and now.ended_ms and to_integer_text(to_number(now.ended_ms)))
  add_changed_field('due', now.state == 'delayed' and to_integer_text(to_number(redis.call('ZSCORE', 'mj:delayed', job) or '0')))
  add_changed_field('m', now.message)
  add_changed_field('fl', now.flow)
  now.revs = fix.of ~= '' and fix.of or nil
  add_fact(queue_of(job, now), job, now, 'restored', unpack(more))
  set_claim(job, now)
end

local function key_of(fix) return kPlaces[fix.place][1] .. fix.of end  -- for an index of all jobs `of` is empty
local doing = {
  delete_claim = function() redis.call('DEL', mark) end,
  set_claim = function(fix) redis.call('HSET', mark, unpack(fix.words)) end,
  drop_claim = function(fix) for i = 1, #fix.words, 2 do redis.call('HDEL', mark, fix.words[i]) end end,
  set_record = function(fix) redis.call('HSET', job, 'updated_at', now_s, unpack(fix.words)) end,
  enter = function(fix) kPlaces[fix.place][3](fix, key_of(fix)) end,
  leave = function(fix) kPlaces[fix.place][4](fix, key_of(fix)) end,
  lease = set_full_lease,
  enqueue = function(fix) enqueue(job, read_claim(job), fix.of, false) end,
  finish = function(fix) finish(job, read_claim(job), failure_fields('dead_letter', fix.of), false) end,
  restore = append_restored_fact,
}

if has_moved() then return 0 end
for _, fix in ipairs(fixes) do
  err = kPlaces[fix.place] and check_type(key_of(fix), kPlaces[fix.place][2])
    or fix.place == 'waits' and check_type('mj:waits:' .. job, 'set') or fix.place == 'held' and check_type('mj:holding', 'set') or nil
  if err then return err end
end
for _, fix in ipairs(fixes) do doing[fix.kind](fix) end
return 1

--# message_places: dispatch_journal inspection
-- Inspects messages.
-- ARGV: messages (list of keys).
-- Reply: for each message the result of inspect_message() and its digest.
-- Repeat: safe; read-only.
local answers = {}
for i, message in ipairs(list_arg()) do
  local seen = inspect_message(message)
  answers[i] = {seen[1], seen[2], seen[3], digest_of(seen)}
end
return answers

--# repair_message: dispatch_journal messages inspection
-- Adds a message to indexes in which it is missing, if nothing has changed since its inspection.
-- ARGV: message (key), seen (digest), kinds (list: inbox, messages, came, or a kind of the outbox).
-- Reply: 1; or 0 if the message has changed, and nothing was written.
-- Errors: MJTYPE, before the first write, if an index has a wrong type.
-- Repeat: safe; the reply is 0.
local message, seen, kinds = arg(), arg(), list_arg()
local err = check_type('mj:message:' .. message, 'hash') or check_mailbox_types() or check_type('mj:came', 'hash')
if err then return err end
if digest_of(inspect_message(message)) ~= seen then return 0 end
local is = to_table(redis.call('HGETALL', 'mj:message:' .. message))
for _, kind in ipairs(kinds) do
  local at = kind == 'expire' and to_number(is.delivered_ms) + to_number(is.result_ms) or now_ms
  if kind == 'inbox' then
    redis.call('ZADD', 'mj:inbox', to_integer_text(at), message)
  elseif kind == 'messages' then
    redis.call('ZADD', 'mj:messages', to_integer_text(at), message)
  elseif kind == 'came' then
    redis.call('HSET', 'mj:came', is.content, message)
  else
    redis.call('ZADD', 'mj:outbox', to_integer_text(at), kind .. ' ' .. message)
  end
end
publish_mailbox_change()
return 1
