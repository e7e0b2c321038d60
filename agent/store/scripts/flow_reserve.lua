--#
-- Ids of a caller's jobs that nobody is given after this: the first of so many. skip: how many to leave out before it.
local caller, jobs, skip = arg(), num(arg()), num(arg())
local counter = 'mj:next:' .. caller
local err = wrong(counter, 'string')
if err then return err end
local first = num(redis.call('GET', counter)) + 1 + skip
if first + jobs - 1 > 4294967295 then
  return redis.error_reply('MJFULL caller ' .. caller .. ' has no ' .. dec(jobs) .. ' free job ids left')
end
redis.call('SET', counter, dec(first + jobs - 1))
return dec(first)
