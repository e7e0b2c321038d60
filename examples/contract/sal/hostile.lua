if io.open("/etc/shadow") then print("GOT shadow") end
if io.open("/usr/bin/mine", "w") then print("GOT usr") end
if pcall(os.execute, "kill -TERM 1") then print("GOT signal") end
if tcp_check and pcall(tcp_check, "1.1.1.1", 53) then print("GOT network") end
print("TRIED")
