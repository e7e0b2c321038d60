--# tick: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Performs the time-driven work of a context: delayed jobs, dependents, held jobs, missing records, time-outs,
-- retention.
-- ARGV (integers): missing_wait (ms until an entry without a record is dropped), the retention in ms of successful
-- jobs, of other jobs, and of the jobs of flows (0: unlimited), keep_count (maximum number of ended jobs; 0: unlimited),
-- max (limit of each part of the work in one call), the quotas in bytes of a caller and of the context. The script has
-- no KEYS.
-- Reply: {due, settled, missing, overdue, retired: numbers of processed jobs or entries; 1 if work is left, so that the
-- caller should call again; ms until the next delayed job or queue deadline, or 0; numbers of leases and of jobs that
-- wait for prerequisites}.
-- Errors: MJTYPE, before the first write, if an index of all jobs has a wrong type. Other wrong types become anomalies.
-- Repeat: safe; any number of clients may call it at any time.
local missing_wait = to_number(next_arg())
local retention = {succeeded = to_number(next_arg()), failed = to_number(next_arg()), flow = to_number(next_arg())}
local keep_count, max = to_number(next_arg()), to_number(next_arg())
read_quota()
local err = check_index_types() or check_type(kJournalHorizonKey, 'hash')
if err then return err end
local has_more = 0
-- Returns the page. Sets has_more if the page is full, since more entries may follow. An entry of the page has
-- texts_per_entry texts.
local function note_full_page(page, texts_per_entry)
  if #page >= max * texts_per_entry then has_more = 1 end
  return page
end

-- Returns whether a due job, delayed by delay_for_quota() in claims.lua, must wait longer because its caller still
-- exceeds a quota; then the job is delayed again. In one call only kMaxQueuedBatch jobs of each caller are queued,
-- since the end of the first job may exceed the quota again.
local kMaxQueuedBatch = 50
local exceeded_by_caller, queue_attempts = {}, {}  -- by caller: the exceeded setting or false; the number of queued jobs
local function waits_for_quota(job, claim)
  if not claim.quota then return false end
  local caller = parse_caller(job)
  if exceeded_by_caller[caller] == nil then
    exceeded_by_caller[caller] = check_quota(caller) or false
    if exceeded_by_caller[caller] then request_retirement(caller) end
  end
  queue_attempts[caller] = (queue_attempts[caller] or 0) + 1
  if not exceeded_by_caller[caller] and queue_attempts[caller] <= kMaxQueuedBatch then return false end
  local waited_ms = math.max(0, now_ms - to_number(claim.waiting_since))
  redis.call('ZADD', kDelayedKey, to_integer_text(now_ms + math.max(kQuotaPauseMs, math.min(waited_ms / 2, kMaxQuotaPauseMs))), job)
  return true
end

-- Returns whether a due job, parked by park_for_inputs() in job_ends.lua, must wait longer because the holder of
-- its inputs is still away; then the job is delayed again. A job whose inputs are lost ends. A job with holder_queued
-- has returned to its queue since that park, and waits for something else now.
local kMinHolderPauseMs, kMaxHolderPauseMs = 1000, 10000
local function waits_for_holder(job, claim)
  local holder = awaited_holder(claim)
  if not holder or claim.holder_queued then return false end
  local is_alive = is_holder_alive(holder)
  if is_alive and claim.holder_away then
    -- The wait has ended. If the holder goes away again, a new wait begins.
    redis.call('HDEL', kClaimKey .. job, unpack(kRunFields, kFirstHolderField, kLastHolderField))
    return false
  end
  local loss = find_input_loss(claim)
  if loss then
    end_job(job, claim, failure_fields('artifact_lost', loss), false)
    return true
  end
  if is_alive or claim.holder_stored then
    redis.call('HSET', kClaimKey .. job, 'holder_queued', to_integer_text(now_ms))
    return false
  end
  if not claim.holder_away then redis.call('HSET', kClaimKey .. job, 'holder_away', 1) end
  local waited_ms = math.max(0, now_ms - to_number(claim.holder_since))
  local pause_ms = math.max(kMinHolderPauseMs, math.min(waited_ms / 10, kMaxHolderPauseMs))
  redis.call('ZADD', kDelayedKey, to_integer_text(now_ms + pause_ms), job)
  return true
end

