--# journal places sight
-- Where jobs are, for each what sight() sees, and in its fifth list now_ms. positions: a whole look, with a digest of it.
local positions, jobs = arg() == '1', list_arg()
local answers = {}
for i, job in ipairs(jobs) do
  local seen = sight(job, positions)
  local more, sum = seen[5], positions and digest_of(seen)
  more[#more + 1] = 'now_ms'
  more[#more + 1] = dec(now_ms)
  if sum then
    more[#more + 1] = 'seen'
    more[#more + 1] = sum
  end
  answers[i] = seen
end
return answers
