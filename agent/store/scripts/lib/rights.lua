-- Rights of actors in a context: the table security/rights.toml, as far as scripts check rights themselves.

-- Returns whether one of the lists of actors (fields of the context's record) has the actor.
local function is_in_access_lists(lists, actor)
  local pattern = '%f[%d]' .. actor .. '%f[%D]'
  for i = 1, #lists do
    if string.find(lists[i] or '', pattern) then return true end
  end
  return false
end