local queued = 0
for _, job in ipairs(note_full_page(redis.call('ZRANGEBYSCORE', kDelayedKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max), 1)) do
  local claim = find_claim(job)
  if not claim or claim.state ~= kJobStateDelayed then
    redis.call('ZREM', kDelayedKey, job)
  elseif not waits_for_holder(job, claim) and not waits_for_quota(job, claim) then
    -- A job that its runner released without a run becomes the next one of its queue again.
    enqueue_job(job, claim, kQueueReasonDue, claim.reason == kFactKindReleased)
    if claim.state == kJobStateQueued then queued = queued + 1 end
  end
end

-- Process dependents that exceeded the budget of a previous call.
while dependents_budget > 0 do
  local dep = redis.call('LPOP', kPendingReleasesKey)
  if not dep then break end
  process_dependents(dep, get_end_status(dep) or kJobStatusError)
end
if redis.call('EXISTS', kPendingReleasesKey) == 1 then has_more = 1 end

-- Moves held jobs from a list to their queues. Earlier versions stored held jobs in a list, the next one at the right
-- end; the next claim adds the jobs to the sorted set. Returns whether jobs are left in the list. A list with other
-- entries belongs to another client and is not changed.
local list_budget = max
local function release_held_list(held_key)
  local job = redis.call('LINDEX', held_key, -1)
  while job and is_job_key(job) do
    if list_budget == 0 then
      has_more = 1
      return true
    end
    list_budget = list_budget - 1
    local claim = find_claim(job)
    if claim and claim.state == kJobStateHeld then
      claim.held = nil  -- the job is in no sorted set
      enqueue_job(job, claim, kParkReasonHeld, false)
    end
    redis.call('RPOP', held_key)
    job = redis.call('LINDEX', held_key, -1)
  end
end

-- Queues the next held job of a concurrency key if the key has a free slot. Usually release_slot() does this, but the
-- job that it has queued may be in a queue without agents.
local function queue_held_job(key)
  local held_key = kHeldKey .. key
  if key_type(held_key) == 'list' and release_held_list(held_key) then return end
  local job = not reports_wrong_type(held_key, 'zset') and redis.call('ZRANGE', held_key, 0, 0)[1]
  local claim = job and find_claim(job)
  if not job then
    redis.call('SREM', kHeldConcurrencyKeysKey, key)
  elseif not claim or claim.state ~= kJobStateHeld then
    redis.call('ZREM', held_key, job)
  else
    -- If the record is not a hash, the limit is 1.
    local limit = has_type(job, 'hash') and to_number(redis.call('HGET', job, 'concurrency_limit')) or 0
    local running = call_index('SCARD', kRunningKey .. key)
    if running and running < math.max(1, limit) then enqueue_job(job, claim, kParkReasonHeld, true) end
  end
end
if key_type(kHeldConcurrencyKeysKey) == 'set' then
  for _, key in ipairs(redis.call('SRANDMEMBER', kHeldConcurrencyKeysKey, max)) do queue_held_job(key) end
end

-- Return entries to their queues if the missing record exists now, and drop entries after missing_wait ms.
local missing = 0
local waiting = note_full_page(redis.call('ZRANGE', kMissingRecordsKey, 0, max - 1, 'WITHSCORES'), 2)
for i = 1, #waiting, 2 do
  local member = waiting[i]
  local job, queue = string.match(member, '^(%S+) (.*)$')
  local record_type = job and key_type(job)
  local is_resolved = true
  if record_type == 'hash' and reports_wrong_type(queue, 'list') then
    is_resolved = false
  elseif record_type == 'hash' then
    redis.call('RPUSH', queue, job)
  elseif record_type == 'none' and now_ms <= to_number(waiting[i + 1]) + missing_wait then
    is_resolved = false
  else
    local id = add_dead_letter_entry(job or member, queue or '', record_type == 'none' and 'no_record' or 'wrong_type')
    local claim = job and find_claim(job)
    if claim and claim.state == kJobStateQueued then
      end_job(job, claim, failure_fields('dead_letter', 'another client deleted its record'), false)
      redis.call('HSET', kClaimKey .. job, 'dead', id)
    end
  end
  if is_resolved then
    redis.call('ZREM', kMissingRecordsKey, member)
    missing = missing + 1
  end
end

