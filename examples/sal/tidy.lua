-- Sorts the files of an inbox into one folder for each file extension.
local inbox = "/tmp/inbox"
os.mkdir(inbox)
for name, content in pairs({["a.txt"] = "one", ["b.txt"] = "two", ["c.csv"] = "1,2"}) do
  file_write(inbox .. "/" .. name, content)
end

local moved = {}
for _, path in ipairs(find_files(inbox, "*")) do
  local ending = path:match("%.(%w+)$")
  os.mkdir(inbox .. "/" .. ending)
  local target = inbox .. "/" .. ending .. "/" .. path:match("[^/]+$")
  mv(path, target)
  moved[#moved + 1] = target
  log.info("moved", path, "to", target)
end

table.sort(moved)
result.moved = moved
result.texts = #find_files(inbox .. "/txt", "*.txt")
