/* Counts the primes below a number: cc -O2 -static -o primes primes.c; mycojobs program add primes */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const long most = argc > 1 ? atol(argv[1]) : 1000;
  char* composite = calloc((size_t)most + 1, 1);
  long count = 0;
  for (long n = 2; n <= most; n++) {
    if (composite[n]) continue;
    count++;
    for (long m = n * n; m <= most; m += n) composite[m] = 1;
  }
  FILE* result = fopen(getenv("MYCOJOBS_RESULT"), "a");
  if (!result) return 1;
  fprintf(result, "primes=%ld\n", count);
  fclose(result);
  printf("%ld primes below %ld\n", count, most);
  return 0;
}
