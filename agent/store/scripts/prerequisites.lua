-- Prerequisites of jobs: conditions outside of the store, and approvals by users.
-- Conventions: the scripts have no KEYS. ARGV is listed in order. If a key has a wrong type, a script fails with MJTYPE
-- before its first write.

--# prerequisites_due: dispatch_journal job_indexes
-- Returns the jobs with prerequisites to check. Each job is returned at most once in again_ms.
-- ARGV: max, again_ms, role (coordinator, or another word for an agent).
-- Reply: {{job, its prerequisites, ms for which it has waited, 1 if it belongs to a flow, {names of given approvals}, 1
-- if a coordinator has checked before}...}. The reply to an agent is empty if a coordinator has checked within 5 s.
-- Repeat: safe; the jobs become due again after again_ms.
local max, again_ms, role = to_number(next_arg()), to_number(next_arg()), next_arg()
local err = check_type(kPrerequisitesKey, 'zset')
if err then return err end
local checked_ms = redis.pcall('HGET', kPrerequisiteCheckerKey, 'at')  -- time of the last check by a coordinator
checked_ms = type(checked_ms) == 'string' and to_number(checked_ms) or 0
-- Agents leave the checks to coordinators while a coordinator is active.
if role == 'coordinator' then
  if math.abs(now_ms - checked_ms) >= 1000 then redis.pcall('HSET', kPrerequisiteCheckerKey, 'at', to_integer_text(now_ms)) end
elseif math.abs(now_ms - checked_ms) < 5000 then
  return {}
end
local jobs = {}
for _, job in ipairs(redis.call('ZRANGEBYSCORE', kPrerequisitesKey, '-inf', to_integer_text(now_ms), 'LIMIT', 0, max)) do
  local claim = find_claim(job)
  if claim and claim.state == kJobStatePrerequisites and has_type(job, 'hash') then
    redis.call('ZADD', kPrerequisitesKey, to_integer_text(now_ms + again_ms), job)
    local approvals = {}
    for name in pairs(claim) do
      if string.sub(name, 1, 9) == 'approved:' then approvals[#approvals + 1] = string.sub(name, 10) end
    end
    jobs[#jobs + 1] = {job, redis.call('HGET', job, 'prerequisites') or '', to_integer_text(math.max(0, now_ms - to_number(claim.waiting_since))),
      claim.flow and '1' or '', approvals, checked_ms > 0 and '1' or ''}
  else
    redis.call('ZREM', kPrerequisitesKey, job)
  end
end
return jobs

--# prerequisites_settled: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Stores the result of a check: the prerequisites are met and the job is queued, or they are impossible and the job
-- ends.
-- ARGV: job (key), impossible (reason; empty: they are met).
-- Reply: 1; or 0 if the job does not wait for prerequisites.
-- Repeat: safe; the reply is 0.
local job, impossible = next_arg(), next_arg()
local err = check_index_types()
if err then return err end
local claim = find_claim(job)
if not claim or claim.state ~= kJobStatePrerequisites then return 0 end
if impossible ~= '' then
  end_job(job, claim, failure_fields('prerequisite', impossible), false)
else
  set_claim(job, claim, 'prerequisites', 'met')
  enqueue_job(job, claim, kParkReasonPrerequisite, false)
end
return 1

--# prerequisite_answer: dispatch_journal job_indexes messages deployments stored_usage job_ends
-- Stores the answer of a user to an approval that a job without a flow waits for. A rejected job ends.
-- ARGV: job (key), name (of the approval), line (for the job's log: actor and reason), reason (of a rejection; empty:
-- approved).
-- Reply: ok; again if it was approved before; missing; over if the job has ended; met if the prerequisites were met;
-- early if no agent has examined the entry of the job in its queue yet; unasked if it does not wait for this approval;
-- or the id of the flow to which the job belongs.
-- Repeat: safe; the reply is again or over.
local job, name, line, reason = next_arg(), next_arg(), next_arg(), next_arg()
local err = check_index_types() or check_type(job, 'hash') or check_type(kClaimKey .. job, 'hash')
if err then return err end
if redis.call('EXISTS', job) == 0 then return 'missing' end
local claim, values = read_claim(job), redis.call('HMGET', job, 'prerequisites', 'status')
local prerequisites, status = values[1] or '', values[2] or ''
if claim.flow then return string.match(claim.flow, '(%d+)$') or 'missing' end
if claim.state == kJobStateEnded or (not claim.state and (status == kJobStatusFinished or status == kJobStatusError)) then return 'over' end
if not string.find(prerequisites, '"approval:' .. name .. '"', 1, true) then return 'unasked' end
if claim.state == kJobStateLive or claim.prerequisites == 'met' then return 'met' end
if not claim.state then return 'early' end

if reason ~= '' then
  local in_queue_list = claim.state == kJobStateQueued and not has_priority(claim)
  end_job(job, claim, failure_fields('prerequisite', reason), false)
  if in_queue_list then redis.call('HSET', kClaimKey .. job, 'leftover', 1) end
  return 'ok'
end
if claim['approved:' .. name] then return 'again' end
redis.call('HSET', kClaimKey .. job, 'approved:' .. name, line)
-- Another client may have written a log of its own. Then the line is not added, and the answer is valid without it.
local reply = redis.pcall('XADD', kLogKey .. job, to_integer_text(get_last_log_seq(job) + 1) .. '-0', 'ts', to_integer_text(now_ms), 'stream', 'system', 'text', line .. '\n')
if type(reply) == 'table' and reply.err then reports_wrong_type(kLogKey .. job, 'stream') end
if claim.state == kJobStatePrerequisites then redis.call('ZADD', kPrerequisitesKey, to_integer_text(now_ms), job) end
return 'ok'
