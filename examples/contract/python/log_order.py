for number in range(1, 201):
    print("line", number)
