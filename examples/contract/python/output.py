for _ in range(4096):
    print("x" * 1024)
