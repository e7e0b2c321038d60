-- For each claim 0 stale, 1 renewed, 2 renewed and somebody wants the job cancelled.
local lease_ms, count = num(arg()), num(arg())
local err = wrong_shared()
if err then return err end
local answers = {}
for i = 1, count do
  local job, claim_id, token = arg(), arg(), arg()
  local claim = read_claim(job)
  if is_live(claim, claim_id, token) then
    local until_ms = dec(math.max(num(claim.until_ms), now_ms + lease_ms))
    redis.call('HSET', 'mj:claim:' .. job, 'until_ms', until_ms, 'lease_ms', dec(lease_ms))
    redis.call('ZADD', 'mj:leases', until_ms, job)
    if type_of(job) == 'hash' then redis.call('HSET', job, 'lease_until_ms', until_ms) end
    answers[i] = claim.cancel and 2 or 1
  else
    add_anomaly(job .. ': a renewal by claim ' .. shown(claim_id) .. ' came too late')
    answers[i] = 0
  end
end
return answers
