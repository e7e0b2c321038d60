-- Inspection and repair of jobs and messages.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0".

--# places: dispatch_journal job_indexes inspection
-- Inspects jobs.
-- ARGV: is_complete (flag: a complete inspection with a digest), jobs (list of keys).
-- Reply: for each job the result of inspect_job(). Its fifth list also has now_ms and, with the flag, the digest as
-- `seen`.
-- Repeat: safe; read-only.
local is_complete, jobs = next_arg() == '1', list_arg()
local replies = {}
for i, job in ipairs(jobs) do
  local inspection = inspect_job(job, is_complete)
  local extra_fields, inspection_digest = inspection[5], is_complete and compute_inspection_digest(inspection)
  extra_fields[#extra_fields + 1] = 'now_ms'
  extra_fields[#extra_fields + 1] = to_integer_text(now_ms)
  if inspection_digest then
    extra_fields[#extra_fields + 1] = 'seen'
    extra_fields[#extra_fields + 1] = inspection_digest
  end
  replies[i] = inspection
end
return replies

--# repair: dispatch_journal job_indexes messages deployments stored_usage job_ends inspection
-- Applies repair steps to a job if nothing has changed since its inspection: the digest is the same, and the journal
-- has no unread facts of the job. The steps are chosen in inspect/invariants.cpp.
-- ARGV: job (key), digest (of the inspection), queue, journal_head (revision up to which the journal was read; 0: not
-- checked), count, then for each step: kind (a name in step_handlers), index (a name in kIndexes, or empty), argument,
-- score, fields (list).
-- Reply: 1; or 0 if the job has changed, and nothing was written.
-- Errors: MJTYPE, before the first write, if an index that a step changes has a wrong type.
-- Repeat: safe; the steps have changed the digest, so the reply is 0.
local job, inspection_digest, queue, journal_head, count = next_arg(), next_arg(), next_arg(), to_number(next_arg()), to_number(next_arg())
local steps = {}
for i = 1, count do steps[i] = {kind = next_arg(), index = next_arg(), argument = next_arg(), score = next_arg(), fields = list_arg()} end
local err = check_index_types() or check_type(kJobsKey, 'zset')
if err then return err end
local claim_key = kClaimKey .. job

local function has_unread_fact(entry, known_revisions)
  return to_table(entry[2]).j == job and not known_revisions[string.match(entry[1], '^%d+')]
end
local function has_changed()
  if compute_inspection_digest(inspect_job(job, true)) ~= inspection_digest then return true end
  if journal_head == 0 or key_type(kQueueJournalKey .. queue) ~= 'stream' then return false end
  local known_revisions, claim = {}, read_claim(job)
  for revision in string.gmatch(claim and claim.revs or '', '%d+') do known_revisions[revision] = true end
  for _, entry in ipairs(redis.call('XRANGE', kQueueJournalKey .. queue, to_integer_text(journal_head + 1), '+', 'COUNT', 10000)) do
    if has_unread_fact(entry, known_revisions) then return true end
  end
  return false
end

-- For each index: the prefix of the key, its type, and the functions that add the job and remove it.
local function add_to_zset(step, key) redis.call('ZADD', key, step.score, job) end
local function remove_from_zset(_, key) redis.call('ZREM', key, job) end
local kIndexes = {
  jobs = {kJobsKey, 'zset', add_to_zset, remove_from_zset},
  leases = {kLeasesKey, 'zset', add_to_zset, remove_from_zset},
  delayed = {kDelayedKey, 'zset', add_to_zset, remove_from_zset},
  prerequisites = {kPrerequisitesKey, 'zset', add_to_zset, remove_from_zset},
  ended = {kEndedKey, 'zset', add_to_zset, remove_from_zset},
  overdue = {kQueueDeadlinesKey, 'zset', add_to_zset, remove_from_zset},
  queue = {'', 'list', function(_, key) redis.call('LPUSH', key, job) end,
    function(_, key) redis.call('LREM', key, 0, job) end},
  priority = {kPriorityKey, 'zset', function(_, key)
    local claim = read_claim(job) or {}
    redis.call('ZADD', key, to_integer_text((kMaxPriority - (tonumber(claim.priority) or 0)) * kPriority + now_ms), job)
  end, remove_from_zset},
  slots = {kRunningKey, 'set', function(_, key) redis.call('SADD', key, job) end,
    function(_, key) redis.call('SREM', key, job) end},
  held = {kHeldKey, 'zset', function(step) hold_for_slot(job, read_claim(job) or {}, step.argument) end, remove_from_zset},
  waits = {kDependentsKey, 'set', function(step, key)
    redis.call('SADD', kDependenciesKey .. job, step.argument)
    redis.call('SADD', key, job)
  end, function(step, key)
    redis.call('SREM', kDependenciesKey .. job, step.argument)
    redis.call('SREM', key, job)
  end},
}

-- Extends the lease of the claim to a whole lease.
local function set_full_lease()
  local claim = read_claim(job)
  local lease_ms = math.max(1000, to_number(claim.lease_ms))
  local until_ms = to_integer_text(math.max(to_number(claim.until_ms), now_ms + lease_ms))
  redis.call('HSET', claim_key, 'until_ms', until_ms, 'lease_ms', to_integer_text(lease_ms))
  if not claim.began then redis.call('HSET', claim_key, 'began', to_integer_text(now_ms), 'log_base', to_integer_text(get_last_log_seq(job))) end
  redis.call('ZADD', kLeasesKey, until_ms, job)
  if has_type(job, 'hash') then redis.call('HSET', job, 'lease_until_ms', until_ms) end
end

-- Returns the facts `claimed` of the job in their order, as far as the journal still has them.
local function read_claimed_facts(claim)
  local facts, key = {}, kQueueJournalKey .. (queue ~= '' and queue or claim.queue or '')
  if key_type(key) ~= 'stream' then return facts end
  for revision in string.gmatch(claim.revs or '', '%d+') do
    local entry = redis.call('XRANGE', key, revision, revision)[1]
    local fact = entry and to_table(entry[2]) or {}
    if fact.j == job and fact.f == kFactKindClaimed then facts[#facts + 1] = fact end
  end
  return facts
end

-- Restores the field log_runs of a claim that was missing: by it readers find the output of earlier runs on the disks
-- of their runners. Each run after the first begins with a line in the log, which names attempt and delivery.
local kMaxLogRunsBytes, kLogPageEntries = 1024, 500  -- the first one as in claims.lua
local function restore_log_runs()
  local claim = read_claim(job) or {}
  local first_claims, facts = {}, read_claimed_facts(claim)  -- by attempt and delivery: the index of the first claim
  for i, fact in ipairs(facts) do
    local run = to_number(fact[kFactAttemptField]) .. '.' .. to_number(fact[kFactDeliveriesField])
    first_claims[run] = first_claims[run] or i
  end
  if #facts < 2 or key_type(kLogKey .. job) ~= 'stream' then return end
  local runs, first_id = '', '-'
  repeat
    local entries = redis.call('XRANGE', kLogKey .. job, first_id, '+', 'COUNT', kLogPageEntries)
    for _, entry in ipairs(entries) do
      local previous = facts[(first_claims[to_table(entry[2]).run or ''] or 0) - 1]
      first_id = '(' .. entry[1]
      if previous then
        local run = string.match(entry[1], '^%d+') .. ':' .. to_integer_text(to_number(previous[kFactEpochField])) .. ':' ..
          to_integer_text(to_number(previous[kFactRunnerField]))
        runs = runs == '' and run or runs .. ' ' .. run
        if #runs > kMaxLogRunsBytes then runs = string.match(runs, '^%S+ (.*)$') end
      end
    end
  until #entries < kLogPageEntries
  if runs ~= '' then redis.call('HSET', claim_key, 'log_runs', runs) end
end

-- Appends a fact `restored` with the state of the claim, since the facts of the job have gaps or are in disorder.
local function append_restored_fact(step)
  local claim, fields = read_claim(job), {}
  local function add_changed_field(name, value)
    if value and value ~= '' then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  add_changed_field(kFactStateField, claim.state)
  add_changed_field(kFactStatusField, claim.state == kJobStateEnded and (claim.status or kJobStatusError))
  add_changed_field(kFactDetailField, claim.detail)
  add_changed_field(kFactClaimIdField, claim.claim_id)
  add_changed_field(kFactTokenHashField, claim.token)
  for name, field in pairs({[kFactEpochField] = 'epoch', [kFactAttemptField] = 'attempt', [kFactDeliveriesField] = 'deliveries',
    [kFactRunnerField] = 'runner'}) do
    add_changed_field(name, to_integer_text(to_number(claim[field])))
  end
  add_changed_field(kFactInstanceField, claim.instance)
  add_changed_field(kFactLeaseField, claim.lease_ms and to_integer_text(to_number(claim.lease_ms)))
  add_changed_field(kFactDigestField, claim['end'])
  add_changed_field(kFactEndTimeField, claim.state == kJobStateEnded and claim.ended_ms and to_integer_text(to_number(claim.ended_ms)))
  add_changed_field(kFactDueField, claim.state == kJobStateDelayed and to_integer_text(to_number(redis.call('ZSCORE', kDelayedKey, job) or '0')))
  add_changed_field(kFactMessageField, claim.message)
  add_changed_field(kFactFlowField, claim.flow)
  claim.revs = step.argument ~= '' and step.argument or nil
  add_fact(get_queue(job, claim), job, claim, kFactKindRestored, unpack(fields))
  set_claim(job, claim)
end

local function index_key(step) return kIndexes[step.index][1] .. step.argument end  -- for an index of all jobs the argument is empty
local step_handlers = {
  delete_claim = function() redis.call('DEL', claim_key) end,
  set_claim = function(step)
    local has_ended, state = (read_claim(job) or {}).state == kJobStateEnded, to_table(step.fields).state
    redis.call('HSET', claim_key, unpack(step.fields))
    if has_ended and state and state ~= kJobStateEnded then redis.call('HDEL', claim_key, 'until_ms', 'began') end
  end,
  drop_claim = function(step) for i = 1, #step.fields, 2 do redis.call('HDEL', claim_key, step.fields[i]) end end,
  set_record = function(step) redis.call('HSET', job, 'updated_at', now_s, unpack(step.fields)) end,
  enter = function(step) kIndexes[step.index][3](step, index_key(step)) end,
  leave = function(step) kIndexes[step.index][4](step, index_key(step)) end,
  lease = set_full_lease,
  enqueue = function(step) enqueue_job(job, read_claim(job), step.argument, false) end,
  finish = function(step) end_job(job, read_claim(job), failure_fields('dead_letter', step.argument), false) end,
  restore = append_restored_fact,
}

if has_changed() then return 0 end
for _, step in ipairs(steps) do
  err = kIndexes[step.index] and check_type(index_key(step), kIndexes[step.index][2])
    or step.index == 'waits' and check_type(kDependenciesKey .. job, 'set') or step.index == 'held' and check_type(kHeldConcurrencyKeysKey, 'set') or nil
  if err then return err end
end
local had_claim = redis.call('EXISTS', claim_key) == 1
for _, step in ipairs(steps) do step_handlers[step.kind](step) end
if not had_claim and key_type(claim_key) == 'hash' then restore_log_runs() end
return 1

--# message_places: dispatch_journal inspection
-- Inspects messages.
-- ARGV: messages (list of keys).
-- Reply: for each message the result of inspect_message() and its digest.
-- Repeat: safe; read-only.
local replies = {}
for i, message in ipairs(list_arg()) do
  local inspection = inspect_message(message)
  replies[i] = {inspection[1], inspection[2], inspection[3], compute_inspection_digest(inspection)}
end
return replies

--# repair_message: dispatch_journal messages inspection
-- Adds a message to indexes in which it is missing, if nothing has changed since its inspection.
-- ARGV: message (key), digest (of the inspection), kinds (list: inbox, messages, came, or a kind of the outbox).
-- Reply: 1; or 0 if the message has changed, and nothing was written.
-- Errors: MJTYPE, before the first write, if an index has a wrong type.
-- Repeat: safe; the reply is 0.
local message, inspection_digest, kinds = next_arg(), next_arg(), list_arg()
local err = check_type(kMessageKey .. message, 'hash') or check_mailbox_types() or check_type(kReceivedKey, 'hash')
if err then return err end
if compute_inspection_digest(inspect_message(message)) ~= inspection_digest then return 0 end
local mark_fields = to_table(redis.call('HGETALL', kMessageKey .. message))
for _, kind in ipairs(kinds) do
  local due_ms = kind == 'expire' and to_number(mark_fields.delivered_ms) + to_number(mark_fields.result_ms) or now_ms
  if kind == 'inbox' then
    redis.call('ZADD', kInboxKey, to_integer_text(due_ms), message)
  elseif kind == 'messages' then
    redis.call('ZADD', kMessagesKey, to_integer_text(due_ms), message)
  elseif kind == 'came' then
    redis.call('HSET', kReceivedKey, mark_fields.content, message)
  else
    redis.call('ZADD', kOutboxKey, to_integer_text(due_ms), kind .. ' ' .. message)
  end
end
publish_mailbox_change()
return 1
