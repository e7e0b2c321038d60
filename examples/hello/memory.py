"""Allocates more memory than its limit. The kernel kills it, and the outcome in the receipt is oom."""
print("taking memory, 16 MiB at a time", flush=True)
hoard = []
while True:
    hoard.append(bytearray(b"x") * (16 << 20))
