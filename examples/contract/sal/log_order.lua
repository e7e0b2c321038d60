for i = 1, 200 do print("line " .. i) end
