"""Counts primes below LIMIT and returns the number."""
import os

limit = int(os.environ["LIMIT"])
sieve = bytearray([1]) * limit
sieve[0:2] = b"\0\0"
for n in range(2, int(limit**0.5) + 1):
    if sieve[n]:
        sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
print(f"sieved {limit} numbers")
result["primes"] = sum(sieve)
result["largest"] = max(n for n in range(limit) if sieve[n])
