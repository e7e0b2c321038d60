// Where the objects of Python are, so that a fork of the zygote costs little: what the zygote has made lies close
// together and is given back to nobody; what a job makes comes from memory of its own, that nothing was in before.
//
//   the zygote's objects   in huge pages, once they are frozen
//   what each job writes   in small pages: reference counts, caches, tables of its own
//   a job's objects        right behind these, kRegionOfJob together; all beyond in CPython's allocator, which gives
//                          memory back to the system
//
//   install()  warm up  seal()  --fork-->  a job
//
// A job that frees an object of the zygote's frees nothing: the page would be copied for it.
#pragma once

namespace mycojobs::heap {

// Between Py_PreInitialize and Py_InitializeFromConfig, once in a process. Where there is no memory for it CPython's
// own allocator stays.
void install();
// What is made next lies apart from what was made so far: the holes that this has left are not filled any more. What is
// of_all_jobs, for each to write to, lies together, in small pages.
enum class Chapter { plain, of_all_jobs };
void begin_chapter(Chapter = Chapter::plain);
// After the last object that all jobs share.
void seal();
// Where each job writes to; null where there is no memory for it.
const void* written_by_jobs();

}  // namespace mycojobs::heap
