// Allocator of Python objects that makes a fork of the zygote cheap: the zygote's objects are dense and never freed by
// jobs; objects of a job use separate memory.
//
//   the zygote's objects   in huge pages, after freezing
//   data written by jobs   in small pages: reference counts, caches, tables
//   a job's objects        in the kRegionOfJob bytes after that; everything else in CPython's allocator, which returns
//                          memory to the system
//
//   install()  warm up  seal()  --fork-->  a job
//
// Freeing an object of the zygote is a no-op in a job, since it would copy the page. The GIL serializes all calls.
#pragma once

namespace mycojobs::heap {

// Call once per process, between Py_PreInitialize and Py_InitializeFromConfig. If memory is short, CPython's allocator
// stays in use.
void install();
// Starts a separate group of objects: holes left by earlier objects are not reused. Objects of of_all_jobs, which every
// job writes to, are placed together in small pages.
enum class ObjectGroup { plain, of_all_jobs };
void begin_chapter(ObjectGroup = ObjectGroup::plain);
// Call after the creation of the last object that all jobs share.
void seal();
// Returns the memory that every job writes to; null if install() had no memory.
const void* written_by_jobs();

}  // namespace mycojobs::heap
