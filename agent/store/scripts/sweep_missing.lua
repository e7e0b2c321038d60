-- Entries whose record was missing. Answers how many were settled.
local wait_ms = num(arg())
local err = wrong_shared()
if err then return err end
local settled = 0
local waiting = redis.call('ZRANGE', 'mj:missing', 0, 999, 'WITHSCORES')
for i = 1, #waiting, 2 do
  local member = waiting[i]
  local job, queue = string.match(member, '^(%S+) (.*)$')
  local is = job and type_of(job)
  if is == 'hash' and not wrong(queue, 'list') then
    redis.call('RPUSH', queue, job)
  elseif is == 'none' and now_ms <= num(waiting[i + 1]) + wait_ms then
    job = nil
  else
    add_dead(job or member, queue or '', is == 'none' and 'no_record' or 'wrong_type')
    job = job or member
  end
  if job then
    redis.call('ZREM', 'mj:missing', member)
    settled = settled + 1
  end
end
return settled