-- Jobs that plain clients have pushed are in no index. At most twice a second, a part of some lists is searched for
-- jobs with a queue_timeout_ms: lists of queues with a journal, and lists found by one step of SCAN.
local kMaxSearchedEntries = 50  -- number of entries of a list in one search
local function find_pushed_timeouts(queue)
  if key_type(queue) ~= 'list' then return end
  local length = redis.call('LLEN', queue)
  local first = length > kMaxSearchedEntries and now_us % length or 0  -- another part in each search
  for _, job in ipairs(redis.call('LRANGE', queue, first, first + kMaxSearchedEntries - 1)) do
    if is_job_key(job) and redis.call('EXISTS', kClaimKey .. job) == 0 then
      local record = redis.pcall('HMGET', job, 'queue_timeout_ms', 'queued_ms', 'run_at_ms', 'detail')
      if record.err then reports_wrong_type(job, 'hash') end
      local until_ms = not record.err and not is_only_created(job, {}, record[4]) and compute_queue_deadline(to_number(record[1] or nil), to_number(record[2] or nil), to_number(record[3] or nil))
      if until_ms then redis.call('ZADD', kQueueDeadlinesKey, 'NX', to_integer_text(until_ms), job) end
    end
  end
end
local pushed_search = call_index('HMGET', kPushSearchKey, 'at', 'cursor')
if pushed_search and math.abs(now_ms - to_number(pushed_search[1] or nil)) >= 500 then
  local sampled_queues = redis.call('SRANDMEMBER', kQueuesKey, 20)
  for _, queue in ipairs(sampled_queues) do find_pushed_timeouts(queue) end
  local page = redis.call('SCAN', to_integer_text(to_number(pushed_search[2] or nil)), 'MATCH', 'queue:*', 'COUNT', 100)
  for _, queue in ipairs(page[2]) do find_pushed_timeouts(queue) end
  -- Nothing is written to a context without queues, which may have been deleted.
  if #sampled_queues + #page[2] > 0 or page[1] ~= '0' then redis.call('HSET', kPushSearchKey, 'at', to_integer_text(now_ms), 'cursor', page[1]) end
end
-- Returns whether the job waits for a run. A job without a state in its claim waits if its record has a
-- queue_timeout_ms and no end.
local function is_waiting(job, claim)
  if claim.state then return claim.state ~= kJobStateLive and claim.state ~= kJobStateEnded end
  local record = redis.pcall('HMGET', job, 'status', 'queue_timeout_ms')
  return not record.err and to_number(record[2] or nil) > 0 and record[1] ~= kJobStatusFinished and record[1] ~= kJobStatusError
end

-- End jobs that have waited longer than their queue_timeout_ms allows.
local overdue = 0
for _, job in ipairs(note_full_page(redis.call('ZRANGEBYSCORE', kQueueDeadlinesKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max), 1)) do
  local claim = find_claim(job)
  if claim and is_waiting(job, claim) then
    local in_queue_list = not claim.state or claim.state == kJobStateQueued and not has_priority(claim)
    end_job(job, claim, failure_fields('timeout', 'it waited longer than its queue_timeout_ms allows'), false)
    if in_queue_list then redis.call('HSET', kClaimKey .. job, 'leftover', 1) end
    overdue = overdue + 1
  end
  redis.call('ZREM', kQueueDeadlinesKey, job)
end

-- Retention: deletes ended jobs with their record, log and facts. A job that is kept beyond the shortest retention, or
-- by retention_obstacle(), gets the negated time of its next check as its score in mj:ended. A positive later time would
-- count as an end at that time.
local kObstaclePauseMs, kMaxRetentionPauseMs = 600000, 24 * 3600 * 1000
local min_retention_ms = math.huge  -- shortest limited retention
for _, keep_ms in pairs(retention) do if keep_ms > 0 then min_retention_ms = math.min(min_retention_ms, keep_ms) end end
local retired = 0
local obstacle_score = to_integer_text(-(now_ms + math.min(min_retention_ms < math.huge and min_retention_ms or 1000, kObstaclePauseMs)))
local function is_single_success(claim) return not claim.flow and claim.status == kJobStatusFinished end
-- Returns the ms until the retention of an ended job is over: at most 0 if it is over, math.huge if it is unlimited.
local function get_remaining_retention(claim)
  local keep_ms = claim.flow and retention.flow or is_single_success(claim) and retention.succeeded or retention.failed
  return keep_ms > 0 and to_number(claim.ended_ms) + keep_ms - now_ms or math.huge
