// Where the objects of Python are, so that a fork of the zygote costs little: what the zygote has made lies close
// together and is given back to nobody; what a job makes comes from memory of its own, that nothing was in before.
//
//   install()  warm up  seal()  --fork-->  a job: small objects in its own region, kRegionOfJob together; all beyond
//                                          in CPython's allocator, which gives memory back to the system
//
// A job that frees an object of the zygote's frees nothing: the page would be copied for it.
#pragma once

namespace mycojobs::heap {

// Between Py_PreInitialize and Py_InitializeFromConfig, once in a process. Where there is no memory for it CPython's
// own allocator stays.
void install();
// What is made next lies apart from what was made so far: the holes that this has left are not filled any more. What is
// of_all_jobs, for each to write to, lies with what Python has made first, some of which each job writes to as well: in
// the same huge page, as far as there is room.
enum class Chapter { plain, of_all_jobs };
void begin_chapter(Chapter = Chapter::plain);
// After the last object that all jobs share.
void seal();

}  // namespace mycojobs::heap
