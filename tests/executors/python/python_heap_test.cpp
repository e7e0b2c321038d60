// The memory of Python jobs (executors/python/pyhost/python_heap.h), as scripts see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python_driver.h"

namespace mycojobs::test {
namespace {

TEST(PythonHeap, ReturnsMemoryFreedByAJob) {
  const RunResult result = run_python(R"(
import os
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20
before = resident()
many = [float(i) for i in range(2_000_000)]
print(resident() - before > 50)
many = None
print(resident() - before < 20)
)");
  EXPECT_EQ(result.out, "True\nTrue\n") << result.err;
}

TEST(PythonHeap, ObjectsOfAllSizesAreAllocatedAndFreed) {
  const RunResult result = run_python(R"(
import random
kept = {}
for number in range(20000):
    size = random.choice((0, 1, 15, 16, 100, 511, 512, 513, 1023, 1024, 4000, 4096, 5000, 70000))
    kept[number % 97] = bytes([number % 251]) * size, [number] * (size // 8), {i: number for i in range(size // 64)}
    data, many, table = kept[random.choice(list(kept))]
    assert not data or data.count(data[0]) == len(data)
    assert not many or many.count(many[0]) == len(many)
    assert len(set(table.values())) < 2
grown = bytearray()
for number in range(100000):
    grown.append(number % 256)
assert bytes(grown[:512]) == bytes(range(256)) * 2
print('held')
)");
  EXPECT_EQ(result.out, "held\n") << result.err;
}

// Objects that the zygote created and a job releases are neither reused nor written to.
TEST(PythonHeap, ObjectsOfTheZygoteMayBeDroppedAndReplaced) {
  const RunResult result = run_python(R"(
import gc, json, random, string, sys, tempfile
for name in [each for each in sys.modules if each.split('.')[0] in ('json', 'random', 'string', 'tempfile')]:
    vars(sys.modules.pop(name)).clear()
del json, random, string, tempfile
gc.unfreeze()
gc.collect()
import json, random, string, tempfile
print(json.loads(json.dumps({'a': [1, None, 'x']})), len(string.ascii_letters), 0 <= random.random() < 1)
)");
  EXPECT_EQ(result.out, "{'a': [1, None, 'x']} 52 True\n") << result.err;
}

TEST(PythonHeap, ThreadsMakeAndDropObjects) {
  const RunResult result = run_python(R"(
import threading
sums = []
def work(start):
    sums.append(sum(len(str(i)) for i in range(start, start + 50000)))
threads = [threading.Thread(target=work, args=(1000000,)) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(set(sums))
)");
  EXPECT_EQ(result.out, "{350000}\n") << result.err;
}

}  // namespace
}  // namespace mycojobs::test