end
-- Deletes an ended job whose claim is `claim`, unless it must be kept.
local function delete_unless_needed(job, claim)
  if not claim or claim.state ~= kJobStateEnded then return redis.call('ZREM', kEndedKey, job) end
  if retention_obstacle(job, claim) then return redis.call('ZADD', kEndedKey, obstacle_score, job) end
  delete_ended_job(job, claim)
  retired = retired + 1
end
for _, job in ipairs(redis.call('ZRANGEBYSCORE', kEndedKey, to_integer_text(-now_ms), '(0', 'LIMIT', 0, max)) do
  local claim = find_claim(job)
  local has_obstacle = claim and claim.state == kJobStateEnded and retention_obstacle(job, claim)
  redis.call('ZADD', kEndedKey, has_obstacle and obstacle_score or to_integer_text(to_number(claim and claim.ended_ms)), job)
end
if min_retention_ms < math.huge then
  for _, job in ipairs(note_full_page(redis.call('ZRANGEBYSCORE', kEndedKey, '0', to_integer_text(math.max(0, now_ms - min_retention_ms)), 'LIMIT', 0, max), 1)) do
    local claim = find_claim(job)
    local remaining_ms = claim and claim.state == kJobStateEnded and get_remaining_retention(claim) or 0
    if remaining_ms > 0 then
      redis.call('ZADD', kEndedKey, to_integer_text(-(now_ms + math.min(remaining_ms, kMaxRetentionPauseMs))), job)
    else
      delete_unless_needed(job, claim)
    end
  end
