/* Computes a checksum of each argument. The arguments are the lines of the job's script. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  FILE* result = fopen(getenv("MYCOJOBS_RESULT"), "a");
  if (!result) return 1;
  for (int i = 1; i < argc; i++) {
    unsigned hash = 2166136261u;
    for (const char* c = argv[i]; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    fprintf(result, "%s=%08x\n", argv[i], hash);
  }
  fclose(result);
  return 0;
}
