-- Operations on queues, their journals, and dead letters.
-- Conventions: the scripts have no KEYS. ARGV is listed in order; a list is a count followed by that many texts, and a
-- flag is "1" or "0". If a key has a wrong type, a script fails with MJTYPE before its first write.

--# journal_at:
-- Reads facts from the journal of a queue.
-- ARGV: queue, revisions (list).
-- Reply: the entries with these revisions; deleted entries are left out.
-- Repeat: safe; read-only.
local journal = kQueueJournalKey .. next_arg()
local err = check_type(journal, 'stream')
if err then return err end
local entries = {}
for _, revision in ipairs(list_arg()) do
  entries[#entries + 1] = redis.call('XRANGE', journal, revision, revision, 'COUNT', 1)[1]
end
return entries

--# purge_queue: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Cancels the jobs in a queue and removes their entries, beginning with the next entry.
-- ARGV: queue, max (number of entries).
-- Reply: number of removed entries.
-- Repeat: safe; a repeat continues with the remaining entries.
local queue, max = next_arg(), to_number(next_arg())
local err = check_index_types() or check_type(queue, 'list') or check_type(kPriorityKey .. queue, 'zset')
if err then return err end
-- Cancels the job of an entry, unless the entry does not belong to a queued job of this queue.
local function cancel_entry_job(entry)
  local claim = is_job_key(entry) and find_claim(entry)
  if not claim then return end
  if claim.leftover and claim.state ~= kJobStateQueued then redis.call('HDEL', kClaimKey .. entry, 'leftover') end
  if claim.state == kJobStateEnded then return end
  if not has_type(entry, 'hash') or (claim.state and (claim.state ~= kJobStateQueued or claim.queue ~= queue)) then return end
  local record = redis.call('HMGET', entry, 'status', 'detail')
  if not claim.state and (record[1] == kJobStatusFinished or record[1] == kJobStatusError) or is_only_created(entry, claim, record[2]) then return end
  claim.queue = queue
  end_job(entry, claim, failure_fields('cancelled', 'cancelled: its queue was purged'), false)
end
local removed = 0
while removed < max do
  local entry = redis.call('LINDEX', queue, -1)
  if not entry then break end
  cancel_entry_job(entry)
  redis.call('RPOP', queue)
  removed = removed + 1
end
for _, entry in ipairs(redis.call('ZRANGE', kPriorityKey .. queue, 0, max - removed - 1)) do
  if removed >= max then break end
  cancel_entry_job(entry)
  redis.call('ZREM', kPriorityKey .. queue, entry)
  removed = removed + 1
end
return removed

--# settle_dead_letter: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Removes a dead letter from the list and, on request, runs its job again or queues its entry again.
-- ARGV: id (of the dead letter), requeue (flag).
-- Reply: empty; missing; or the reason why it cannot be queued again.
-- Repeat: safe; the reply is missing.
local id, requeue = next_arg(), next_arg() == '1'
local err = check_index_types()
if err then return err end
local letter = redis.call('XRANGE', kDeadLettersKey, id, id)[1]
if not letter then return 'missing' end
local fields = to_table(letter[2])
local job, queue = fields.key or '', fields.queue or ''
if requeue then
  local claim = is_job_key(job) and read_claim(job)
  if claim and claim.state then
    local reason = requeue_ended_job(job, claim)
    if reason then return job .. ' ' .. reason end
  elseif not claim or key_type(job) == 'string' or queue == '' then
    return to_printable(job) .. ' can never run: drop it'
  else
    err = check_type(queue, 'list')
    if err then return err end
    redis.call('LPUSH', queue, job)
  end
end
redis.call('XDEL', kDeadLettersKey, id)
return ''
