#pragma once

// Tells clang's thread-safety analysis which lock guards a member, and which lock a function needs.
// The test tidy.clang turns a violation into an error; other compilers ignore these annotations.
#if defined(__clang__)
#define VB_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define VB_THREAD_SAFETY(attribute)
#endif

#define VB_CAPABILITY(name) VB_THREAD_SAFETY(capability(name))
#define VB_SCOPED_CAPABILITY VB_THREAD_SAFETY(scoped_lockable)
#define VB_GUARDED_BY(lock) VB_THREAD_SAFETY(guarded_by(lock))
#define VB_REQUIRES(lock) VB_THREAD_SAFETY(requires_capability(lock))
#define VB_ACQUIRE(lock) VB_THREAD_SAFETY(acquire_capability(lock))
#define VB_RELEASE() VB_THREAD_SAFETY(release_capability())
#define VB_NO_THREAD_SAFETY_ANALYSIS VB_THREAD_SAFETY(no_thread_safety_analysis)
