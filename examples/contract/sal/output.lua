for _ = 1, 4096 do print(("x"):rep(1023)) end
