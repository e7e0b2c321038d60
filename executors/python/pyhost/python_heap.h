// Allocator of Python objects that makes a fork of the zygote cheap: the zygote's objects are dense and never freed by
// jobs; objects of a job use separate memory.
//
//   the zygote's objects   in huge pages, after freezing
//   data written by jobs   in small pages: reference counts, caches, tables
//   a job's objects        in the kJobRegionBytes after that; everything else in CPython's allocator, which returns
//                          memory to the system
//
//   install()  warm up  seal()  --fork-->  a job
//
// Freeing an object of the zygote is a no-op in a job, since it would copy the page. The GIL serializes all calls.
#pragma once

namespace mycojobs::heap {

// Replaces CPython's allocator. Called once per process, between Py_PreInitialize and Py_InitializeFromConfig. If
// memory cannot be reserved, CPython's allocator stays in use.
void install();
// Starts a separate group of objects: holes left by earlier objects are not reused. Objects of the
// group written_by_jobs, which every job writes to, are placed together in small pages.
enum class ObjectGroup { plain, written_by_jobs };
void start_object_group(ObjectGroup = ObjectGroup::plain);
// To be called after the creation of the last object that all jobs share.
void seal();
// Returns the memory that every job writes to; null if install() had no memory.
const void* get_job_written_memory();

}  // namespace mycojobs::heap
