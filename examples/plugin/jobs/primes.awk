# Prints the primes below 100. Their number is the job's result.
BEGIN {
  for (n = 2; n < 100; n++) {
    prime = 1
    for (d = 2; d * d <= n; d++) if (n % d == 0) prime = 0
    if (prime) { print n; count++ }
  }
  progress(1, "done")
  result("count", count)
}
