print("ready")
while true do end
