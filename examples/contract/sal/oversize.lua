result.big = ("x"):rep(100000)