end
-- Jobs with a negative score have been kept longest.
local excess = keep_count > 0 and redis.call('ZCARD', kEndedKey) - keep_count or 0
if excess > 0 then
  local before = retired
  for _, range in ipairs({{'(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0}, {'0', '+inf', 'BYSCORE', 'LIMIT', 0}}) do
    range[#range + 1] = math.min(excess, max) - (retired - before)
    for _, job in ipairs(redis.call('ZRANGE', kEndedKey, unpack(range))) do delete_unless_needed(job, find_claim(job)) end
  end
  if excess >= max and retired > before then has_more = 1 end
end

-- A caller that stores almost as much as its quota (field `over` of mj:stored-bytes) loses ended jobs until it stores
-- three quarters of the quota. If the context is almost full (field `full`), the callers that store most lose theirs,
-- one caller after another, until all callers together store three quarters of the quota of the context. A search of
-- mj:ended has three parts (field `part`): successful jobs that belong to no flow and ended at least kRecentMs ago, then
-- jobs that are kept beyond the shortest retention, then all others. It takes several ticks: `at` is the score that the
-- part has reached, `began` is the time of the begin of the search. A search that has retired too few jobs is noted in
-- mj:stored-bytes-search: for kSearchPauseMs the next searches for that caller examine only jobs that have ended since.
local kSearchPauseMs, kNewEndsPauseMs, kMaxComparedCallers, kRecentMs = 60000, 5000, 2000, 3600000
local kOldSuccesses, kKeptLonger, kAllOthers = 1, 2, 3
-- Parses a noted search: its begin, and the end time up to which it has examined jobs. Returns now and 0 if there is no
-- such search, or if it is older than kSearchPauseMs.
local function parse_search(text)
  local began_ms, examined_to_ms = string.match(text or '', '^(%d+) (%d+)$')
  if not began_ms or to_number(began_ms) > now_ms or to_number(began_ms) + kSearchPauseMs <= now_ms then return now_ms, 0 end
  return to_number(began_ms), to_number(examined_to_ms)
end
-- Returns the caller that stores most, among those above the share that is always allowed. Callers without a recent
-- search come first; after them the caller with the oldest search. With too many callers to compare, returns
-- `requested`.
local function find_largest_caller(requested)
  if redis.call('HLEN', kStoredBytesKey) > kMaxComparedCallers then return requested end
  local searches, max_bytes, caller, oldest_caller = to_table(call_index('HGETALL', kStoredBytesSearchKey) or {}), always_allowed_bytes(), nil, nil
  local usage, oldest_ms = redis.call('HGETALL', kStoredBytesKey), now_ms - kNewEndsPauseMs
  for i = 1, #usage, 2 do
    local bytes = string.find(usage[i], '^%d+$') and to_number(usage[i + 1]) or 0
    if bytes > always_allowed_bytes() then
      local _, examined_to_ms = parse_search(searches[usage[i]])
      if examined_to_ms == 0 and bytes > max_bytes then max_bytes, caller = bytes, usage[i] end
      if examined_to_ms > 0 and examined_to_ms <= oldest_ms then oldest_ms, oldest_caller = examined_to_ms, usage[i] end
    end
  end
  return caller or oldest_caller
end

local search = {}
-- Returns whether enough jobs were retired: at most three quarters of the quota are in use, or, in a full context, the
-- caller stores at most always_allowed_bytes().
local function has_freed_enough(caller_bytes, total_bytes)
  if search.full then return total_bytes <= quota.context * 3 / 4 or caller_bytes <= always_allowed_bytes() end
  return quota.caller == 0 or caller_bytes <= quota.caller * 3 / 4
end
local function end_search() redis.call('HDEL', kStoredBytesKey, 'over', 'at', 'began', 'part', 'full') end
-- Reads the state of the search into `search`: {caller, part, at, began, full}; empty if no job has to be retired.
local function read_search()
  local usage = call_index('HMGET', kStoredBytesKey, 'over', 'all', 'caller_max', 'context_max', 'at', 'began', 'full', 'part')
  if usage and usage[2] and (to_number(usage[3] or nil) ~= quota.caller or to_number(usage[4] or nil) ~= quota.context) then
    redis.call('HSET', kStoredBytesKey, 'caller_max', to_integer_text(quota.caller), 'context_max', to_integer_text(quota.context))
  end
  if not usage or not usage[1] then return end
  if usage[5] and usage[6] then
    search = {caller = usage[1], part = to_number(usage[8] or kAllOthers), at = to_number(usage[5]), began = to_number(usage[6]), full = usage[7] and quota.context > 0}
    return
  end
  local is_context_full = is_nearly_full(to_number(usage[2] or nil), quota.context) or usage[7] and quota.context > 0
  local caller = usage[1]
  if is_context_full then caller = find_largest_caller(caller) end
  if not caller then return end_search() end
  search = {caller = caller, full = is_context_full}
  search.began, search.at = parse_search(call_index('HGET', kStoredBytesSearchKey, caller))
  search.part = search.at > 0 and kAllOthers or kOldSuccesses
end

-- Returns the next page of the present part of the search: {job, score, ...}.
local kMaxPageTexts = 8 * max
local function read_search_page()
  local at, count = to_integer_text(search.at), kMaxPageTexts / 2
  if search.part == kKeptLonger then
    return redis.call('ZRANGE', kEndedKey, search.at == 0 and '(0' or at, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, count, 'WITHSCORES')
  end
  local last = search.part == kOldSuccesses and to_integer_text(now_ms - kRecentMs) or '+inf'
  return redis.call('ZRANGEBYSCORE', kEndedKey, at, last, 'WITHSCORES', 'LIMIT', 0, count)
end
-- Examines one page of mj:ended, and begins the next part of the search after the last page of a part. Returns true at
-- the end of the last part.
local function delete_until_below_quota()
  local usage = redis.call('HMGET', kStoredBytesKey, search.caller, 'all')
  local page = read_search_page()
  local first_score, budget = page[2], max
  for i = 1, #page, 2 do
    if budget == 0 or has_freed_enough(to_number(usage[1] or nil), to_number(usage[2] or nil)) then return false end
    if parse_caller(page[i]) == search.caller then
      local retired_before, claim = retired, find_claim(page[i])
      if search.part ~= kOldSuccesses or not claim or is_single_success(claim) then delete_unless_needed(page[i], claim) end
      budget = budget - (retired - retired_before)
      usage = redis.call('HMGET', kStoredBytesKey, search.caller, 'all')
    end
    search.at = to_number(page[i + 1])
  end
  if #page < kMaxPageTexts then
    if search.part == kAllOthers then return true end
    search.part, search.at = search.part + 1, 0
    return delete_until_below_quota()
  end
  -- All jobs of the page have the same score, so the next page begins after that score.
  if page[#page] == first_score then search.at = to_number(first_score) + (search.part == kKeptLonger and -1 or 1) end
  return false
end

read_search()
if search.caller then
  local before = retired
  local is_index_end = delete_until_below_quota()
  local usage = redis.call('HMGET', kStoredBytesKey, search.caller, 'all')
  local caller_bytes, total_bytes = to_number(usage[1] or nil), to_number(usage[2] or nil)
  local has_failed = is_index_end and not has_freed_enough(caller_bytes, total_bytes)
  if has_failed then
    if (call_index('HLEN', kStoredBytesSearchKey) or 0) > kMaxComparedCallers then redis.call('DEL', kStoredBytesSearchKey) end
    call_index('HSET', kStoredBytesSearchKey, search.caller, to_integer_text(search.began) .. ' ' .. to_integer_text(now_ms))
  end
  if not has_failed and not has_freed_enough(caller_bytes, total_bytes) then
    redis.call('HSET', kStoredBytesKey, 'over', search.caller, 'at', to_integer_text(search.at), 'began', to_integer_text(search.began), 'part', to_integer_text(search.part))
    if search.full then redis.call('HSET', kStoredBytesKey, 'full', 1) end
  elseif search.full and total_bytes > quota.context * 3 / 4 and redis.call('HLEN', kStoredBytesKey) <= kMaxComparedCallers then
    -- Continue with the caller that stores most after this one.
    redis.call('HSET', kStoredBytesKey, 'over', search.caller, 'full', 1)
    redis.call('HDEL', kStoredBytesKey, 'at', 'began', 'part')
  else
    end_search()
  end
  -- has_more is set only if jobs were retired. A search without results continues at the next regular tick, so that it
  -- does not keep Redis busy.
  if retired > before and redis.call('HEXISTS', kStoredBytesKey, 'over') == 1 then has_more = 1 end
end

-- Remove jobs from mj:jobs if another client has deleted the record before the first claim. Such entries become the
-- oldest ones, so checking the oldest ten is enough.
if has_type(kJobsKey, 'zset') then
  for _, job in ipairs(redis.call('ZRANGE', kJobsKey, 0, 9)) do
    if redis.call('EXISTS', job, kClaimKey .. job) == 0 then redis.call('ZREM', kJobsKey, job) end
  end
end

local next_due
for _, key in ipairs({kDelayedKey, kQueueDeadlinesKey}) do
  local due = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if due then next_due = math.min(next_due or math.huge, math.max(1, to_number(due) - now_ms)) end
end
return {queued, processed_dependents, missing, overdue, retired, has_more, next_due or 0, redis.call('ZCARD', kLeasesKey), redis.call('ZCARD', kPrerequisitesKey)}

--# timed_work:
-- Looks for time-driven work in the contexts of several databases of this server, since most contexts need no tick.
-- ARGV: within_ms, databases (list).
-- Reply: three values for each database: 1 if work is due within within_ms or the database cannot be read, otherwise 0;
-- 1 if there are leases, otherwise 0; ms since a tick has searched the lists of plain clients, or nil if none has.
-- Repeat: safe; read-only.
local within_ms, databases = to_number(next_arg()), list_arg()
-- Returns whether the selected database has work. A key with a wrong type counts as work, which tick reports.
local function has_work(cursor, has_indexes)
  -- A search of tick for queues that no index has is complete when its cursor is 0 again.
  if cursor and cursor ~= '0' then return true end
  if has_indexes and redis.call('EXISTS', kMissingRecordsKey, kPrerequisitesKey, kPendingReleasesKey, kHeldConcurrencyKeysKey) > 0
    or redis.pcall('HEXISTS', kStoredBytesKey, 'over') ~= 0 then return true end
  for _, key in ipairs({kDelayedKey, kQueueDeadlinesKey}) do
    local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first.err or first[2] and to_number(first[2]) <= now_ms + within_ms then return true end
  end
end
local replies = {}
for i, database in ipairs(databases) do
  local selected = redis.pcall('SELECT', database)
  local search = not selected.err and redis.pcall('HMGET', kPushSearchKey, 'at', 'cursor') or selected
  local has_indexes = not search.err
    and redis.call('EXISTS', kLeasesKey, kMissingRecordsKey, kPrerequisitesKey, kPendingReleasesKey, kHeldConcurrencyKeysKey) > 0
  replies[3 * i - 2] = (search.err or has_work(search[2], has_indexes)) and 1 or 0
  replies[3 * i - 1] = has_indexes and redis.call('EXISTS', kLeasesKey) or 0
  replies[3 * i] = search[1] and math.abs(now_ms - to_number(search[1])) or false
end
return replies
