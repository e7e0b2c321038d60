--# journal places ends
-- The answer is cancel_job()'s.
local job = arg()
local err = wrong_shared() or wrong(job, 'hash') or wrong('mj:claim:' .. job, 'hash')
if err then return err end
return cancel_job(job, read_claim(job))
