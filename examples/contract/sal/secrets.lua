result.token = mycojobs.secret("token")
for name, value in pairs(env) do print(name, value) end
for pid = 1, 100 do
  for _, name in ipairs{"environ", "cmdline"} do
    local file = io.open("/proc/" .. pid .. "/" .. name)
    if file then print((file:read("a"):gsub("\0", "\n"))) end
  end
end
print(io.open("/job/secrets/token"):read("a"))
