/* The header by itself is C99: this file is compiled as that, with every warning an error, and is a sound plugin. */
#include <mycojobs/plugin.h>
#include <stddef.h>

static char* probe(void) { return (char*)"{\"runs\": \"true\"}"; }

static char* prepare(const char* job) {
  (void)job;
  return (char*)"{\"command\": [\"/bin/true\"]}";
}

static void release(char* text) { (void)text; }

static const char* const types[] = {"nothing", NULL};

const struct mycojobs_plugin mycojobs_plugin = {
    MYCOJOBS_PLUGIN_ABI, sizeof(struct mycojobs_plugin), "nothing", "1.0", types, NULL, probe, prepare, NULL, release};
