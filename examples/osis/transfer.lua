-- Moves money between two accounts in one transaction. A concurrent change of an account is never lost.
local accounts = osis.kind("account", {namespace = "examples"})
if not accounts:get("left") then accounts:put({id = "left", balance = 100}) end
if not accounts:get("right") then accounts:put({id = "right", balance = 0}) end

local function transfer(from, to, amount)
  for _ = 1, 10 do
    local a, b = accounts:get(from), accounts:get(to)
    if a.balance < amount then error("not enough in " .. from) end
    a.balance, b.balance = a.balance - amount, b.balance + amount
    local moved, err = pcall(osis.transaction, function(t)
      t:put(accounts, a)
      t:put(accounts, b)
    end)
    if moved then return end
    if err.code ~= "conflict" then error(err) end
  end
  error("too many concurrent changes of these accounts")
end

transfer("left", "right", 30)
transfer("right", "left", 30)
result.left = accounts:get("left").balance
result.right = accounts:get("right").balance
