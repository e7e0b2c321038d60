"""Takes more memory than it may have; the kernel ends it, and the receipt says oom."""
print("taking memory, 16 MiB at a time", flush=True)
hoard = []
while True:
    hoard.append(bytearray(b"x") * (16 << 20))
